//! The memory of a group's open handles.
//!
//! It is charged to the opener's group. A group that has no room still opens a few files, at its
//! parent's cost, so that programs at their limit go on; after [`NR_HANDLES_BEYOND_MAX`] of them an
//! open is refused. Descriptors: see [`crate::descriptor_share`].

use std::sync::{Arc, LazyLock};

use rustix::io::Errno;
use umemcg::{ChargeError, Engine, Group};

use crate::allowance::{Allowance, AllowanceClaim};
use crate::slab::Slab;

/// The cost of an open file or directory with its place in the table of handles, in bytes.
pub const HANDLE_BYTES: u64 = 400;
/// Most handles that a level without room may have charged above it.
pub const NR_HANDLES_BEYOND_MAX: usize = 1024;

/// Of all groups.
static BEYOND: LazyLock<Allowance> = LazyLock::new(|| Allowance::new(NR_HANDLES_BEYOND_MAX));

/// The memory of one handle; given back when dropped, with no lock held.
#[derive(Debug)]
pub(crate) struct HandleCharge {
    _slab: Slab,
    _beyond: Vec<AllowanceClaim>,
}

impl HandleCharge {
    /// Charges a handle and `more_bytes` that go with it to a group, or to one above it. May sleep
    /// for reclaim; no lock may be held.
    ///
    /// # Errors
    /// `ENOMEM`, see the module text.
    pub(crate) fn take(engine: &Engine, group: &Arc<Group>, more_bytes: u64) -> Result<Self, Errno> {
        Self::take_of(&BEYOND, engine, group, more_bytes)
    }

    fn take_of(
        allowance: &'static Allowance,
        engine: &Engine,
        group: &Arc<Group>,
        more_bytes: u64,
    ) -> Result<Self, Errno> {
        let mut beyond = Vec::new();
        let mut at = Arc::clone(group);
        // Bounded by the depth of the tree: each round goes up at least one level.
        loop {
            match engine.charge(&at, HANDLE_BYTES + more_bytes) {
                Ok(charge) => return Ok(Self { _slab: Slab::of(charge), _beyond: beyond }),
                Err(ChargeError::Limit(refused)) => {
                    let above = Arc::clone(refused.group.parent().ok_or(Errno::NOMEM)?);
                    beyond.push(allowance.take(refused.group)?);
                    at = above;
                }
                Err(_) => return Err(Errno::NOMEM),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use umemcg::EngineConfig;

    #[test]
    fn a_full_group_opens_so_many_handles_and_no_more() {
        let allowance: &'static Allowance = Box::leak(Box::new(Allowance::new(NR_HANDLES_BEYOND_MAX)));
        let engine = Engine::new(EngineConfig { pool_bytes: 16 << 20, ..EngineConfig::default() }).unwrap();
        let tenant = engine.create_group(engine.root(), "t".as_ref()).unwrap();
        let below = engine.create_group(&tenant, "below".as_ref()).unwrap();
        engine.set_max(&tenant, 0, &|| false);
        let before = engine.root().usage_bytes();
        let mut taken: Vec<_> = (0..NR_HANDLES_BEYOND_MAX)
            .map(|n| {
                let group = if n % 2 == 0 { &tenant } else { &below };
                HandleCharge::take_of(allowance, &engine, group, 0).unwrap()
            })
            .collect();
        assert!(engine.root().usage_bytes() - before >= NR_HANDLES_BEYOND_MAX as u64 * HANDLE_BYTES);
        for group in [&tenant, &below] {
            assert_eq!(HandleCharge::take_of(allowance, &engine, group, 0).unwrap_err(), Errno::NOMEM);
        }
        taken.pop();
        assert!(HandleCharge::take_of(allowance, &engine, &below, 0).is_ok());
        drop(taken);
        assert!(allowance.is_untouched());
    }
}
