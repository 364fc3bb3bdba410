//! [`Refusal`]: the reason for a refused growth, and the caller's options.

use std::sync::Arc;

use thiserror::Error;
use umemcg_group::{Group, Refused, StatItem};

use crate::commitments::Overcommitted;

/// The statistics of reclaimable memory.
const RECLAIMABLE: [StatItem; 4] =
    [StatItem::InactiveFile, StatItem::ActiveFile, StatItem::FileKernel, StatItem::SlabReclaimable];

/// Why an account did not grow. All numbers are in bytes.
///
/// A refusal is an ordinary result, returned in less than a microsecond if nothing can be
/// reclaimed: a refused query spills. It counts no `oom` event.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// More than the limit of a group, whatever is given back. Ask for less, or raise the limit.
    #[error(
        "{wanted} bytes never fit in group {}, whose limit is {limit} bytes: ask for less, or raise the limit",
        group.path().display()
    )]
    Never {
        /// The group with the lowest limit.
        group: Arc<Group>,
        /// The bytes that were asked for.
        wanted: u64,
        /// Its limit.
        limit: u64,
    },
    /// A group is full for now. Give something back, do with less, or wait.
    #[error(
        "{wanted} bytes do not fit in group {} now: {free} are free and about {reclaimable} might be reclaimed; \
         give memory back, do with less, or wait",
        group.path().display()
    )]
    NotNow {
        /// The lowest group whose limit the bytes would exceed.
        group: Arc<Group>,
        /// The bytes that were asked for.
        wanted: u64,
        /// The bytes still allowed by its limit.
        free: u64,
        /// The bytes of its pages and objects that could not be reclaimed now, because they are
        /// dirty, in use, or protected, or were cached just now. An estimate.
        reclaimable: u64,
    },
    /// The room is guaranteed to other groups. Do with less, or wait.
    #[error(
        "group {} cannot commit {wanted} bytes: {available} bytes are not guaranteed to others or in use; \
         do with less, or wait",
        group.path().display()
    )]
    Overcommitted {
        /// The lowest group whose commitments would exceed its limit.
        group: Arc<Group>,
        /// The bytes that were asked for.
        wanted: u64,
        /// The bytes it could still commit.
        available: u64,
    },
}

impl Refusal {
    /// Returns the refusal for a refused growth of an account of `group`.
    #[cold]
    pub(super) fn of(group: &Arc<Group>, refused: &Refused) -> Self {
        let wanted = refused.wanted_bytes;
        if let Some(never) = Self::never(group, wanted) {
            return never;
        }
        let full = &refused.group;
        let reclaimable: i64 = RECLAIMABLE.iter().map(|&item| full.stat_total_applied(item)).sum();
        Self::NotNow {
            group: Arc::clone(full),
            wanted,
            free: full.margin_bytes(),
            reclaimable: reclaimable.max(0) as u64,
        }
    }

    /// Returns the refusal for commitments without room.
    #[cold]
    pub(super) fn overcommitted(refused: Overcommitted, wanted: u64) -> Self {
        Self::Overcommitted { group: refused.group, wanted, available: refused.available_bytes }
    }

    /// Returns a refusal if `wanted` exceeds the limit of a level.
    pub(super) fn never(group: &Arc<Group>, wanted: u64) -> Option<Self> {
        let levels = std::iter::successors(Some(group), |at| at.parent());
        // Each is read once: it may change.
        let (limit, lowest) = levels.map(|at| (at.max_bytes(), at)).min_by_key(|&(limit, _)| limit)?;
        (wanted > limit).then(|| Self::Never { group: Arc::clone(lowest), wanted, limit })
    }

    /// Sets the bytes of the whole request.
    pub(super) fn of_all(mut self, all: u64) -> Self {
        match &mut self {
            Self::Never { wanted, .. } | Self::NotNow { wanted, .. } | Self::Overcommitted { wanted, .. } => {
                *wanted = all;
            }
        }
        self
    }

    /// Returns the group that refused.
    pub fn group(&self) -> &Arc<Group> {
        match self {
            Self::Never { group, .. } | Self::NotNow { group, .. } | Self::Overcommitted { group, .. } => {
                group
            }
        }
    }

    /// Returns whether waiting can help: whether the request fits once other holders give enough
    /// back.
    pub fn may_pass(&self) -> bool {
        !matches!(self, Self::Never { .. })
    }
}
