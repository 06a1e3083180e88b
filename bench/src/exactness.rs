//! Whether what happened is exactly what should have.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;

/// How far what is there is from what should be there: all zero is exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deviation {
    /// Expected, and not there.
    missing: usize,
    /// There once more than expected, each repetition counted.
    doubled: usize,
    /// There, and nobody knows why.
    foreign: usize,
}

impl Deviation {
    /// Compares what is there with what should be there once each.
    pub(crate) fn of<T: Hash + Eq + Copy>(
        expected: &HashSet<T>,
        there: impl IntoIterator<Item = T>,
    ) -> Deviation {
        let mut seen = HashSet::with_capacity(expected.len());
        let (mut doubled, mut foreign) = (0, 0);
        for item in there {
            if !expected.contains(&item) {
                foreign += 1;
            } else if !seen.insert(item) {
                doubled += 1;
            }
        }
        Deviation {
            missing: expected.len() - seen.len(),
            doubled,
            foreign,
        }
    }

    pub(crate) fn is_exact(self) -> bool {
        self.missing + self.doubled + self.foreign == 0
    }
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} missing, {} doubled, {} foreign",
            self.missing, self.doubled, self.foreign
        )
    }
}

/// The first place at which the numbers of a key don't ascend.
pub(crate) fn first_out_of_order<K: Hash + Eq>(
    records: impl IntoIterator<Item = (K, i64)>,
) -> Option<usize> {
    let mut last = std::collections::HashMap::new();
    records
        .into_iter()
        .position(|(key, number)| last.insert(key, number).is_some_and(|last| last >= number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(there: &[u32]) -> Deviation {
        Deviation::of(&HashSet::from([1, 2, 3]), there.iter().copied())
    }

    #[test]
    fn each_once_in_any_order_is_exact() {
        assert!(of(&[3, 1, 2]).is_exact());
        assert!(Deviation::of(&HashSet::<u32>::new(), []).is_exact());
    }

    #[test]
    fn what_is_missing_doubled_or_foreign_is_not() {
        for (there, text) in [
            (&[1, 2][..], "1 missing, 0 doubled, 0 foreign"),
            (&[1, 2, 3, 3, 3], "0 missing, 2 doubled, 0 foreign"),
            (&[1, 2, 3, 4], "0 missing, 0 doubled, 1 foreign"),
            // The number of rows alone would be right here.
            (&[1, 2, 2], "1 missing, 1 doubled, 0 foreign"),
            (&[], "3 missing, 0 doubled, 0 foreign"),
        ] {
            assert!(!of(there).is_exact());
            assert_eq!(of(there).to_string(), text);
        }
    }

    #[test]
    fn order_is_asked_for_within_a_key() {
        assert_eq!(first_out_of_order([("a", 1), ("b", 9), ("a", 2)]), None);
        assert_eq!(first_out_of_order([("a", 2), ("b", 1), ("a", 1)]), Some(2));
        assert_eq!(first_out_of_order([("a", 2), ("a", 2)]), Some(1));
    }
}
