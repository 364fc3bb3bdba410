//! The room in a staging directory: limits on the disk space of all drafts of a volume, and of each
//! tenant's drafts.

use std::collections::HashMap;
use std::sync::Arc;

use rustix::io::Errno;
use umemcg::Group;
use umemcg_base::LeafMutex;

use crate::tenant::tenant;

/// The least charge of a draft: its file and its record.
const DRAFT_BYTES_MIN: u64 = 8 << 10;
/// Of the room, one tenant may take three quarters.
const TENANT_QUARTERS: u64 = 3;

/// See the module text.
#[derive(Debug)]
pub(super) struct StagingRoom {
    /// (C)
    max_bytes: u64,
    used: LeafMutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    bytes: u64,
    /// By the address of the tenant (the group just below the root), which is kept.
    by_tenant: HashMap<usize, (Arc<Group>, u64)>,
}

impl StagingRoom {
    /// Creates the room of a directory whose lost drafts have `taken_bytes`.
    pub(super) fn new(max_bytes: u64, taken_bytes: u64) -> Arc<Self> {
        let used = Used { bytes: taken_bytes, by_tenant: HashMap::new() };
        Arc::new(Self { max_bytes, used: LeafMutex::new(used) })
    }

    /// Returns the bytes taken.
    #[cfg(test)]
    fn used_bytes(&self) -> u64 {
        self.used.lock().bytes
    }

    fn take(&self, tenant: &Arc<Group>, bytes: u64) -> Result<(), Errno> {
        let address = Arc::as_ptr(tenant).addr();
        let mut used = self.used.lock();
        let of_tenant = used.by_tenant.get(&address).map_or(0, |(_, bytes)| *bytes).saturating_add(bytes);
        let all = used.bytes.saturating_add(bytes);
        if all > self.max_bytes || of_tenant > self.max_bytes / 4 * TENANT_QUARTERS {
            return Err(Errno::NOSPC);
        }
        used.bytes = all;
        used.by_tenant.entry(address).or_insert_with(|| (Arc::clone(tenant), 0)).1 = of_tenant;
        Ok(())
    }

    fn give(&self, tenant: &Arc<Group>, bytes: u64) {
        let address = Arc::as_ptr(tenant).addr();
        let mut used = self.used.lock();
        used.bytes -= bytes;
        if let Some((_, of_tenant)) = used.by_tenant.get_mut(&address) {
            *of_tenant -= bytes;
            if *of_tenant == 0 {
                // Not the last reference: the claim has one.
                used.by_tenant.remove(&address);
            }
        }
    }
}

/// The room of one draft; given back when dropped.
#[derive(Debug)]
pub(super) struct RoomClaim {
    room: Arc<StagingRoom>,
    tenant: Arc<Group>,
    bytes: LeafMutex<u64>,
}

impl RoomClaim {
    /// Claims room for a draft of `len` bytes.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub(super) fn take(room: &Arc<StagingRoom>, group: &Arc<Group>, len: u64) -> Result<Self, Errno> {
        let tenant = Arc::clone(tenant(group));
        let bytes = bytes_of(len);
        room.take(&tenant, bytes)?;
        Ok(Self { room: Arc::clone(room), tenant, bytes: LeafMutex::new(bytes) })
    }

    /// Returns whether a draft of this length has room.
    pub(super) fn holds(&self, len: u64) -> bool {
        bytes_of(len) <= *self.bytes.lock()
    }

    /// Claims more, if a draft of this length needs it.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub(super) fn grow(&self, len: u64) -> Result<(), Errno> {
        // Taken before it is noted: the two locks are leaves. Two concurrent calls may take too
        // much for a moment.
        let wanted = bytes_of(len);
        let had = *self.bytes.lock();
        if wanted <= had {
            return Ok(());
        }
        let more = wanted - had;
        self.room.take(&self.tenant, more)?;
        let mut bytes = self.bytes.lock();
        let excess = (*bytes + more).saturating_sub(wanted.max(*bytes));
        *bytes = *bytes + more - excess;
        drop(bytes);
        self.room.give(&self.tenant, excess);
        Ok(())
    }

    /// Gives back the excess over a draft of this length.
    pub(super) fn shrink(&self, len: u64) {
        let wanted = bytes_of(len);
        let excess = {
            let mut bytes = self.bytes.lock();
            let excess = bytes.saturating_sub(wanted);
            *bytes -= excess;
            excess
        };
        self.room.give(&self.tenant, excess);
    }

    /// Keeps the room for good: its draft stays on disk.
    pub(super) fn keep(&self) {
        *self.bytes.lock() = 0;
    }
}

impl Drop for RoomClaim {
    fn drop(&mut self) {
        let bytes = *self.bytes.lock();
        self.room.give(&self.tenant, bytes);
    }
}

/// Returns the bytes counted for a draft of this length.
fn bytes_of(len: u64) -> u64 {
    len.saturating_add(DRAFT_BYTES_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use umemcg::internal::testing::hundred_below;
    use umemcg::{Engine, EngineConfig};

    #[test]
    fn one_tenant_leaves_a_quarter_and_what_is_kept_stays_taken() {
        let engine = Engine::new(EngineConfig::new(16 << 20)).unwrap();
        let [a, b] = ["a", "b"].map(|name| engine.create_group(engine.root(), name.as_ref()).unwrap());
        let below = engine.create_group(&a, "below".as_ref()).unwrap();
        let room = StagingRoom::new(4 << 20, 0);
        let first = RoomClaim::take(&room, &a, 0).unwrap();
        first.grow(2 << 20).unwrap();
        assert!(first.holds(2 << 20) && !first.holds((2 << 20) + 1));
        assert_eq!(RoomClaim::take(&room, &below, 1 << 20).unwrap_err(), Errno::NOSPC);
        let second = RoomClaim::take(&room, &b, 1 << 20).unwrap();
        assert_eq!(second.grow(3 << 20), Err(Errno::NOSPC));
        assert!(second.holds(1 << 20), "as before");
        first.shrink(1 << 20);
        RoomClaim::take(&room, &below, 1 << 20).unwrap();
        second.keep();
        drop((first, second));
        assert_eq!(room.used_bytes(), bytes_of(1 << 20));
    }

    #[test]
    fn a_hundred_groups_of_a_tenant_leave_a_quarter() {
        let engine = Engine::new(EngineConfig::new(16 << 20)).unwrap();
        let [many, one] =
            ["many", "one"].map(|name| engine.create_group(engine.root(), name.as_ref()).unwrap());
        let room = StagingRoom::new(64 * bytes_of(0), 0);
        let all = |group: &Arc<Group>| {
            std::iter::from_fn(|| RoomClaim::take(&room, group, 0).ok()).collect::<Vec<_>>()
        };
        let of_many: Vec<_> = hundred_below(engine.tree(), &many).iter().flat_map(all).collect();
        assert_eq!((of_many.len(), all(&one).len()), (48, 16));
    }
}
