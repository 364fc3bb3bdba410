//! The paced writers of one store: their virtual clocks, and what they have dirtied of the pages of
//! other groups.
//!
//! A dirty page counts for the group to which it is charged, the *payer*, whichever group writes to
//! it. If only the limits of the writer's group slowed a writer, one tenant could keep another at
//! its dirty limit for ever. If all writers of a payer's pages shared one clock, the payer's own
//! writers would queue behind any number of others. So each group has a clock for its own writers,
//! and on each payer there is one more for each tenant that dirties its pages:
//!
//! 1. a write notes the pages of other groups that it has made dirty;
//! 2. the next pause of the writing group takes the notes, and waits for each payer as well as for
//!    its own limits (`file::write_pause`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use umemcg_base::LeafMutex;
use umemcg_group::{Group, GroupPath};

use crate::dirty::lists::living;
use crate::dirty::throttle::PacingClock;

/// Bytes of a group's pages made dirty by the writers of another group.
#[derive(Debug)]
pub(crate) struct ForeignBytes {
    pub(crate) payer: Arc<Group>,
    pub(crate) bytes: u64,
}

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct PacedWriters {
    /// By the ids of the payer, and of the group itself or the tenant that writes. A leaf lock.
    clocks: LeafMutex<HashMap<(u64, u64), PacingClock>>,
    /// What no pause has taken yet, by the id of the writing group. A leaf lock.
    foreign: LeafMutex<HashMap<u64, Vec<ForeignBytes>>>,
}

impl PacedWriters {
    /// Reserves time on the clock of a group's own writers; returns when it is over.
    pub(crate) fn reserve(&self, group: &Group, now: Duration, bytes: u64, rate: f64) -> Duration {
        self.with_clock((group.id(), group.id()), now, |clock| clock.reserve(now, bytes, rate))
    }

    /// Lets a writer of `bytes` of a payer's pages go on when its tenant's clock allows it, and
    /// reserves the time for them. Otherwise returns the wait before the writer asks again.
    pub(crate) fn pass(
        &self,
        writer: &Group,
        payer: &Group,
        now: Duration,
        bytes: u64,
        rate: f64,
    ) -> Option<Duration> {
        let key = (payer.id(), GroupPath::of(writer).tenant());
        self.with_clock(key, now, |clock| clock.pass(now, bytes, rate))
    }

    fn with_clock<R>(&self, key: (u64, u64), now: Duration, use_it: impl FnOnce(&mut PacingClock) -> R) -> R {
        let mut clocks = self.clocks.lock();
        if clocks.len() == clocks.capacity() {
            clocks.retain(|_, clock| !clock.is_idle(now));
        }
        use_it(clocks.entry(key).or_default())
    }

    /// Forgets the clock of a group's own writers: they are below its thresholds and need not wait.
    pub(crate) fn forget_clock(&self, group: &Group) {
        let mut clocks = self.clocks.lock();
        if !clocks.is_empty() {
            clocks.remove(&(group.id(), group.id()));
        }
    }

    /// Notes that a write made pages of `payer` dirty.
    pub(crate) fn note_foreign(&self, writer: &Arc<Group>, payer: Arc<Group>, bytes: u64) {
        let mut foreign = self.foreign.lock();
        // The thread that removes the group marks it first and takes this lock afterwards, in
        // `forget`: an entry made here has a living group.
        let notes = foreign.entry(living(writer).id()).or_default();
        match notes.iter_mut().find(|note| Arc::ptr_eq(&note.payer, &payer)) {
            Some(note) => note.bytes += bytes,
            None => notes.push(ForeignBytes { payer, bytes }),
        }
    }

    /// Takes the notes of a writing group.
    pub(crate) fn take_foreign(&self, writer: &Arc<Group>) -> Vec<ForeignBytes> {
        self.foreign.lock().remove(&living(writer).id()).unwrap_or_default()
    }

    /// Forgets a group that is being removed. Clocks of other tenants on it go when they are idle.
    pub(crate) fn forget(&self, dying: &Group) {
        self.clocks.lock().remove(&(dying.id(), dying.id()));
        let _notes = self.foreign.lock().remove(&dying.id());
    }
}
