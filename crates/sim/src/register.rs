//! A checker for histories of registers: each operation reads or writes one value, and each value but zero is written by
//! one operation.
//!
//! A write is known to have taken effect by the time that it returned successfully, or that a read which returned its value
//! returned. From these times, and from reads that follow each other, the checker derives which write precedes which.
//! A history is rejected if these relations have a cycle, if a read returns a value that was overwritten before the read
//! began, or one of which no write had begun. Zeros are written by many operations, so their order is only checked
//! against that of other writes.
//!
//! Every rejected history violates linearizability. The opposite is not claimed: a write of unknown outcome may explain too
//! much.

use std::collections::BTreeMap;

/// An operation on a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    pub register: u64,
    /// When it was called, and when it returned, on any common clock. `None`: its outcome is unknown.
    pub called: u64,
    pub returned: Option<u64>,
    /// For a write of unknown outcome: when it can no longer take effect; `u64::MAX`: never.
    pub ended: u64,
    pub what: What,
}

/// What an operation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It wrote this value.
    Write(u64),
    /// It returned this value.
    Read(u64),
}

struct Written {
    called: u64,
    /// When it had taken effect at the latest.
    done: u64,
    /// When it had taken effect at the latest, if it ever did.
    ended: u64,
}

/// Checks a history. All registers are zero at the beginning.
///
/// # Errors
/// A description of the violation.
pub fn check(history: &[Operation]) -> Result<(), String> {
    let mut registers: BTreeMap<u64, Vec<Operation>> = BTreeMap::new();
    for operation in history {
        registers.entry(operation.register).or_default().push(*operation);
    }
    registers.iter().try_for_each(|(register, operations)| {
        check_one(operations).map_err(|what| format!("register {register}: {what}"))
    })
}

fn check_one(history: &[Operation]) -> Result<(), String> {
    let mut writes: BTreeMap<u64, Written> = BTreeMap::new();
    let mut zeros = vec![Written { called: 0, done: 0, ended: 0 }];
    for Operation { called, returned, ended, what, .. } in history {
        let written = Written { called: *called, done: returned.unwrap_or(u64::MAX), ended: *ended };
        match what {
            What::Write(0) => zeros.push(written),
            What::Write(value) => {
                if writes.insert(*value, written).is_some() {
                    return Err(format!("value {value} was written twice"));
                }
            }
            What::Read(_) => {}
        }
    }
    let reads: Vec<(u64, u64, u64)> = history
        .iter()
        .filter_map(|operation| match operation.what {
            What::Read(value) => Some((operation.called, operation.returned?, value)),
            What::Write(_) => None,
        })
        .collect();
    for (_, returned, value) in &reads {
        if *value != 0 {
            let written = writes.get_mut(value).ok_or_else(|| format!("{value} was read, but never written"))?;
            if written.called > *returned {
                return Err(format!("{value} was read before it was written"));
            }
            written.done = written.done.min(*returned).min(written.ended);
        }
    }
    for (called, returned, value) in &reads {
        // A write that is certainly between the end of `done` and the beginning of the read.
        let overwritten = |done: u64| {
            let between = |(other, it): &(&u64, &Written)| *other != value && it.called > done && it.done < *called;
            writes.iter().find(between).map(|(other, _)| *other)
        };
        if *value != 0 {
            let zeroed = |it: &&Written| it.called > writes[value].done && it.done < *called;
            if let Some(other) = overwritten(writes[value].done) {
                return Err(format!("{value} was read at {called}, after {other} had replaced it"));
            }
            if zeros.iter().any(|zero| zeroed(&zero)) {
                return Err(format!("{value} was read at {called}, after zeros had replaced it"));
            }
        } else if !zeros.iter().any(|zero| zero.called < *returned && overwritten(zero.done.min(zero.ended)).is_none())
        {
            return Err(format!("zero was read at {called}, although a value was written"));
        }
    }
    check_order(&writes, &reads)
}

