//! Indices of table entries in use and free: the lowest that was never used, or the one freed last.

use umemcg_base::{LeafMutex, Rank, const_fn};

/// Hands out indices from 1 up; 0 means "none" everywhere.
#[derive(Debug)]
pub(crate) struct IndexPool {
    state: LeafMutex<State>,
}

#[derive(Debug)]
struct State {
    /// Free indices, the one freed last on top.
    free: Vec<u32>,
    next_unused: u32,
}

impl State {
    const NEW: State = State { free: Vec::new(), next_unused: 1 };
}

impl IndexPool {
    const_fn! {
        pub(crate) const fn new() -> Self {
            Self { state: LeafMutex::with_rank(Rank::Innermost, State::NEW) }
        }
    }

    pub(crate) fn take(&self) -> u32 {
        let mut state = self.state.lock();
        if let Some(index) = state.free.pop() {
            return index;
        }
        let index = state.next_unused;
        state.next_unused = index.checked_add(1).expect("fewer than 2^32 indices are in use");
        index
    }

    pub(crate) fn give_back(&self, index: u32) {
        self.state.lock().free.push(index);
    }

    pub(crate) fn nr_in_use(&self) -> u32 {
        let state = self.state.lock();
        state.next_unused - 1 - state.free.len() as u32
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
