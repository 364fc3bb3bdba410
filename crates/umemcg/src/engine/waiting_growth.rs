//! A growth that may wait: its state between two attempts, for a thread that blocks and for a
//! future alike.
//!
//! 1. It grows in steps, so that memory that was reclaimed stays charged while the rest is
//!    reclaimed.
//! 2. When it is refused, it takes a place among the waiters and tries once more: from then on it
//!    is woken when something is given back. It is also woken now and then, because pages and
//!    objects are freed without its being told.
//! 3. Each time it is woken it does what its [turn](Turn) allows, and sleeps again.
//! 4. It ends with all that it wanted, or with a refusal; then, and when it is dropped, it gives up
//!    its place, and what it has.

use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

use umemcg_base::sync::Instant;
use umemcg_base::{WakeSignal, assert_no_locks_held};
use umemcg_group::{Group, StatItem};
use umemcg_reclaim::{PageOwner, Stalled};

use super::account::Effort;
use super::{Account, Engine, Refusal};
use crate::waits::{LOOK_AGAIN, Ticket, Turn};

/// Bytes charged at a time.
const STEP_BYTES: u64 = 1 << 20;
/// The smallest step, for when others take what is freed as fast as it comes free.
const STEP_BYTES_MIN: u64 = 32 << 10;
/// Steps before a poll lets others run.
const STEPS_PER_POLL: u32 = 8;

/// The time for which a growth waits for dirty data to be written, with nothing gained, before it
/// is refused.
pub const DIRTY_WAIT_MAX: Duration = Duration::from_secs(30);

/// What a growth waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// For dirty data to be written.
    ForWriteback,
    /// For accounts to give back, too, and for limits to rise.
    ForAnything,
}

/// See the module.
#[derive(Debug)]
pub(super) struct WaitingGrowth {
    /// What it has so far.
    account: Account,
    wanted: u64,
    patience: Patience,
    ticket: Option<Ticket>,
    /// The last refusal.
    refusal: Option<Refusal>,
    /// The time that is lost for lack of memory.
    stalled: Option<Stalled>,
}

impl WaitingGrowth {
    pub(super) fn new(engine: &Arc<Engine>, group: &Arc<Group>, wanted: u64, patience: Patience) -> Self {
        let account = Account::new(engine, group);
        Self { account, wanted, patience, ticket: None, refusal: None, stalled: None }
    }

    /// Goes on as far as it can without sleeping. `Pending` means that `waker` is called when it is
    /// worth another attempt.
    pub(super) fn advance(&mut self, waker: &Waker) -> Poll<Result<(), Refusal>> {
        assert_no_locks_held("a wait for memory");
        let group = Arc::clone(self.account.group());
        if let Some(never) = Refusal::never(&group, self.wanted) {
            return self.end(Err(never));
        }
        if self.ticket.is_none() && self.engine().waits.is_any_of(&group) {
            self.queue(&group, waker);
        }
        for _ in 0..STEPS_PER_POLL {
            let turn = match self.ticket {
                Some(ticket) => self.engine().waits.update(ticket, None, waker),
                None => Turn::Keeps,
            };
            if turn == Turn::Waits {
                // What it took while another one of its group took a place before it.
                self.account.clear();
                return Poll::Pending;
            }
            let left = self.wanted - self.account.bytes();
            if left == 0 {
                return self.end(Ok(()));
            }
            let Err(refusal) = self.attempt(left, turn) else { continue };
            if !refusal.may_pass() || self.patience == Patience::ForWriteback && !is_unclean(refusal.group())
            {
                return self.end(Err(refusal));
            }
            let level = Arc::clone(refusal.group());
            self.refusal = Some(refusal);
            if is_unclean(&level) {
                self.engine().cache().start_writeback(&level);
            }
            let Some(ticket) = self.ticket else {
                self.queue(&level, waker);
                continue;
            };
            if self.engine().waits.update(ticket, Some(&level), waker) != Turn::Keeps {
                // Another one waits for the same, and has been waiting for longer.
                self.account.clear();
            }
            return Poll::Pending;
        }
        waker.wake_by_ref();
        Poll::Pending
    }

    /// Takes what was grown.
    pub(super) fn take(&mut self) -> Account {
        self.account.split(self.account.bytes())
    }

    /// Blocks until the growth ends, until the deadline, or without one for [`DIRTY_WAIT_MAX`]
    /// without progress.
    pub(super) fn block(mut self, deadline: Option<Instant>) -> Result<Account, Refusal> {
        assert_no_locks_held("a wait for memory");
        let signal = Arc::new(WakesThread::default());
        let waker = Waker::from(Arc::clone(&signal));
        let mut least_left = u64::MAX;
        let mut give_up = deadline.unwrap_or_else(|| Instant::now() + DIRTY_WAIT_MAX);
        loop {
            if let Poll::Ready(result) = self.advance(&waker) {
                return result.map(|()| self.take());
            }
            let left = self.wanted - self.account.bytes();
            let now = Instant::now();
            if deadline.is_none() && left < least_left {
                (least_left, give_up) = (left, now + DIRTY_WAIT_MAX);
            }
            if now >= give_up {
                return Err(self.give_up());
            }
            signal.0.wait(LOOK_AGAIN.min(give_up - now));
        }
    }