/// Checks that the order of the writes of values has no cycle.
fn check_order(writes: &BTreeMap<u64, Written>, reads: &[(u64, u64, u64)]) -> Result<(), String> {
    let mut after: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (a, first) in writes {
        for (b, second) in writes {
            if first.done < second.called {
                after.entry(*a).or_default().push(*b);
            }
        }
    }
    for (_, returned, a) in reads {
        for (called, _, b) in reads {
            if returned < called && a != b && *a != 0 && *b != 0 {
                after.entry(*a).or_default().push(*b);
            }
        }
    }
    // 1: on the path, 2: done.
    let mut states: BTreeMap<u64, u8> = BTreeMap::new();
    for start in writes.keys() {
        let mut path = vec![(*start, 0)];
        while let Some((value, next)) = path.pop() {
            if next == 0 && states.insert(value, 1) == Some(2) {
                states.insert(value, 2);
                continue;
            }
            match after.get(&value).and_then(|all| all.get(next)) {
                None => _ = states.insert(value, 2),
                Some(other) => {
                    path.push((value, next + 1));
                    match states.get(other) {
                        Some(1) => return Err(format!("{value} was replaced by {other}, and {other} by {value}")),
                        Some(_) => {}
                        None => path.push((*other, 0)),
                    }
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(called: u64, returned: impl Into<Option<u64>>, value: u64) -> Operation {
        Operation { register: 1, called, returned: returned.into(), ended: u64::MAX, what: What::Write(value) }
    }

    fn read(called: u64, returned: u64, value: u64) -> Operation {
        Operation { register: 1, called, returned: Some(returned), ended: u64::MAX, what: What::Read(value) }
    }

    #[test]
    fn linearizable_histories_pass() {
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[read(0, 1, 0), write(2, 5, 7), read(3, 4, 0), read(3, 4, 7), read(6, 7, 7)]), Ok(()));
        // A write of unknown outcome takes effect late.
        assert_eq!(check(&[write(0, None, 7), write(1, 2, 8), read(3, 4, 8), read(5, 6, 7)]), Ok(()));
        // Two concurrent writes, in either order.
        assert_eq!(check(&[write(0, 9, 7), write(0, 9, 8), read(3, 4, 8), read(10, 11, 7)]), Ok(()));
        assert_eq!(check(&[write(0, 1, 7), write(2, None, 0), read(3, 4, 7), read(5, 6, 0)]), Ok(()));
    }

    #[test]
    fn write_takes_effect_before_its_end_or_never() {
        let lost = Operation { ended: 4, ..write(0, None, 7) };
        assert_eq!(check(&[lost, read(5, 6, 7), write(7, 8, 8), read(9, 10, 8)]), Ok(()));
        assert_eq!(check(&[lost, write(5, 6, 8), read(7, 8, 8)]), Ok(()));
        assert!(check(&[lost, write(5, 6, 8), read(7, 8, 7)]).is_err());
        let zeroed = Operation { what: What::Write(0), ..lost };
        assert!(check(&[zeroed, write(5, 6, 8), read(7, 8, 0)]).is_err());
    }

    #[test]
    fn violations_are_found() {
        let broken: [&[Operation]; 9] = [
            // A value from nowhere, or from the future.
            &[read(0, 1, 7)],
            &[read(0, 1, 7), write(2, 3, 7)],
            // A stale read, of a value and of the initial zero.
            &[write(0, 1, 7), write(2, 3, 8), read(4, 5, 7)],
            &[write(1, 2, 7), read(3, 4, 0)],
            // A value survives zeros.
            &[write(0, 1, 7), write(2, 3, 0), read(4, 5, 7)],
            // A retry lands after a later write that was read.
            &[write(0, 9, 7), write(0, 9, 8), read(1, 2, 7), read(3, 4, 8), read(5, 6, 7)],
            // Two readers disagree on the order of two writes.
            &[write(0, 9, 7), write(0, 9, 8), read(1, 2, 7), read(3, 4, 8), read(1, 2, 8), read(3, 4, 7)],
            // A read of an unknown write proves it.
            &[write(0, None, 7), read(1, 2, 7), write(3, 4, 8), read(5, 6, 7)],
            &[write(0, 1, 7), write(0, 1, 7)],
        ];
        for history in broken {
            assert!(check(history).is_err(), "{history:?}");
        }
    }
}
