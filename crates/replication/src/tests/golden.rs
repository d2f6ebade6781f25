//! Golden scripts: scenes of the protocol, played message by message, in `testdata/*.txt`.
//!
//! A script consists of comments (`#`) and blocks. A block is one or more commands, a line `----`, and their output up
//! to an empty line. The test compares the output; with `UPDATE_GOLDEN=1` it rewrites the scripts.
//!
//! | command | effect |
//! |---|---|
//! | `start 3 nodes [1 spare] [memory-log-bytes=0] [commit-period-ms=500]` | starts voters, and replicas that are not members |
//! | `wait 500` | advances the clock of all nodes, in ms |
//! | `tick n1` | advances the clock to the timer of a node, and runs it |
//! | `deliver [n1 n2]`, `deliver all` | delivers the messages in flight (from n1 to n2; `*` is any node), or until there are none |
//! | `drop [n1 n2]` | loses messages in flight |
//! | `cut n1`, `heal n1` | loses all messages to and from a node that would be delivered before `heal` |
//! | `propose n1 x=1 y=2` | proposes writes in one batch |
//! | `read n2 x` | a linearizable read with the read index |
//! | `slow n1`, `force n1` | the disk completes no force before `force` |
//! | `crash n1`, `restart n1` | a crash loses everything that is not forced |
//! | `add n4`, `promote n4`, `remove n3` | a membership change, at the leader |
//! | `checkpoint n1` | discards the log through the last applied entry |
//! | `read-log n1`, `send-state n1 n3` | completes the log read or state transfer that the leader requested |
//! | `state`, `members` | prints all replicas |
//! | `quiet ...` | any command without its output |
//!
//! In the output, `n1@2` is node 1, which has promised epoch 2, and `1.5` is the LSN with epoch 1 and sequence 5.

use std::fmt::Write;
use std::{env, fs};

use base::MembershipChange;

use super::*;
use driver::Driver;

mod describe;
mod driver;

fn run(driver: &mut Driver, command: &str) {
    let words: Vec<&str> = command.split_whitespace().collect();
    match words[..] {
        ["quiet", ref rest @ ..] => {
            let length = driver.output.len();
            run(driver, &rest.join(" "));
            driver.output.truncate(length);
        }
        ["start", members, "nodes", ref options @ ..] => driver.start(scene(number(members), options)),
        ["wait", millis] => driver.scene.wait(Duration::from_millis(number(millis) as u64)),
        ["tick", at] => driver.tick(index(at)),
        ["deliver", "all"] => {
            while !driver.scene.under_way.is_empty() {
                driver.deliver("*", "*");
            }
        }
        ["deliver"] => driver.deliver("*", "*"),
        ["deliver", from, to] => driver.deliver(from, to),
        ["drop"] => driver.lose("*", "*"),
        ["drop", from, to] => driver.lose(from, to),
        ["propose", at, ref writes @ ..] => driver.step(index(at), |cohort, now, out| {
            for write in writes {
                cohort.propose(Bytes::from(write.to_string()), now, out).expect("the replica leads");
            }
        }),
        ["read", at, key] => driver.read(index(at), key),
        ["slow", at] => driver.hosts[index(at)].is_slow = true,
        ["force", at] => driver.force(index(at)),
        ["cut", at] => driver.hosts[index(at)].is_cut_off = true,
        ["heal", at] => driver.hosts[index(at)].is_cut_off = false,
        ["crash", at] => driver.crash(index(at)),
        ["restart", at] => driver.restart(index(at)),
        ["add", who] => driver.change(MembershipChange::AddLearner(member(node(index(who))))),
        ["promote", who] => driver.change(MembershipChange::Promote(member(node(index(who))))),
        ["remove", who] => driver.change(MembershipChange::Remove(member(node(index(who))))),
        ["checkpoint", at] => driver.checkpoint(index(at)),
        ["read-log", at] => driver.read_log(index(at)),
        ["send-state", from, to] => driver.send_state(index(from), index(to)),
        ["state"] => (0..driver.hosts.len()).for_each(|index| driver.print_state(index)),
        ["members"] => (0..driver.hosts.len()).for_each(|index| {
            let members = describe::members(driver.scene.replicas[index].0.membership());
            driver.say(index, &members);
        }),
        _ => panic!("unknown command: {command}"),
    }
}

/// The replicas that `start` starts.
fn scene(members: usize, options: &[&str]) -> Scene {
    let (mut limits, mut timing, mut spares) = (Limits::default(), Timing::default(), 0);
    for option in options {
        match option.split_once('=') {
            Some(("memory-log-bytes", bytes)) => limits.memory_log_bytes = number(bytes),
            Some(("commit-period-ms", millis)) => {
                timing.commit_period = Duration::from_millis(number(millis) as u64);
                timing.piggyback_commits = false;
            }
            None if *option == "spare" => {}
            None => spares = number(option),
            Some(_) => panic!("unknown option: {option}"),
        }
    }
    Scene::with(members, spares, limits, timing)
}

fn number(word: &str) -> usize {
    word.parse().unwrap_or_else(|_| panic!("not a number: {word}"))
}

/// The index of a node named `n1`, `n2` and so on.
fn index(word: &str) -> usize {
    number(word.trim_start_matches('n')) - 1
}

/// Runs a script, and returns it with the current output.
fn play(text: &str) -> String {
    let (mut driver, mut played, mut lines) = (Driver::new(), String::new(), text.lines());
    while let Some(line) = lines.next() {
        let _ = writeln!(played, "{line}");
        if line == "----" {
            played.push_str(&std::mem::take(&mut driver.output));
            // The recorded output.
            if lines.any(str::is_empty) {
                played.push('\n');
            }
        } else if !line.is_empty() && !line.starts_with('#') {
            run(&mut driver, line);
        }
    }
    assert!(driver.output.is_empty(), "the last block has no ----");
    played
}

#[test]
fn golden_scripts() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata");
    let mut paths: Vec<_> = fs::read_dir(directory).unwrap().map(|file| file.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        let played = play(&text);
        if env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&path, played).unwrap();
            continue;
        }
        let differs = text.lines().zip(played.lines()).position(|(expected, actual)| expected != actual);
        let line = differs.unwrap_or_else(|| text.lines().count().min(played.lines().count()));
        let at = |text: &str| text.lines().nth(line).unwrap_or("(end)").to_owned();
        let (path, expected, actual) = (path.display(), at(&text), at(&played));
        let hint = "UPDATE_GOLDEN=1 rewrites the output";
        assert!(text == played, "{path}:{}: expected {expected:?}, got {actual:?}; {hint}", line + 1);
    }
}
