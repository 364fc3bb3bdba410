//! The reads that stores have begun, and how many there may be at once.
//!
//! A read that a store has begun costs a connection, so a flood of them could take the descriptors
//! of the whole process. All together may use a quarter of those, a tenant or a store half of that,
//! and a tenant on one store a quarter of it; a group in a tenant half of what the one above it
//! may. The volumes of one bucket count as one store here: it answers them all slowly if it answers
//! one so. The first read of a tenant on a store is begun however many run, as long as all together
//! use no more than half of the descriptors: stores that hang take nothing from the others. Further
//! reads wait without a thread. They hold nothing that others wait for except pages in flight
//! beyond a limit, which are claimed first.
//!
//! A claim is given back when the store has ended the read, whatever has become of its reader.

use std::sync::Arc;

use umemcg_group::Group;

use crate::shared_room::{Claim, Claimant, LEAST_SHARE, SharedRoom, TakeClaim};
use crate::store::StoreId;

/// The part of the process's descriptors that they may use, without first ones.
const DESCRIPTORS_SHARE: u64 = 4;
/// So many may be begun however few descriptors there are.
const NR_READS_LEAST: u64 = 64;
/// More are not faster.
const NR_READS_MAX: u64 = 1024;

/// See the module text.
#[derive(Debug)]
pub(crate) struct BegunReads(Arc<SharedRoom>);

impl BegunReads {
    /// The limit of descriptors that the process has now counts from now on.
    pub(crate) fn new() -> Self {
        Self(SharedRoom::new(nr_reads(nr_descriptors())))
    }

    /// Claims one read if it may be begun now.
    pub(crate) fn try_claim(&self, group: &Group, source: StoreId) -> Option<Claim> {
        self.0.try_claim(Claimant::on_store(group, source), 1)
    }

    /// Claims one read that no reader waits for: only as long as no other waits for its place, and
    /// the group has begun less on the store than half of what it may.
    pub(crate) fn try_claim_ahead(&self, group: &Group, source: StoreId) -> Option<Claim> {
        self.0.try_claim_spare(Claimant::on_store(group, source), 1)
    }

    /// Returns how many reads are begun on a store, and how many wait to be.
    pub(crate) fn on_store(&self, source: StoreId) -> (u64, u64) {
        self.0.on_store(source)
    }

    /// Hands the claim of one read to `take`, which must not wait: immediately, or on the thread
    /// that ends another.
    pub(crate) fn when_room(&self, group: &Group, source: StoreId, take: TakeClaim) {
        self.0.when_room(Claimant::on_store(group, source), 1, take);
    }
}

/// Returns how many descriptors the process may have.
#[cfg(unix)]
fn nr_descriptors() -> u64 {
    use rustix::process::{Resource, getrlimit};

    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Elsewhere no such limit is known.
#[cfg(not(unix))]
fn nr_descriptors() -> u64 {
    u64::MAX
}

fn nr_reads(descriptors: u64) -> u64 {
    (descriptors / DESCRIPTORS_SHARE).clamp(NR_READS_LEAST, NR_READS_MAX)
}

/// However deep its group is, a read may begin.
const _: () = assert!(NR_READS_LEAST >= LEAST_SHARE);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_room::WITH_FIRST;

    #[test]
    fn reads_use_a_quarter_of_the_descriptors() {
        assert_eq!([0, 1024, 4000, u64::MAX].map(nr_reads), [64, 256, 1000, 1024]);
        assert_eq!(WITH_FIRST * nr_reads(1024), 1024 / 2, "with first ones");
    }
}
