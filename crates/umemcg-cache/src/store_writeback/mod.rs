//! Write-back of one backing store: its dirty files in order, and the thread that writes them. A
//! hanging store holds up its own thread and no other. The thread starts with the first dirty file
//! and ends after a while without any (see [`crate::flushers`]), so a store without writers costs
//! no thread. This state lives as long as one of the store's files.

mod round;

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use umemcg_base::sync::Instant;
use umemcg_base::{LeafMutex, PAGE_SIZE_U64, Rank, RankedMutex, WakeSignal};
use umemcg_group::{Group, GroupPath, TurnQueue};
use umemcg_reclaim::owner_from;

use crate::dirty::bandwidth::{Bandwidth, RATE_FIRST};
use crate::dirty::dirty_file::DirtyFile;
use crate::dirty::dirty_queue::{DirtyQueue, Pushed};
use crate::dirty::lists::living;
use crate::dirty::paced_writers::PacedWriters;
use crate::dirty::refusal::Refusals;
use crate::dirty::unclean_counts::UncleanCounts;
use crate::flush_pace::FlushPace;
use crate::flushers::{LOOK_INTERVAL, StoreFlusher, Turn};
use crate::group_turn::{FlushGoal, GroupTurn, plan};
use crate::pool_writeback::PoolWriteback;
use crate::store::StoreId;
use round::{Round, RoundSchedule};

/// A flusher without dirty files ends after this long.
const FLUSHER_LIFE: Duration = Duration::from_secs(5);
/// The interval between the turns of a store while others wait for theirs.
const TURN_INTERVAL: Duration = Duration::from_secs(1);
/// First wait before a failed file is tried again; doubles up to [`RETRY_MAX`].
const RETRY_FIRST: Duration = Duration::from_millis(200);
/// Longest wait before a failed file is tried again.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Most files confirmed together.
const NR_TOGETHER_MAX: usize = 64;
/// The parts of a group's turn. Each file takes one, and one more for each such part of its budget.
const NR_TURN_PARTS: u64 = NR_TOGETHER_MAX as u64;
/// Growth of a store's dirty data, in pages, before thresholds are checked: this part of the room
/// left below them …
const LOOK_SHARE: u64 = 8;
/// … but not fewer …
const LOOK_PAGES_MIN: u64 = 64;
/// … and not more.
const LOOK_PAGES_MAX: u64 = 256;

/// One backing store's write-back.
pub struct StoreWriteback {
    id: StoreId,
    pool: Arc<PoolWriteback>,
    /// Files with dirty or unstable pages.
    queue: RankedMutex<DirtyQueue>,
    wake_signal: WakeSignal,
    /// Everything is to be written now.
    urgent: AtomicBool,
    /// Groups whose data is to be written, until the next round takes them. A leaf lock.
    wanted: LeafMutex<Vec<(Arc<Group>, FlushGoal)>>,
    stop: AtomicBool,
    unclean: UncleanCounts,
    /// Of its files' flushes, since it last accepted data.
    pub(crate) refusals: Refusals,
    /// Its write bandwidth. A leaf lock.
    bandwidth: LeafMutex<Bandwidth>,
    /// The estimate of `bandwidth`, in bytes a second. (A)
    write_bandwidth: AtomicU64,
    /// The value of `nr_unclean` at which a writer has thresholds checked. (A)
    look_at: AtomicU64,
    /// Groups over a threshold in the last round: the store is divided as their turns are. A leaf
    /// lock.
    sharing: LeafMutex<TurnQueue<()>>,
    /// The groups that the last round left, by their ids, the next first. A leaf lock.
    left_over: LeafMutex<Vec<u64>>,
    pub(crate) paced: PacedWriters,
    pace: LeafMutex<RoundSchedule>,
    me: Weak<StoreWriteback>,
}

impl fmt::Debug for StoreWriteback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreWriteback").field("id", &self.id).finish_non_exhaustive()
    }
}

