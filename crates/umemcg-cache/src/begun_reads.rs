//! The reads begun by stores, and the limit on their number.
//!
//! A begun read costs a connection, so a flood of reads could take the descriptors of the whole
//! process. All reads together may use a quarter of the descriptors, a tenant or a store half of
//! that quarter, and a tenant on one store a quarter of it. A group within a tenant may use half of
//! its parent's part. The volumes of one bucket count as one store here: a bucket slow for one
//! volume is slow for all. The first read of a tenant on a store is begun however many run, as long
//! as all reads together use no more than half of the descriptors, so hanging stores take nothing
//! from the others. Further reads wait without a thread. They hold nothing awaited by others except
//! pages in flight beyond a limit, which are claimed first.
//!
//! A claim is returned when the store has ended the read, whether or not its reader still waits.

use std::sync::Arc;

use umemcg_group::Group;

use crate::shared_room::{Claim, Claimant, LEAST_SHARE, SharedRoom, TakeClaim};
use crate::store::StoreId;

/// Reads may use one part in this many of the process's descriptors, not counting first reads.
const DESCRIPTORS_SHARE: u64 = 4;
/// This many may be begun however few descriptors there are.
const NR_READS_LEAST: u64 = 64;
/// More are not faster.
const NR_READS_MAX: u64 = 1024;

/// See the module text.
#[derive(Debug)]
pub(crate) struct BegunReads(Arc<SharedRoom>);

impl BegunReads {
    /// Takes the process's present limit on descriptors; later changes of it do not count.
    pub(crate) fn new() -> Self {
        Self(SharedRoom::new(nr_reads(nr_descriptors())))
    }

    /// Claims one read if it may be begun now.
    pub(crate) fn try_claim(&self, group: &Group, source: StoreId) -> Option<Claim> {
        self.0.try_claim(Claimant::on_store(group, source), 1)
    }

    /// Claims one read for read-ahead: only while no other read waits for its place, and the group
    /// has begun less than half of the reads allowed to it on the store.
    pub(crate) fn try_claim_ahead(&self, group: &Group, source: StoreId) -> Option<Claim> {
        self.0.try_claim_spare(Claimant::on_store(group, source), 1)
    }

    /// Returns the number of reads begun on a store, and the number waiting to be begun.
    pub(crate) fn on_store(&self, source: StoreId) -> (u64, u64) {
        self.0.on_store(source)
    }

    /// Hands the claim of one read to `take`, immediately or on the thread that ends another read.
    /// `take` must not wait.
    pub(crate) fn when_room(&self, group: &Group, source: StoreId, take: TakeClaim) {
        self.0.when_room(Claimant::on_store(group, source), 1, take);
    }
}

/// Returns the process's limit on descriptors.
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
