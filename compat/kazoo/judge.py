"""Fails if a test failed that is not in the list of expected failures, or if a test passed that is.

    judge.py RESULTS.xml EXPECTED

Each line of the list is a test with the reason: `test_file.py::Class::test  # reason`.
"""

import sys
import xml.etree.ElementTree as ElementTree


def expected_failures(path):
    reasons = {}
    for line in open(path):
        test, _, reason = (part.strip() for part in line.partition("#"))
        if test:
            if not reason:
                sys.exit(f"{path}: no reason given for {test}")
            reasons[test] = reason
    return reasons


def outcomes(path):
    """The outcome of each test. A failed setup or teardown counts as a failure."""
    found = {}
    for case in ElementTree.parse(path).iter("testcase"):
        module, _, cls = case.get("classname").removeprefix("kazoo.tests.").partition(".")
        test = "::".join(part for part in (module + ".py", cls, case.get("name")) if part)
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        if found.get(test) != "failed":
            found[test] = outcome
    return found


def main():
    results, listed = sys.argv[1:]
    found, expected = outcomes(results), expected_failures(listed)
    count = {kind: sum(outcome == kind for outcome in found.values()) for kind in ("passed", "failed", "skipped")}
    new = sorted(test for test, outcome in found.items() if outcome == "failed" and test not in expected)
    fixed = sorted(test for test in expected if found.get(test) == "passed")
    for test in new:
        print(f"FAILED: {test}")
    for test in fixed:
        print(f"UNEXPECTED PASS: {test}  # {expected[test]}")
    print(
        f"kazoo: {count['passed']} passed, {count['failed'] - len(new)} failed as expected, {len(new)} failed unexpectedly, "
        f"{len(fixed)} passed unexpectedly, {count['skipped']} skipped"
    )
    sys.exit(1 if new or fixed or not count["passed"] else 0)


main()
