//! A waiting growth: its state between two attempts, for both a blocked thread and a future.
//!
//! 1. It grows in steps, so that reclaimed memory stays charged while the rest is reclaimed.
//! 2. When refused, it takes a place among the waiters and tries once more: from then on it is
//!    woken when something is given back. It is also woken periodically, because freed pages and
//!    objects do not notify it.
//! 3. On each wakeup it acts as its [turn](Turn) allows, and sleeps again.
//! 4. It ends with all wanted bytes, or with a refusal. Then, and when dropped, it gives up its
//!    place and its bytes.

use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

use umemcg_base::sync::Instant;
use umemcg_base::{PAGE_SIZE_U64, WakeSignal, assert_no_locks_held};
use umemcg_group::{Group, StatItem};
use umemcg_reclaim::{PageOwner, Stalled};

use super::account::Effort;
use super::{Account, Engine, Refusal};
use crate::waits::{LOOK_AGAIN, Lacks, Ticket, Turn};

/// Bytes charged at a time.
const STEP_BYTES: u64 = 1 << 20;
/// The smallest step, for when others take memory as fast as it is freed.
const STEP_BYTES_MIN: u64 = 32 << 10;
/// Steps before a poll lets others run.
const STEPS_PER_POLL: u32 = 8;

/// How long a growth waits for write-back of dirty data, without progress, before it is refused.
pub const DIRTY_WAIT_MAX: Duration = Duration::from_secs(30);

/// The events a growth waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// Write-back of dirty data.
    ForWriteback,
    /// Also bytes given back by accounts, and rising limits.
    ForAnything,
}

/// See the module.
#[derive(Debug)]
pub(super) struct WaitingGrowth {
    /// The bytes so far.
    account: Account,
    wanted: u64,
    patience: Patience,
    ticket: Option<Ticket>,
    /// The last refusal.
    refusal: Option<Refusal>,
    /// Nothing was dirty after the last attempt.
    was_clean: bool,
    /// Measures the time stalled for lack of memory.
    stalled: Option<Stalled>,
}

impl WaitingGrowth {
    pub(super) fn new(engine: &Arc<Engine>, group: &Arc<Group>, wanted: u64, patience: Patience) -> Self {
        let account = Account::new(engine, group);
        let (ticket, refusal, stalled) = Default::default();
        Self { account, wanted, patience, ticket, refusal, was_clean: false, stalled }
    }

    /// Advances as far as possible without sleeping. After `Pending`, `waker` is called when
    /// another attempt is worthwhile.
    pub(super) fn advance(&mut self, waker: &Waker) -> Poll<Result<(), Refusal>> {
        assert_no_locks_held("a wait for memory");
        let group = Arc::clone(self.account.group());
        if let Some(never) = Refusal::never(&group, self.wanted) {
            return self.end(Err(never));
        }
        if self.ticket.is_none() && self.engine().waits.is_any_of(&group) {
            self.queue((&group, Lacks::Memory), waker);
        }
        let mut turn = Turn::Keeps;
        for _ in 0..STEPS_PER_POLL {
            turn = match self.ticket {
                Some(ticket) => self.engine().waits.update(ticket, None, waker),
                None => Turn::Keeps,
            };
            if turn == Turn::Waits {
                return self.wait_behind();
            }
            let left = self.wanted - self.account.bytes();
            if left == 0 {
                return self.end(Ok(()));
            }
            if let Err(refusal) = self.attempt(left, turn)
                && let Some(result) = self.refused(refusal, waker)
            {
                return result;
            }
        }
        if turn == Turn::Keeps {
            waker.wake_by_ref();
        } else {
            // It continues later; otherwise it would only reclaim for growths that keep their
            // bytes.
            self.account.clear();
        }
        Poll::Pending
    }

