"""Removes nondeterministic parts from zkCli's output: times, zxids, session ids, ports, and the order of events, which are
sorted and printed last."""

import re
import sys

text = sys.stdin.read()
text = re.sub(r"\n?WATCHER::\n\nWatchedEvent", "\nWATCHER:: WatchedEvent", text)
events = []
for line in text.split("\n"):
    line = re.sub(r"^\[zk: \S+\(\w+\) \d+\] ", "> ", line).rstrip()
    line = re.sub(r"\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun) \w+ \d+ [\d:]+ \w+ \d+", "DATE", line)
    line = re.sub(r"^([cmp]Zxid) = 0x[0-9a-f]+", r"\1 = ZXID", line)
    line = re.sub(r"zxid: -?\d+", "zxid: ZXID", line)
    line = re.sub(r"0x[0-9a-f]{12,}", "SESSION", line)
    line = re.sub(r"127\.0\.0\.1(:\d+)+", "ADDRESS", line)
    if match := re.fullmatch(r"\[(/[^\]]*)\]", line):
        line = f"[{', '.join(sorted(match[1].split(', ')))}]"
    if "WATCHER::" in line:
        events.append(line)
    elif line and not line.startswith(("\tat ", "SLF4J")) and not re.match(r"\d{4}-\d\d-\d\d ", line):
        print(line)
print("\n".join(sorted(events)))
