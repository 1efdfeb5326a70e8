//! Sets of completion indexes, as a Job's status writes them: `1,3-5,7`.
//! Upstream: `orderedIntervals`.

use std::fmt;

use crate::objects::Pod;

/// Upstream: `batch.JobCompletionIndexAnnotation`.
pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// Indexes as intervals that do not touch, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexes(Vec<Interval>);

/// The indexes from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Interval {
    first: i32,
    last: i32,
}

impl Indexes {
    /// Parses the indexes of a text that are below `completions`. Malformed parts are ignored.
    /// Upstream: `parseIndexesFromString`.
    pub fn parse(text: &str, completions: i32) -> Indexes {
        let mut all = Indexes::default();
        if text.is_empty() {
            return all;
        }
        for part in text.split(',') {
            let mut limits = part.split('-');
            let first = limits.next().and_then(|text| text.parse::<i32>().ok());
            let last = limits.next().map(str::parse::<i32>);
            let Some(first) = first else {
                log::info!("Corrupted indexes interval, ignoring {part:?}");
                continue;
            };
            // The intervals are in ascending order.
            if first >= completions {
                break;
            }
            match last {
                Some(Err(error)) => {
                    log::info!("Corrupted indexes interval, ignoring {part:?}: {error}");
                }
                Some(Ok(last)) => all.push(first, last.min(completions - 1)),
                None => all.push(first, first),
            }
        }
        all
    }

    /// Adds an interval that does not begin before the last one, and joins the two if they touch.
    fn push(&mut self, first: i32, last: i32) {
        match self.0.last_mut() {
            Some(before) if first <= before.last.saturating_add(1) => {
                before.last = before.last.max(last);
            }
            _ => self.0.push(Interval { first, last }),
        }
    }

    /// Returns the indexes that are in at least one of both.
    pub fn union(&self, other: &Indexes) -> Indexes {
        let mut all: Vec<Interval> = self.0.iter().chain(&other.0).copied().collect();
        all.sort_by_key(|interval| interval.first);
        let mut union = Indexes::default();
        all.into_iter().for_each(|interval| union.push(interval.first, interval.last));
        union
    }

    /// Returns the number of indexes.
    pub fn total(&self) -> usize {
        let size = |interval: &Interval| {
            let size = i64::from(interval.last) - i64::from(interval.first) + 1;
            usize::try_from(size).unwrap_or(0)
        };
        self.0.iter().map(size).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, index: i32) -> bool {
        let at = self.0.partition_point(|interval| interval.last < index);
        self.0.get(at).is_some_and(|interval| interval.first <= index)
    }

    /// Returns the number of indexes that are in both.
    pub fn overlap(&self, other: &Indexes) -> usize {
        let (mut mine, mut theirs) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut count = 0;
        while let (Some(one), Some(two)) = (mine.peek(), theirs.peek()) {
            let shared =
                i64::from(one.last.min(two.last)) - i64::from(one.first.max(two.first)) + 1;
            count += usize::try_from(shared).unwrap_or(0);
            let order = one.last.cmp(&two.last);
            if order.is_le() {
                mine.next();
            }
            if order.is_ge() {
                theirs.next();
            }
        }
        count
    }

    /// Returns the first `count` indexes below `completions` that are not in here.
    pub fn gaps(&self, count: usize, completions: i32) -> Vec<i32> {
        let mut gaps = Vec::new();
        let mut candidate = 0;
        for interval in &self.0 {
            gaps.extend((candidate..interval.first.min(completions)).take(count - gaps.len()));
            candidate = candidate.max(interval.last.saturating_add(1));
        }
        gaps.extend((candidate..completions).take(count - gaps.len()));
        gaps
    }
}

impl FromIterator<i32> for Indexes {
    fn from_iter<I: IntoIterator<Item = i32>>(indexes: I) -> Indexes {
        let mut indexes: Vec<i32> = indexes.into_iter().collect();
        indexes.sort();
        let mut all = Indexes::default();
        indexes.into_iter().for_each(|index| all.push(index, index));
        all
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Interval { first, last }) in self.0.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                1 => write!(f, "{comma}{first},{last}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

/// Returns the index that a pod works on; `None` without a proper one. Upstream:
/// `getCompletionIndex`.
pub fn index_of(pod: &Pod) -> Option<i32> {
    let index = pod.meta.annotations.get(COMPLETION_INDEX)?.parse().ok()?;
    (index >= 0).then_some(index)
}

/// Returns the index that a pod works on, as [`index_of`] does, if it is below `completions`.
pub fn valid_index_of(pod: &Pod, completions: i32) -> Option<i32> {
    index_of(pod).filter(|index| *index < completions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_and_written() {
        // The text, completions, the text afterwards, and the number of indexes.
        for (text, completions, written, total) in [
            ("", 10, "", 0),
            ("5", 10, "5", 1),
            ("1-3,5", 10, "1-3,5", 4),
            ("1,2,3", 10, "1-3", 3),
            ("3,4", 10, "3,4", 2),
            ("1,3-5,7", 10, "1,3-5,7", 5),
            ("0-4,8-20", 10, "0-4,8,9", 7),
            ("0-4,10,11", 10, "0-4", 5),
            ("x,2", 10, "2", 1),
            ("1-x,2-3-9", 10, "2,3", 2),
        ] {
            let indexes = Indexes::parse(text, completions);
            assert_eq!(indexes.to_string(), written, "{text}");
            assert_eq!(indexes.total(), total, "{text}");
            for index in 0..completions {
                let listed = (index..=index).collect::<Indexes>().overlap(&indexes) == 1;
                assert_eq!(indexes.contains(index), listed, "{text} {index}");
            }
        }
    }

    #[test]
    fn sets_are_joined_and_compared() {
        // The two, both together, and the number that they share.
        for (one, two, union, overlap) in [
            ("", "", "", 0),
            ("1-3", "", "1-3", 0),
            ("1-3,7", "4,9", "1-4,7,9", 0),
            ("1-10", "3-5,12", "1-10,12", 3),
            ("0,2,4", "1,3,5", "0-5", 0),
            ("2-4,8-10", "3-9", "2-10", 4),
        ] {
            let (one, two) = (Indexes::parse(one, 100), Indexes::parse(two, 100));
            for (one, two) in [(&one, &two), (&two, &one)] {
                assert_eq!(one.union(two).to_string(), union);
                assert_eq!(one.overlap(two), overlap);
            }
        }
    }

    #[test]
    fn gaps_are_the_lowest_free_indexes() {
        for (taken, count, completions, gaps) in [
            ("", 3, 10, vec![0, 1, 2]),
            ("", 3, 2, vec![0, 1]),
            ("0-2,5", 3, 10, vec![3, 4, 6]),
            ("0-2,5", 9, 7, vec![3, 4, 6]),
            ("0-6", 2, 7, vec![]),
            ("3", 0, 7, vec![]),
            ("0,2", 9, 2, vec![1]),
        ] {
            let taken = Indexes::parse(taken, 100);
            assert_eq!(taken.gaps(count, completions), gaps, "{taken} {count} {completions}");
        }
    }
}