impl StoreFlusher for StoreWriteback {
    fn flush_in_turn(&self, is_awaited: &dyn Fn() -> bool) -> Turn {
        let mut idle_since = Instant::now();
        let mut has_had_a_round = false;
        while !self.stop.load(Ordering::Acquire) {
            let (is_idle, awaited) = (self.queue.lock().dirty.is_empty(), is_awaited());
            if !is_idle {
                idle_since = Instant::now();
            } else if (awaited || idle_since.elapsed() >= FLUSHER_LIFE) && self.may_end() {
                return Turn::Done;
            }
            if has_had_a_round && awaited {
                return Turn::Again;
            }
            let pace = *self.pace.lock();
            let now = Instant::now();
            let sleep = self.pool.dirty_limits().sleep();
            // It ends in time when there is nothing to do.
            let sleep = if is_idle { sleep.min(FLUSHER_LIFE) } else { sleep };
            let timeout = match pace.retry {
                Some((_, wait)) => wait.min(sleep),
                None if pace.is_more => Duration::ZERO,
                // So that stores taking turns do not switch all the time.
                None if awaited => (pace.last_round + TURN_INTERVAL).saturating_duration_since(now),
                None => sleep,
            };
            let is_full = self.pool.flushers().is_full();
            self.wake_signal.wait(if is_full { timeout.min(LOOK_INTERVAL) } else { timeout });
            // Its next turn is as good as any.
            has_had_a_round = true;
            if let Some((until, _)) = pace.retry
                && Instant::now() < until
            {
                continue;
            }
            let wait = pace.retry.map_or(RETRY_FIRST, |(_, wait)| (wait * 2).min(RETRY_MAX));
            let outcome = self.round();
            let retry = outcome.is_err().then(|| (Instant::now() + wait, wait));
            *self.pace.lock() =
                RoundSchedule { retry, last_round: Instant::now(), is_more: outcome.unwrap_or(false) };
        }
        Turn::Done
    }

    fn after_panic(&self) {
        let taken = self.queue.lock().taken.clone();
        for file in taken {
            file.queue_mark().make_due();
            self.requeue_or_retire(file);
        }
        let retry = Some((Instant::now() + RETRY_MAX, RETRY_MAX));
        *self.pace.lock() = RoundSchedule { retry, last_round: Instant::now(), is_more: false };
    }
}

