//! The objects of every shrinker in a group: the table `memory.kmem.slabinfo`.

use std::sync::Arc;

use umemcg_group::Group;

use super::bits::UNIT_IDS;
use super::contract::{ShrinkTarget, Usage};
use super::registry::Shrinkers;
use crate::group_reclaim::GroupReclaim;
use crate::scan_control::Reason;

/// The objects of a shrinker in a group, as a line of `memory.kmem.slabinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlabUsage {
    /// The shrinker's name.
    pub name: String,
    /// Its objects and their bytes.
    pub usage: Usage,
}

/// Returns the objects of every shrinker with objects in `group` itself.
pub(crate) fn usage_of(shrinkers: &Shrinkers, group: &Arc<Group>) -> Vec<SlabUsage> {
    let Some(part) = GroupReclaim::if_present(group) else { return Vec::new() };
    let mut table: Vec<SlabUsage> = Vec::new();
    for unit in part.shrinker_bits().units() {
        for bit in (0..UNIT_IDS).filter(|bit| unit.bits() >> bit & 1 == 1) {
            let target = ShrinkTarget { group, reason: Reason::Proactive, wanted_bytes: 0 };
            let line = shrinkers.with(unit.base() + bit, |shrinker| shrinker.usage(&target));
            let Some((name, usage)) = line.flatten() else { continue };
            let line = SlabUsage { name, usage };
            if line.usage == Usage::default() {
                continue;
            }
            match table.iter_mut().find(|known| known.name == line.name) {
                Some(known) => {
                    known.usage.objects += line.usage.objects;
                    known.usage.reclaimable += line.usage.reclaimable;
                    known.usage.bytes += line.usage.bytes;
                }
                None => table.push(line),
            }
        }
    }
    table
}
