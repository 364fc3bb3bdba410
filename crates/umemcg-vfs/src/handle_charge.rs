//! The memory of a group's open handles.
//!
//! It is charged to the opener's group. A group without room still opens a few files, charged to
//! its parent, so that programs at their limit go on. Beyond [`NR_HANDLES_BEYOND_MAX`] of them an
//! open is refused. Descriptors: see [`crate::host::descriptor_share`].

use std::sync::{Arc, LazyLock};

use rustix::io::Errno;
use umemcg::{Charge, ChargeEffort, Engine, Group};

use crate::allowance::{Allowance, AllowanceClaim};
use crate::slab::Slab;

/// The cost of an open file or directory with its place in the table of handles, in bytes.
pub const HANDLE_BYTES: u64 = 400;
/// The most handles that a level without room may have charged to its ancestors.
pub const NR_HANDLES_BEYOND_MAX: usize = 1024;

/// The handles beyond limits, of all groups.
static BEYOND: LazyLock<Allowance> = LazyLock::new(|| Allowance::new(NR_HANDLES_BEYOND_MAX));

/// The memory of one handle; given back when dropped, with no lock held.
#[derive(Debug)]
pub(crate) struct HandleCharge {
    _slab: Slab,
    _beyond: Vec<AllowanceClaim>,
}

impl HandleCharge {
    /// Charges a handle and `more_bytes` for its data to a group, or to an ancestor. May sleep for
    /// reclaim; no lock may be held.
    ///
    /// # Errors
    /// `ENOMEM`, see the module text.
    pub(crate) fn take(
        effort: ChargeEffort,
        engine: &Engine,
        group: &Arc<Group>,
        more_bytes: u64,
    ) -> Result<Self, Errno> {
        let charged = BEYOND.charge(effort, engine, group, HANDLE_BYTES + more_bytes)?;
        Ok(Self::of(charged))
    }

    fn of((charge, beyond): (Charge, Vec<AllowanceClaim>)) -> Self {
        Self { _slab: Slab::of(charge), _beyond: beyond }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use umemcg::{EngineConfig, EventKind};

    fn take(
        allowance: &'static Allowance,
        engine: &Engine,
        group: &Arc<Group>,
    ) -> Result<HandleCharge, Errno> {
        allowance.charge(ChargeEffort::Full, engine, group, HANDLE_BYTES).map(HandleCharge::of)
    }

    /// An engine, and an allowance of the test's own.
    fn engine() -> (Arc<Engine>, &'static Allowance) {
        let config = EngineConfig::new(16 << 20);
        let allowance = Box::leak(Box::new(Allowance::new(NR_HANDLES_BEYOND_MAX)));
        (Engine::new(config).unwrap(), allowance)
    }

    #[test]
    fn a_full_group_opens_so_many_handles_and_no_more() {
        let (engine, allowance) = engine();
        let tenant = engine.create_group(engine.root(), "t".as_ref()).unwrap();
        let below = engine.create_group(&tenant, "below".as_ref()).unwrap();
        engine.set_max(&tenant, 0);
        let before = engine.root().usage_bytes();
        let mut taken: Vec<_> = (0..NR_HANDLES_BEYOND_MAX)
            .map(|n| {
                let group = if n % 2 == 0 { &tenant } else { &below };
                take(allowance, &engine, group).unwrap()
            })
            .collect();
        assert!(engine.root().usage_bytes() - before >= NR_HANDLES_BEYOND_MAX as u64 * HANDLE_BYTES);
        for group in [&tenant, &below] {
            assert_eq!(take(allowance, &engine, group).unwrap_err(), Errno::NOMEM);
        }
        taken.pop();
        assert!(take(allowance, &engine, &below).is_ok());
        drop(taken);
        assert!(allowance.is_untouched());
    }

    #[test]
    fn a_full_group_is_reclaimed_from_for_one_handle_in_32() {
        let (engine, allowance) = engine();
        let tenant = engine.create_group(engine.root(), "t".as_ref()).unwrap();
        engine.set_max(&tenant, 0);
        let take = || self::take(allowance, &engine, &tenant);
        let mut taken: Vec<_> = (0..320).map(|_| take().unwrap()).collect();
        assert_eq!(tenant.event_count(EventKind::Oom), 10);
        // Handles that come and go count as well.
        for _ in 0..320 {
            taken.pop();
            taken.push(take().unwrap());
        }
        assert_eq!(tenant.event_count(EventKind::Oom), 20);
        // At the end of the allowance each attempt may find room.
        taken.extend((320..NR_HANDLES_BEYOND_MAX).map(|_| take().unwrap()));
        let before = tenant.event_count(EventKind::Oom);
        (0..5).for_each(|_| assert_eq!(take().unwrap_err(), Errno::NOMEM));
        assert_eq!(tenant.event_count(EventKind::Oom), before + 5);
        // None beyond the limit, and the first is tried again.
        drop(taken);
        drop(take().unwrap());
        assert_eq!(tenant.event_count(EventKind::Oom), before + 6);
    }
}