    fn engine(&self) -> &Arc<Engine> {
        self.account.engine()
    }

    /// Grows by as much as one step may bring.
    fn attempt(&self, left: u64, turn: Turn) -> Result<(), Refusal> {
        if turn == Turn::Tries {
            // All or nothing; what can be reclaimed, the first in line reclaims.
            return self.account.grow_with(left, Effort::Takes);
        }
        let is_first = self.refusal.is_none();
        if is_first {
            // Before anything is reclaimed in vain.
            self.account.check_room(left)?;
        }
        let effort = if is_first { Effort::Reclaims } else { Effort::ReclaimsAgain };
        let step = left.min(STEP_BYTES);
        let refusal = match self.account.grow_with(step, effort) {
            Ok(()) => return Ok(()),
            Err(refusal) => refusal,
        };
        let mut step = step;
        while step > STEP_BYTES_MIN {
            step = (step / 2).max(STEP_BYTES_MIN);
            if self.account.grow_with(step, Effort::Takes).is_ok() {
                return Ok(());
            }
        }
        Err(refusal)
    }

    /// Takes a place among the waiters.
    fn queue(&mut self, level: &Arc<Group>, waker: &Waker) {
        let group = self.account.group();
        self.ticket = Some(self.engine().waits.join(group, level, waker));
        self.stalled = Some(Stalled::begin(group));
    }

    /// Ends it; after a refusal, with nothing left and the numbers of the whole request.
    fn end(&mut self, result: Result<(), Refusal>) -> Poll<Result<(), Refusal>> {
        let result = result.map_err(|refusal| {
            self.account.clear();
            let whole = self.account.grow_with(self.wanted, Effort::Takes);
            self.account.clear();
            match refusal {
                // A limit that rose since then makes the answer late, but not another one.
                Refusal::Never { .. } => refusal,
                _ => whole.err().unwrap_or(refusal),
            }
            .of_all(self.wanted)
        });
        self.stalled = None;
        if let Some(ticket) = self.ticket.take() {
            self.engine().waits.leave(ticket);
        }
        Poll::Ready(result)
    }

    /// Ends it without what it wanted, and says why.
    fn give_up(mut self) -> Refusal {
        // One that was never its turn has not been refused yet.
        let group = Arc::clone(self.account.group());
        let waits = Refusal::NotNow { group, wanted: self.wanted, free: 0, reclaimable: 0 };
        let refusal = self.refusal.take().unwrap_or(waits);
        match self.end(Err(refusal.clone())) {
            Poll::Ready(Err(refusal)) => refusal,
            _ => refusal,
        }
    }
}

impl Drop for WaitingGrowth {
    fn drop(&mut self) {
        self.account.clear();
        let _ = self.end(Ok(()));
    }
}

/// Returns whether a group has data that write-back could make reclaimable.
fn is_unclean(group: &Group) -> bool {
    let unclean = [StatItem::FileDirty, StatItem::FileWriteback, StatItem::FileUnstable];
    unclean.iter().any(|&item| group.stat_total(item) > 0)
}

/// Wakes a thread that blocks.
#[derive(Debug, Default)]
struct WakesThread(WakeSignal);

impl Wake for WakesThread {
    fn wake(self: Arc<Self>) {
        self.0.raise();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EngineConfig;

    #[test]
    fn what_never_fits_is_told_so_although_a_limit_rises_meanwhile() {
        let engine = Engine::new(EngineConfig::new(4 << 20)).unwrap();
        let group = engine.create_group(engine.root(), "g".as_ref()).unwrap();
        engine.set_max(&group, 1 << 20, &|| false);
        let never = Refusal::never(&group, 2 << 20).unwrap();
        let mut growth = WaitingGrowth::new(&engine, &group, 2 << 20, Patience::ForAnything);
        let held = engine.reserve(&group, 1 << 20).unwrap();
        engine.set_max(&group, 2 << 20, &|| false);
        let ended = growth.end(Err(never));
        assert!(matches!(ended, Poll::Ready(Err(Refusal::Never { .. }))), "{ended:?}");
        drop(held);
    }

    #[test]
    fn one_behind_another_of_its_group_keeps_nothing() {
        let engine = Engine::new(EngineConfig::new(16 << 20)).unwrap();
        let group = engine.create_group(engine.root(), "g".as_ref()).unwrap();
        engine.set_max(&group, 4 << 20, &|| false);
        let [mut first, mut second] =
            [0; 2].map(|_| WaitingGrowth::new(&engine, &group, 4 << 20, Patience::ForAnything));
        // Both have taken a step before either was refused.
        second.account.grow_with(1 << 20, Effort::Takes).unwrap();
        assert!(first.advance(Waker::noop()).is_pending());
        assert!(second.advance(Waker::noop()).is_pending());
        assert_eq!(second.account.bytes(), 0);
        assert!(first.advance(Waker::noop()).is_ready());
    }
}
