//! A set of numbers as intervals. Its size is proportional to the number of gaps.

use std::collections::BTreeMap;

use base::codec::{DecodeError, Reader, Wire, Writer};

/// The start and the exclusive end of each interval. Intervals neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Intervals(BTreeMap<u64, u64>);

impl Intervals {
    /// The end of the interval that contains a number.
    pub(super) fn end_of(&self, number: u64) -> Option<u64> {
        self.0.range(..=number).next_back().map(|(_, end)| *end).filter(|end| number < *end)
    }

    /// Adds a number that is not in the set.
    pub(super) fn insert(&mut self, number: u64) {
        let end = self.0.remove(&(number + 1)).unwrap_or(number + 1);
        match self.0.range_mut(..number).next_back() {
            Some((_, before)) if *before == number => *before = end,
            _ => {
                self.0.insert(number, end);
            }
        }
    }

    /// Removes a number, if it is in the set.
    pub(super) fn remove(&mut self, number: u64) {
        let Some((start, end)) = self.0.range(..=number).next_back().map(|(start, end)| (*start, *end)) else { return };
        if number >= end {
            return;
        }
        self.0.remove(&start);
        if start < number {
            self.0.insert(start, number);
        }
        if number + 1 < end {
            self.0.insert(number + 1, end);
        }
    }

    /// The numbers in the set from `number` on.
    pub(super) fn from(&self, number: u64) -> Vec<u64> {
        let first = self.end_of(number).map(|end| (number, end));
        let rest = self.0.range(number..).map(|(start, end)| (*start, *end)).filter(|(start, _)| *start > number);
        first.into_iter().chain(rest).flat_map(|(start, end)| start..end).collect()
    }

    /// Removes all numbers below one.
    pub(super) fn remove_below(&mut self, number: u64) {
        let kept = self.0.split_off(&number);
        let cut = self.0.last_key_value().map(|(_, end)| *end).filter(|end| *end > number);
        self.0 = kept;
        if let Some(end) = cut {
            self.0.insert(number, end);
        }
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Wire for Intervals {
    const BYTES_MIN: usize = 4;

    fn encode(&self, out: &mut Writer) {
        self.0.encode(out);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        let (mut intervals, mut least) = (BTreeMap::new(), 0);
        for _ in 0..input.count(16)? {
            let (start, end) = (input.u64()?, input.u64()?);
            if start < least || start >= end || end > crate::limits::POSITION_MAX + 1 {
                return Err(DecodeError::Invalid { what: "intervals" });
            }
            intervals.insert(start, end);
            least = end + 1;
        }
        Ok(Self(intervals))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use base::SplitMix64;

    use super::*;

    /// Compares with a plain set.
    #[test]
    fn intervals_match_set_model() {
        let mut random = SplitMix64::new(1);
        for _ in 0..200 {
            let (mut intervals, mut plain) = (Intervals::default(), BTreeSet::new());
            for _ in 0..60 {
                let number = random.below(40);
                if random.chance(100_000) {
                    intervals.remove_below(number);
                    plain = plain.split_off(&number);
                } else if plain.insert(number) {
                    intervals.insert(number);
                } else if random.chance(300_000) {
                    plain.remove(&number);
                    intervals.remove(number);
                }
                assert_eq!(intervals.from(number), plain.range(number..).copied().collect::<Vec<_>>());
                for number in 0..41 {
                    let end = (number..).find(|other| !plain.contains(other)).filter(|end| *end > number);
                    assert_eq!(intervals.end_of(number), end);
                }
                let starts = plain.iter().filter(|number| **number == 0 || !plain.contains(&(**number - 1)));
                assert_eq!(intervals.count(), starts.count());
            }
            let mut writer = Writer::new();
            intervals.encode(&mut writer);
            assert_eq!(Intervals::decode(&mut Reader::new(writer.finish())), Ok(intervals));
        }
    }
}
