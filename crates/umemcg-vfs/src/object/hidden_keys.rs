//! The hidden keys of a volume: keys unusable as paths.

use std::collections::BTreeSet;

use umemcg_base::LeafMutex;

/// Most remembered keys.
const NR_MAX: usize = 1000;
/// Most bytes of them.
const BYTES_MAX: usize = 64 << 10;

/// Listed keys unusable as paths. The memory for them is bounded by constants; each is counted
/// once.
#[derive(Debug, Default)]
pub(super) struct HiddenKeys {
    known: LeafMutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    keys: BTreeSet<Box<str>>,
    bytes: usize,
    /// There were more keys.
    has_more: bool,
}

impl HiddenKeys {
    /// Notes a hidden key. Returns whether it is the first.
    pub(super) fn add(&self, key: &str) -> bool {
        let mut known = self.known.lock();
        if known.keys.contains(key) {
            return false;
        }
        let is_first = known.keys.is_empty() && !known.has_more;
        if known.keys.len() == NR_MAX || known.bytes + key.len() > BYTES_MAX {
            known.has_more = true;
        } else {
            known.bytes += key.len();
            known.keys.insert(key.into());
        }
        is_first
    }

    /// Returns the keys, and whether there are more.
    pub(super) fn list(&self) -> (Vec<String>, bool) {
        let known = self.known.lock();
        (known.keys.iter().map(|key| key.to_string()).collect(), known.has_more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_counts_once_and_there_is_a_bound() {
        let hidden = HiddenKeys::default();
        assert!(hidden.add("a//b"));
        assert!(!hidden.add("a//b"));
        assert_eq!(hidden.list(), (vec!["a//b".to_owned()], false));
        for nr in 0..2 * NR_MAX {
            hidden.add(&format!("x//{nr}"));
        }
        let (keys, has_more) = hidden.list();
        assert_eq!((keys.len(), has_more), (NR_MAX, true));
    }
}