impl StoreWriteback {
    /// Returns the queue of a store.
    pub(crate) fn new(pool: &Arc<PoolWriteback>, id: StoreId) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            id,
            pool: Arc::clone(pool),
            queue: RankedMutex::new(Rank::DirtyFiles, DirtyQueue::default()),
            wake_signal: WakeSignal::new(),
            urgent: AtomicBool::new(false),
            wanted: LeafMutex::default(),
            stop: AtomicBool::new(false),
            unclean: UncleanCounts::default(),
            refusals: Refusals::default(),
            bandwidth: LeafMutex::default(),
            write_bandwidth: AtomicU64::new(RATE_FIRST),
            look_at: AtomicU64::new(LOOK_PAGES_MIN),
            sharing: LeafMutex::default(),
            left_over: LeafMutex::default(),
            paced: PacedWriters::default(),
            pace: LeafMutex::new(RoundSchedule { retry: None, last_round: Instant::now(), is_more: false }),
            me: Weak::clone(me),
        })
    }

    pub(crate) fn id(&self) -> StoreId {
        self.id
    }

    /// Gets a thread for the queued files.
    fn start_flusher(&self) {
        if let Some(me) = self.me.upgrade() {
            self.pool.flushers().start(me);
        }
    }

    /// Returns whether nothing is queued, so that the flusher's thread may end: the next file gets
    /// another.
    fn may_end(&self) -> bool {
        let mut queue = self.queue.lock();
        queue.is_served &= !queue.dirty.is_empty();
        !queue.is_served
    }

    /// Ends the flusher once it has finished its current file. Does not wait for a hanging store.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake_signal.raise();
    }

    /// Wakes the flusher to check for due files. It may be waiting for a thread refused before.
    pub(crate) fn wake(&self) {
        self.wake_signal.raise();
        self.pool.flushers().start_thread();
    }

    /// Has a group's data written in the next round. When neither the group nor a group below it
    /// has a file here, files shared by several groups are written.
    pub(crate) fn want_flushed(&self, group: &Arc<Group>, how: FlushGoal) {
        if group.is_root() && how == FlushGoal::All {
            self.urgent.store(true, Ordering::Release);
        } else {
            let mut wanted = self.wanted.lock();
            match wanted.iter_mut().find(|(there, _)| Arc::ptr_eq(there, group)) {
                Some((_, there)) if how == FlushGoal::All => *there = how,
                Some(_) => {}
                None => wanted.push((Arc::clone(group), how)),
            }
        }
        self.wake();
    }

    /// Moves the files of a removed group to its parent.
    pub(crate) fn hand_over(&self, dying: &Arc<Group>, parent: &Arc<Group>) {
        self.queue.lock().dirty.hand_over(dying, parent);
        self.paced.forget(dying);
        self.unclean.forget(dying);
    }

    /// Returns the number of this store's pages not yet durable.
    pub fn nr_unclean(&self) -> u64 {
        self.unclean.total()
    }

    /// Returns the bytes here of a group, and the groups below it, not yet durable.
    pub(crate) fn unclean_bytes(&self, group: &Group) -> u64 {
        self.unclean.of(group) * PAGE_SIZE_U64
    }

    /// Adds pages of an owner to the count of pages not yet durable; `pages` may be negative.
    pub(crate) fn add_unclean(&self, owner: u32, pages: i64) {
        let now = owner_from(owner).with_group(|group| self.unclean.add(group, pages));
        if pages < 0 && now + LOOK_PAGES_MIN < self.look_at.load(Ordering::Relaxed) {
            self.look_at.store(now + LOOK_PAGES_MIN, Ordering::Relaxed);
        }
    }

    /// Checks the thresholds of a group and the groups above it, once enough data is dirty.
    #[cold]
    fn look_after(&self, owner: u32) {
        let gap = owner_from(owner).with_group(|group| self.pool.dirty_limits().gap_to_background(group));
        if gap.is_none() {
            self.wake();
        }
        let pages = gap.unwrap_or(0) / LOOK_SHARE / PAGE_SIZE_U64;
        self.look_at
            .store(self.nr_unclean() + pages.clamp(LOOK_PAGES_MIN, LOOK_PAGES_MAX), Ordering::Relaxed);
    }

    /// Returns the write bandwidth of the store, in bytes a second.
    pub fn write_bandwidth(&self) -> u64 {
        self.write_bandwidth.load(Ordering::Relaxed)
    }

    /// Returns the number of parts of the size of a group's part in the store.
    pub(crate) fn nr_sharing(&self, group: &Group) -> u64 {
        let path = GroupPath::of(group);
        self.sharing.lock().nr_parts(&path)
    }

    /// Returns the number of tenants with a part in the store.
    pub(crate) fn nr_tenants(&self) -> u64 {
        self.sharing.lock().nr_tenants()
    }

    /// Begins a call that writes to the store, or waits for it to confirm.
    pub(crate) fn begin_io(&self) {
        let mut bandwidth = self.bandwidth.lock();
        bandwidth.begin(self.pool.now());
    }

    /// Ends a call that wrote `bytes` to the store.
    pub(crate) fn end_io(&self, bytes: u64) {
        if bytes > 0 {
            self.refusals.taken();
        }
        let mut bandwidth = self.bandwidth.lock();
        self.write_bandwidth.store(bandwidth.end(self.pool.now(), bytes), Ordering::Relaxed);
    }

    /// Notes that a page of `owner` became dirty: queues the file, and wakes the flusher when there
    /// is enough to do in the pool.
    pub(crate) fn note_dirty<F: DirtyFile + 'static>(&self, file: &Arc<F>, owner: u32) {
        file.queue_mark().stamp(|| self.pool.now_ms());
        if !self.enqueue(&**file, || Arc::<F>::clone(file), || file.dirty_owner().acquire(owner)) {
            file.dirty_owner().note_dirtied(owner);
        }
        // A writer that asks for a pause after each write has checked thresholds itself. This check
        // is for all other writers.
        if self.nr_unclean() >= self.look_at.load(Ordering::Relaxed) {
            self.look_after(owner);
        }
    }

    /// Queues `file` if it is not queued; returns `true` if it was added.
    fn enqueue(
        &self,
        file: &dyn DirtyFile,
        hold: impl FnOnce() -> Arc<dyn DirtyFile>,
        group: impl FnOnce() -> Arc<Group>,
    ) -> bool {
        if !file.queue_mark().enter() {
            return false;
        }
        let group = group();
        let mut queue = self.queue.lock();
        let pushed = Pushed::to(&mut queue, &group, hold());
        drop(queue);
        self.serve(file, pushed);
        true
    }

    /// Ensures that a pushed file is written. Called without the lock of the queue.
    fn serve(&self, file: &dyn DirtyFile, pushed: Pushed) {
        if !pushed.is_served {
            self.start_flusher();
        } else if file.queue_mark().is_due() {
            self.wake_signal.raise();
        }
    }

    /// Releases a discarded or clean file now, unless the flusher is writing it and will release
    /// it.
    pub(crate) fn forget(&self, file: &dyn DirtyFile) {
        let mut queue = self.queue.lock();
        let Some(file) = queue.dirty.remove(file) else { return };
        let (pushed, _group) = self.retire(&mut queue, &file);
        drop(queue);
        if let Some(pushed) = pushed {
            self.serve(&*file, pushed);
        }
    }

    /// Releases files that have become clean since the flusher looked at them.
    pub(crate) fn forget_clean(&self) {
        let queue = self.queue.lock();
        let clean: Vec<_> = queue.dirty.files().filter(|file| file.is_stable()).cloned().collect();
        drop(queue);
        clean.iter().for_each(|file| self.forget(&**file));
    }

    /// Releases all files and queues no more: at the end of the engine, since a queued file keeps
    /// this queue, and with it the pool.
    pub(crate) fn close(&self) {
        // Dropped without the lock: it may be the last reference to some.
        let _files = self.queue.lock().close();
    }

    /// Has the file written soon, not at its expiry.
    pub(crate) fn flush_soon(&self, file: &dyn DirtyFile) {
        file.queue_mark().make_due();
        self.wake();
    }

    /// Runs one round over the files queued at its beginning: tenants in turn, and the groups in a
    /// tenant. A failed file goes behind the others of its group and stays due. A few failures end
    /// the round, or its time, and the next round begins with the groups not reached. Returns
    /// whether due files are left.
    fn round(&self) -> std::io::Result<bool> {
        let urgent = self.urgent.swap(false, Ordering::AcqRel);
        let wanted = std::mem::take(&mut *self.wanted.lock());
        let first = std::mem::take(&mut *self.left_over.lock());
        // Copied first: a writer's first write to a clean file waits for this lock.
        let groups = self.queue.lock().dirty.groups();
        let (mut turns, mut sharing) = (TurnQueue::default(), TurnQueue::default());
        for turn in plan(&groups, &self.pool, &wanted, &first) {
            let path = GroupPath::of(&turn.group);
            if turn.is_over {
                sharing.push(path, ());
            }
            turns.push(path, turn);
        }
        // The former one is dropped without the lock.
        let _former = std::mem::replace(&mut *self.sharing.lock(), sharing);
        let mut round = Round::default();
        while self.goes_on(&round)
            && let Some((path, mut turn)) = turns.pop()
        {
            if self.write_next(&mut turn, !turns.is_empty(), urgent, &mut round) {
                turns.push(path, turn);
            }
        }
        self.confirm(&mut round);
        let left: Vec<GroupTurn> = std::iter::from_fn(|| turns.pop()).map(|(_, turn)| turn).collect();
        let is_cut = !left.is_empty() && !round.needs_rest();
        if is_cut {
            round.is_more = true;
            self.pass_on(&left, urgent, &wanted);
        }
        *self.left_over.lock() = left.iter().map(|turn| turn.group.id()).collect();
        // A few failures give the store no rest while others wait for their turns.
        round.error.filter(|_| !is_cut).map_or(Ok(round.is_more), Err)
    }

    /// Returns whether the round has time for another file.
    fn goes_on(&self, round: &Round) -> bool {
        round.goes_on() && !self.stop.load(Ordering::Acquire)
    }

    /// Gives a group its turn: a long file, or as many small ones as are confirmed together. If a
    /// file has more to write, the group has another turn while others wait for theirs. Returns
    /// whether it has one.
    fn write_next(&self, turn: &mut GroupTurn, others_wait: bool, urgent: bool, round: &mut Round) -> bool {
        let mut nr_parts = 0;
        while nr_parts < NR_TURN_PARTS && self.goes_on(round) {
            let is_over =
                turn.is_over && (turn.all || self.pool.dirty_limits().is_over_background(&turn.group));
            let now_ms = self.pool.now_ms();
            let expire_ms = self.pool.dirty_limits().expire().as_millis() as u64;
            let due = |file: &dyn DirtyFile| {
                urgent
                    || is_over
                    || file.queue_mark().is_older_than(expire_ms, now_ms)
                    || turn.shared && file.dirty_owner().is_shared()
            };
            let goes = |file: &dyn DirtyFile| due(file) || file.is_stable();
            let Some(file) = self.take(&turn.group, &mut turn.left, goes) else {
                // The files of a removed group are its parent's, whose turn may be over.
                if turn.left > 0 && turn.group.is_dead() {
                    self.continue_later(turn, urgent, round);
                }
                return false;
            };
            // A file that was clean may be dirty again by now, and young.
            if !due(&*file) {
                self.requeue_or_retire(file);
                continue;
            }
            let (nr, is_more) = self.write_turn(file, &turn.group, round);
            nr_parts += nr;
            if is_more {
                self.continue_later(turn, urgent, round);
                turn.left += usize::from(others_wait);
            }
        }
        turn.left > 0
    }

    /// Passes requests on to the next round, for the groups that have a turn left. A group without
    /// a file of its own asks again.
    fn pass_on(&self, left: &[GroupTurn], urgent: bool, wanted: &[(Arc<Group>, FlushGoal)]) {
        self.urgent.fetch_or(urgent, Ordering::Release);
        let left: HashSet<u64> = left.iter().flat_map(|turn| turn.group.ancestors().map(Group::id)).collect();
        for (over, how) in wanted.iter().filter(|(over, _)| left.contains(&over.id())) {
            self.want_flushed(living(over), *how);
        }
    }

    /// Passes the unfinished requests of this round on to the next. A removed group's requests go
    /// to its parent.
    fn continue_later(&self, turn: &GroupTurn, urgent: bool, round: &mut Round) {
        round.is_more = true;
        self.urgent.fetch_or(urgent, Ordering::Release);
        if turn.all {
            self.want_flushed(living(&turn.group), FlushGoal::All);
        }
    }

    /// Writes a file for as long as its turn lasts. Returns the parts of its group's turn that this
    /// takes, all of them after a failure, and whether there may be more to write.
    fn write_turn(&self, file: Arc<dyn DirtyFile>, group: &Arc<Group>, round: &mut Round) -> (u64, bool) {
        round.begin_turn();
        let since = file.queue_mark().begin_turn();
        let thresholds = self.pool.dirty_limits().thresholds(group);
        let pace = FlushPace::of_store(self.write_bandwidth(), thresholds);
        let result = Arc::clone(&file).flush_turn(&pace);
        let is_more = matches!(&result, Ok(written) if written.pages >= pace.budget);
        if is_more {
            // The rest is still due.
            file.queue_mark().put_back(since);
        }
        round.has_written |= result.is_ok();
        let nr_parts = match result {
            Ok(written) => 1 + written.pages * NR_TURN_PARTS / pace.budget,
            Err(_) => NR_TURN_PARTS,
        };
        match result {
            Ok(written) if written.is_unconfirmed => {
                round.written.push(file);
                round.nr_unconfirmed += written.pages;
                if round.written.len() >= NR_TOGETHER_MAX || round.nr_unconfirmed >= pace.confirm {
                    self.confirm(round);
                }
                return (nr_parts, false);
            }
            Ok(_) => {}
            Err(error) => round.failed(&*file, error),
        }
        // Small files wait for the turn of one long file at most.
        self.confirm(round);
        self.requeue_or_retire(file);
        self.pool.note_progress();
        (nr_parts, is_more)
    }

    /// Has the store confirm the files written in a round: all of them, even after failures. Pages
    /// lost by the store must be dirty again before a sync asks for them.
    fn confirm(&self, round: &mut Round) {
        round.nr_unconfirmed = 0;
        for file in std::mem::take(&mut round.written) {
            if let Err(error) = Arc::clone(&file).confirm_turn() {
                round.failed(&*file, error);
            }
            self.requeue_or_retire(file);
            self.pool.note_progress();
        }
    }

    fn take(
        &self,
        group: &Arc<Group>,
        left: &mut usize,
        is_due: impl Fn(&dyn DirtyFile) -> bool,
    ) -> Option<Arc<dyn DirtyFile>> {
        let mut queue = self.queue.lock();
        let file = queue.dirty.take(group.id(), left, is_due)?;
        queue.taken.push(Arc::clone(&file));
        Some(file)
    }

    fn requeue_or_retire(&self, file: Arc<dyn DirtyFile>) {
        // At the store's pace, whatever else it served meanwhile.
        let pages = file.dirty_owner().voters();
        let time = pages as f64 * PAGE_SIZE_U64 as f64 / self.write_bandwidth().max(1) as f64;
        let group = file.dirty_owner().end_round(Duration::from_secs_f64(time.min(60.0)));
        if let (false, Some(group)) = (file.is_stable(), group) {
            file.queue_mark().stamp(|| self.pool.now_ms());
            let mut queue = self.queue.lock();
            let (done, refused) = (queue.put_away(&*file), queue.push(&group, file));
            drop(queue);
            drop((done, refused));
            return;
        }
        let mut queue = self.queue.lock();
        let done = queue.put_away(&*file);
        let (pushed, _group) = self.retire(&mut queue, &file);
        drop(queue);
        drop(done);
        if let Some(pushed) = pushed {
            self.serve(&*file, pushed);
        }
    }

    /// Retires a file taken off its list. If a page has become dirty since, the file is pushed
    /// again under the same lock: a sync looking for dirty files finds it at any time. Returns its
    /// group, too; the caller drops it without the lock.
    fn retire(
        &self,
        queue: &mut DirtyQueue,
        held: &Arc<dyn DirtyFile>,
    ) -> (Option<Pushed>, Option<Arc<Group>>) {
        let file = &**held;
        let group = file.dirty_owner().release();
        let is_clean = file.queue_mark().leave(|| self.pool.now_ms(), || file.is_stable());
        // Entered by a writer, it is pushed by that writer.
        if is_clean || group.is_none() || !file.queue_mark().enter() {
            return (None, group);
        }
        let group = group.map(|group| file.dirty_owner().restore(group));
        let pushed = group.as_ref().map(|group| Pushed::to(queue, group, Arc::clone(held)));
        (pushed, group)
    }

    /// Returns the numbers of the files not yet durable.
    pub(crate) fn unclean_files(&self) -> Vec<u32> {
        let queue = self.queue.lock();
        queue
            .taken
            .iter()
            .chain(queue.dirty.files())
            .filter(|file| !file.is_stable())
            .map(|file| file.id())
            .collect()
    }
}

#[cfg(test)]
mod tests;