    /// Takes the grown bytes.
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
                return self.give_up();
            }
            signal.0.wait(LOOK_AGAIN.min(give_up - now));
        }
    }

    fn engine(&self) -> &Arc<Engine> {
        self.account.engine()
    }

    /// Waits behind another growth of its group, unless it waits for write-back and nothing is
    /// dirty.
    fn wait_behind(&mut self) -> Poll<Result<(), Refusal>> {
        // Give back bytes taken while the other growth got a place before this one.
        self.account.clear();
        if self.patience == Patience::ForWriteback && !is_unclean(self.engine().root()) {
            let refusal = self.last_refusal();
            return self.end(Err(refusal));
        }
        Poll::Pending
    }

    /// Decides how to proceed after a refusal; `None` means another attempt.
    fn refused(&mut self, refusal: Refusal, waker: &Waker) -> Option<Poll<Result<(), Refusal>>> {
        let (level, lacks) = (Arc::clone(refusal.group()), lacks(&refusal));
        let does_writeback_help = lacks == Lacks::Memory && is_unclean(&level);
        if !refusal.may_pass() {
            return Some(self.end(Err(refusal)));
        }
        if self.patience == Patience::ForWriteback && !does_writeback_help {
            // Data dirty during the attempt may have been written since: a second attempt decides.
            if lacks == Lacks::Commitments || std::mem::replace(&mut self.was_clean, true) {
                return Some(self.end(Err(refusal)));
            }
            self.refusal = Some(refusal);
            return None;
        }
        self.was_clean = false;
        self.refusal = Some(refusal);
        if does_writeback_help {
            self.engine().cache().start_writeback(&level);
        }
        let Some(ticket) = self.ticket else {
            self.queue((&level, lacks), waker);
            return None;
        };
        if self.engine().waits.update(ticket, Some((&level, lacks)), waker) != Turn::Keeps {
            // Another growth has been waiting longer for the same memory.
            self.account.clear();
        }
        Some(Poll::Pending)
    }

    /// Grows by as much as one step may bring.
    fn attempt(&mut self, left: u64, turn: Turn) -> Result<(), Refusal> {
        let result = if turn == Turn::Tries { self.attempt_whole(left) } else { self.attempt_step(left) };
        if result.is_ok() {
            self.was_clean = false;
        }
        result
    }

    /// Takes all or nothing. Reclaims one step of the missing bytes, and does not keep it.
    fn attempt_whole(&self, left: u64) -> Result<(), Refusal> {
        let Err(refusal) = self.account.grow_with(left, Effort::Takes) else { return Ok(()) };
        if let Refusal::NotNow { group, free, reclaimable, .. } = &refusal
            && free.saturating_add(*reclaimable) >= left
        {
            let step = left.saturating_sub(*free).min(STEP_BYTES);
            let goal = step.div_ceil(PAGE_SIZE_U64);
            if goal == 0 || self.engine().reclaimer().reclaim_promptly(group, goal).pages() > 0 {
                return Ok(());
            }
        }
        Err(refusal)
    }

    fn attempt_step(&self, left: u64) -> Result<(), Refusal> {
        let is_first = self.refusal.is_none();
        if is_first {
            // Check first, to avoid useless reclaim.
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
    fn queue(&mut self, refused: (&Arc<Group>, Lacks), waker: &Waker) {
        let group = self.account.group();
        self.ticket = Some(self.engine().waits.join(group, refused, waker));
        self.stalled = Some(Stalled::begin(group));
    }

    /// Ends the growth. A refused one is tried once more as a whole, so that it ends with all
    /// bytes, or with none and the numbers of the whole request.
    fn end(&mut self, result: Result<(), Refusal>) -> Poll<Result<(), Refusal>> {
        let result = result.or_else(|refusal| {
            self.account.clear();
            match refusal {
                // A limit raised since then does not change the result.
                Refusal::Never { .. } => Err(refusal),
                _ => self.account.grow_with(self.wanted, Effort::Takes),
            }
        });
        self.stalled = None;
        if let Some(ticket) = self.ticket.take() {
            self.engine().waits.leave(ticket);
        }
        Poll::Ready(result.map_err(|refusal| refusal.of_all(self.wanted)))
    }

    /// Ends the growth at its deadline.
    fn give_up(mut self) -> Result<Account, Refusal> {
        let refusal = self.last_refusal();
        match self.end(Err(refusal.clone())) {
            Poll::Ready(result) => result.map(|()| self.take()),
            Poll::Pending => Err(refusal),
        }
    }

    fn last_refusal(&mut self) -> Refusal {
        // A growth without a turn has not been refused yet.
        let group = Arc::clone(self.account.group());
        let waits = Refusal::NotNow { group, wanted: self.wanted, free: 0, reclaimable: 0 };
        self.refusal.take().unwrap_or(waits)
    }
}

impl Drop for WaitingGrowth {
    fn drop(&mut self) {
        self.account.clear();
        let _ = self.end(Ok(()));
    }
}

/// Returns the resource lacking after a refusal.
fn lacks(refusal: &Refusal) -> Lacks {
    match refusal {
        Refusal::Overcommitted { .. } => Lacks::Commitments,
        Refusal::Never { .. } | Refusal::NotNow { .. } => Lacks::Memory,
    }
}

/// Returns whether a group has data to be made reclaimable by write-back.
fn is_unclean(group: &Group) -> bool {
    let unclean = [StatItem::FileDirty, StatItem::FileWriteback, StatItem::FileUnstable];
    unclean.iter().any(|&item| group.stat_total(item) > 0)
}

/// Wakes a blocked thread.
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
        engine.set_max(&group, 1 << 20);
        let never = Refusal::never(&group, 2 << 20).unwrap();
        let mut growth = WaitingGrowth::new(&engine, &group, 2 << 20, Patience::ForAnything);
        let held = engine.reserve(&group, 1 << 20).unwrap();
        engine.set_max(&group, 2 << 20);
        let ended = growth.end(Err(never));
        assert!(matches!(ended, Poll::Ready(Err(Refusal::Never { .. }))), "{ended:?}");
        drop(held);
    }

    #[test]
    fn one_behind_another_of_its_group_keeps_nothing() {
        let engine = Engine::new(EngineConfig::new(16 << 20)).unwrap();
        let group = engine.create_group(engine.root(), "g".as_ref()).unwrap();
        engine.set_max(&group, 4 << 20);
        let [mut first, mut second] =
            [0; 2].map(|_| WaitingGrowth::new(&engine, &group, 4 << 20, Patience::ForAnything));
        // Both have taken a step before either was refused.
        second.account.grow_with(1 << 20, Effort::Takes).unwrap();
        assert!(first.advance(Waker::noop()).is_pending());
        assert!(second.advance(Waker::noop()).is_pending());
        assert_eq!(second.account.bytes(), 0);
        assert!(first.advance(Waker::noop()).is_ready());
    }

    /// An engine, and a full group in it.
    fn full() -> (Arc<Engine>, Arc<Group>, Account) {
        let engine = Engine::new(EngineConfig::new(16 << 20)).unwrap();
        let group = engine.create_group(engine.root(), "g".as_ref()).unwrap();
        engine.set_max(&group, 4 << 20);
        let held = engine.account(&group);
        held.try_grow(4 << 20).unwrap();
        (engine, group, held)
    }

    #[test]
    fn one_behind_another_does_not_wait_when_nothing_is_dirty() {
        let (engine, group, _held) = full();
        let [mut first, mut behind] = [Patience::ForAnything, Patience::ForWriteback]
            .map(|patience| WaitingGrowth::new(&engine, &group, 1 << 20, patience));
        assert!(first.advance(Waker::noop()).is_pending());
        engine.root().stat_add(StatItem::FileDirty, 4096);
        assert!(behind.advance(Waker::noop()).is_pending());
        engine.root().stat_add(StatItem::FileDirty, -4096);
        let refused = behind.advance(Waker::noop());
        assert!(matches!(refused, Poll::Ready(Err(Refusal::NotNow { free: 0, .. }))), "{refused:?}");
    }

    #[test]
    fn write_back_that_ends_after_an_attempt_gets_another_one() {
        let (engine, group, held) = full();
        let mut growth = WaitingGrowth::new(&engine, &group, 1 << 20, Patience::ForWriteback);
        let mut attempt = || {
            let refusal = growth.attempt(1 << 20, Turn::Keeps).unwrap_err();
            growth.refused(refusal, Waker::noop()).is_none()
        };
        // Nothing is dirty now; data may have been dirty during the attempt.
        assert_eq!([attempt(), attempt()], [true, false]);
        drop(held);
        assert!(growth.advance(Waker::noop()).is_ready());
    }

    #[test]
    fn what_comes_with_the_deadline_is_taken() {
        let (engine, group, held) = full();
        let mut growth = WaitingGrowth::new(&engine, &group, 1 << 20, Patience::ForAnything);
        assert!(growth.advance(Waker::noop()).is_pending());
        drop(held);
        assert_eq!(growth.give_up().unwrap().bytes(), 1 << 20);
        assert_eq!(engine.root().stat_total(StatItem::Reserved), 0);
    }

    #[test]
    fn what_guarantees_refuse_does_not_wait_for_write_back() {
        let engine = Engine::new(EngineConfig::new(16 << 20)).unwrap();
        let [owner, other] =
            ["owner", "other"].map(|name| engine.create_group(engine.root(), name.as_ref()).unwrap());
        let _share = engine.guarantee(&owner, 12 << 20).unwrap();
        other.stat_add(StatItem::FileDirty, 4096);
        let mut growth = WaitingGrowth::new(&engine, &other, 8 << 20, Patience::ForWriteback);
        let refused = growth.advance(Waker::noop());
        assert!(matches!(refused, Poll::Ready(Err(Refusal::Overcommitted { .. }))), "{refused:?}");
        other.stat_add(StatItem::FileDirty, -4096);
    }
}
