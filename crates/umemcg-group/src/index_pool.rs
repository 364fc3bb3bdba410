//! Indices of table entries, used and free: hands out the index freed last, or else the lowest
//! never used.

use umemcg_base::{LeafMutex, Rank, const_fn};

/// Hands out indices from 1 up; 0 means "none" everywhere.
#[derive(Debug)]
pub(crate) struct IndexPool {
    unused: LeafMutex<Unused>,
}

/// The indices not in use.
#[derive(Debug)]
struct Unused {
    /// Free indices, the one freed last on top.
    free: Vec<u32>,
    next_never_used: u32,
}

impl Unused {
    const NEW: Unused = Unused { free: Vec::new(), next_never_used: 1 };
}

impl IndexPool {
    const_fn! {
        pub(crate) const fn new() -> Self {
            Self { unused: LeafMutex::with_rank(Rank::Innermost, Unused::NEW) }
        }
    }

    pub(crate) fn take(&self) -> u32 {
        let mut unused = self.unused.lock();
        if let Some(index) = unused.free.pop() {
            return index;
        }
        let index = unused.next_never_used;
        unused.next_never_used = index.checked_add(1).expect("fewer than 2^32 indices are in use");
        index
    }

    pub(crate) fn give_back(&self, index: u32) {
        self.unused.lock().free.push(index);
    }

    pub(crate) fn nr_in_use(&self) -> u32 {
        let unused = self.unused.lock();
        unused.next_never_used - 1 - unused.free.len() as u32
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_index_freed_last_comes_first_and_zero_never() {
        let pool = IndexPool::new();
        assert_eq!((pool.take(), pool.take(), pool.take()), (1, 2, 3));
        pool.give_back(1);
        pool.give_back(2);
        assert_eq!(pool.nr_in_use(), 1);
        assert_eq!((pool.take(), pool.take(), pool.take()), (2, 1, 4));
    }
}
