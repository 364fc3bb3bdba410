//! Leases: parts of a group's credit (see [`throttle`](super::throttle)) taken by a thread, so that
//! not every write touches a cache line shared by all writers of the group.
//!
//! A thread has leases of a few groups at a time. They end when any limit is changed.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// Most groups with a lease in one thread at a time.
const NR_LEASES: usize = 8;
/// A lease is this part of the remaining credit …
pub(crate) const LEASE_SHARE: u64 = 8;
/// … but not more than this many bytes.
const LEASE_BYTES_MAX: u64 = 64 << 10;

/// Counts changes of limits; each invalidates all earlier leases.
static ERA: AtomicU32 = AtomicU32::new(0);

#[derive(Debug, Clone, Copy)]
struct Lease {
    /// The group's number; 0 for none.
    group: u64,
    era: u32,
    bytes: u32,
}

thread_local! {
    /// No destructor: the rest of a lease is lost.
    static LEASES: [Cell<Lease>; NR_LEASES] =
        const { [const { Cell::new(Lease { group: 0, era: 0, bytes: 0 }) }; NR_LEASES] };
}

/// Takes `bytes` from the thread's lease of a group. Returns whether there was enough.
#[inline]
pub(crate) fn spend(group: u64, bytes: u64) -> bool {
    LEASES.with(|leases| {
        let place = &leases[group as usize % NR_LEASES];
        let lease = place.get();
        let is_enough = lease.group == group
            && u64::from(lease.bytes) >= bytes
            // Relaxed: a change of a limit does not wait for writes under way.
            && lease.era == ERA.load(Ordering::Relaxed);
        if is_enough {
            place.set(Lease { bytes: lease.bytes - bytes as u32, ..lease });
        }
        is_enough
    })
}

/// Gives the thread a lease of a group with this much credit left. Returns the size of the lease in
/// bytes.
pub(crate) fn take(group: u64, credit: u64) -> u64 {
    let bytes = (credit / LEASE_SHARE).min(LEASE_BYTES_MAX);
    LEASES.with(|leases| {
        let place = &leases[group as usize % NR_LEASES];
        place.set(Lease { group, era: ERA.load(Ordering::Relaxed), bytes: bytes as u32 });
    });
    bytes
}

/// Ends the leases of all threads.
pub(crate) fn end_all() {
    ERA.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_its_groups_and_ends_with_a_new_limit() {
        let bytes = take(1 << 40, 800);
        assert_eq!(bytes, 100);
        assert!(spend(1 << 40, 60) && !spend(1 << 40, 60) && spend(1 << 40, 40) && !spend(1 << 40, 1));
        take(1 << 40, 800);
        assert!(!spend((1 << 40) + NR_LEASES as u64, 1), "another group's");
        end_all();
        assert!(!spend(1 << 40, 1));
    }

    #[test]
    fn a_lease_is_bounded() {
        assert_eq!(take(1 << 41, u64::MAX), LEASE_BYTES_MAX);
    }
}
