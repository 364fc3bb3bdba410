//! Registrations for events through `cgroup.event_control`, and the thread that detects events.
//!
//! One thread checks ten times a second, as long as there are listeners; groups without listeners
//! cost nothing, and charges do not touch this. A short rise of usage above a threshold between two
//! checks is detected by the group's peak; each check resets a peak kept for this purpose alone. A
//! listener ends when its process has closed the eventfd, checked twice a second. It also ends with
//! its group: the removal is its last event.
//!
//! A process that does not read its eventfd does not delay other listeners. The lock is held only
//! to find the listeners of an event. Listeners are signalled, looked up in `/proc` (by a separate
//! thread) and dropped without the lock.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use umemcg::PressureLevel;
use umemcg::{Engine, EventKind, Group};
use umemcg_base::clock::spawn_detached;
use umemcg_base::{Condvar, LeafMutex, Rank};

use crate::descriptors::EventSink;
use crate::error::ControlError;
use crate::group_control::GroupControl;
use crate::holder_share::{Holder, HolderShare};
use crate::peak::{PeakNote, PeakOf, Peaks};

/// Time from one check to the next.
const TICK: Duration = Duration::from_millis(100);
/// Checks from one search for closed eventfds to the next.
const TICKS_PER_SWEEP: u32 = 5;
/// Most listeners: each keeps a descriptor open.
const NR_LISTENERS_MAX: u64 = 1024;
/// The part of them kept for root.
const NR_LISTENERS_OF_ROOT: u64 = 128;

/// The ancestors notified of a level of pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "vmpressure_modes")]
pub(crate) enum Propagation {
    /// The nearest group with a listener.
    UntilHeard,
    /// Every ancestor.
    Always,
    /// No ancestor: only the reclaimed group.
    Never,
}

/// The event awaited by a listener.
#[derive(Debug)]
pub(crate) enum ListenerEvent {
    /// The usage crosses a threshold, either way.
    Usage { threshold: u64, was_at: bool },
    /// A charge failed for good, here or in an ancestor.
    Oom { seen: u64 },
    /// Reclaim reports this level of pressure, or a higher one.
    Level(PressureLevel, Propagation),
}

impl ListenerEvent {
    pub(crate) fn usage(threshold: u64) -> Self {
        Self::Usage { threshold, was_at: false }
    }

    pub(crate) fn oom() -> Self {
        Self::Oom { seen: 0 }
    }

    /// Takes the present state as the base, without an event.
    fn start(&mut self, group: &Group) {
        match self {
            Self::Usage { threshold, was_at } => *was_at = group.usage_bytes() >= *threshold,
            Self::Oom { seen } => *seen = nr_oom(group),
            Self::Level(..) => {}
        }
    }

    /// Returns the number of events since the last check. `peak` is the highest usage since then,
    /// `usage` the present usage.
    fn look(&mut self, group: &Group, usage: u64, peak: u64) -> u64 {
        match self {
            Self::Usage { threshold, was_at } => {
                let is_at = usage >= *threshold;
                let there_and_back = !*was_at && !is_at && peak >= *threshold;
                let nr_crossings = u64::from(*was_at != is_at) + 2 * u64::from(there_and_back);
                *was_at = is_at;
                nr_crossings
            }
            Self::Oom { seen } => {
                let now = nr_oom(group);
                now - std::mem::replace(seen, now)
            }
            Self::Level(..) => 0,
        }
    }
}

/// Returns the number of charges that failed for good for lack of room in the group or an ancestor.
fn nr_oom(group: &Group) -> u64 {
    group.ancestors().map(|at| at.event_count_local(EventKind::Oom)).sum()
}

#[derive(Debug)]
struct Listener {
    awaited: ListenerEvent,
    holder: Holder,
    sink: Arc<dyn EventSink>,
}

/// Signals to send after the lock is released: listeners, each with its number of events. Ended
/// listeners are dropped with it.
#[derive(Debug, Default)]
struct PendingSignals(Vec<(Arc<dyn EventSink>, u64)>);

impl PendingSignals {
    fn add(&mut self, sink: &Arc<dyn EventSink>, nr_events: u64) {
        self.0.push((Arc::clone(sink), nr_events));
    }

    /// Sends them in the order in which they were found.
    fn notify(self) {
        self.0.into_iter().for_each(|(sink, nr_events)| sink.signal(nr_events));
    }
}

/// The listeners of one group.
#[derive(Debug)]
struct GroupListeners {
    group: Weak<Group>,
    /// The highest usage since the last check.
    peak: Arc<PeakNote>,
    listeners: Vec<Listener>,
}

impl GroupListeners {
    fn look(&mut self, group: &Group, peaks: &Peaks, news: &mut PendingSignals) {
        // Take the peak before the usage: a rise in between is in the usage or in the next peak.
        let peak = peaks.take(group, &self.peak);
        let usage = group.usage_bytes();
        for Listener { awaited, sink, .. } in &mut self.listeners {
            let nr_events = awaited.look(group, usage, peak);
            if nr_events > 0 {
                news.add(sink, nr_events);
            }
        }
    }

    /// Handles the end of a window at `level`; `is_above` is set for an ancestor of the reclaimed
    /// group. Returns whether a listener was signalled.
    #[doc(alias = "vmpressure_event")]
    fn notify(
        &self,
        level: PressureLevel,
        is_above: bool,
        is_heard: bool,
        news: &mut PendingSignals,
    ) -> bool {
        let mut told = false;
        for Listener { awaited, sink, .. } in &self.listeners {
            let ListenerEvent::Level(wanted, passing) = *awaited else { continue };
            let passed = match passing {
                Propagation::Never => !is_above,
                Propagation::UntilHeard => !is_heard,
                Propagation::Always => true,
            };
            if passed && level >= wanted {
                news.add(sink, 1);
                told = true;
            }
        }
        told
    }
}

/// All listeners of a tree.
#[derive(Debug, Default)]
pub(crate) struct Listeners(Arc<ListenThread>);

/// The state shared by the thread and its callers.
#[derive(Debug)]
struct ListenThread {
    state: LeafMutex<ListenerTable>,
    wake: Condvar,
    /// Windows ended since the last check, by group and level; a leaf lock.
    levels: LeafMutex<HashMap<(u64, PressureLevel), Weak<Group>>>,
}

impl Default for ListenThread {
    fn default() -> Self {
        let state = LeafMutex::with_rank(Rank::EventListeners, ListenerTable::default());
        Self { state, wake: Condvar::default(), levels: LeafMutex::default() }
    }
}

/// The listeners by group, and the pending work.
#[derive(Debug)]
struct ListenerTable {
    /// By the group's id.
    groups: HashMap<u64, GroupListeners>,
    /// Of all listeners in `groups`.
    share: HolderShare,
    has_thread: bool,
    /// A check is due immediately.
    is_rung: bool,
    /// The next check also looks for closed eventfds.
    ticks: u32,
    /// A thread is looking for closed eventfds.
    is_sweeping: bool,
}

impl Default for ListenerTable {
    fn default() -> Self {
        Self {
            groups: HashMap::new(),
            share: HolderShare::new(NR_LISTENERS_MAX, NR_LISTENERS_OF_ROOT),
            has_thread: false,
            is_rung: false,
            ticks: 0,
            is_sweeping: false,
        }
    }
}

impl Listeners {
    /// Adds a listener of this holder. Starts the thread with the first.
    ///
    /// # Errors
    /// ENFILE when there are too many listeners, EMFILE when the holder has its share, EAGAIN when
    /// no thread can be started.
    pub(crate) fn add(
        &self,
        engine: &Arc<Engine>,
        (group, peaks): (&Arc<Group>, &Peaks),
        holder: Holder,
        mut awaited: ListenerEvent,
        sink: Arc<dyn EventSink>,
    ) -> Result<(), ControlError> {
        let mut state = self.0.state.lock();
        if !state.has_thread {
            let (shared, weak) = (Arc::clone(&self.0), Arc::downgrade(engine));
            let levels = Arc::downgrade(&self.0);
            spawn_detached("umemcg-events", move || shared.watch(&weak)).map_err(|_| ControlError::Again)?;
            state.has_thread = true;
            engine.reclaimer().listen_for_levels(move |group, level| {
                if let Some(shared) = levels.upgrade() {
                    shared.levels.lock().insert((group.id(), level), Arc::downgrade(group));
                }
            });
        }
        state.share.take(&holder).map_err(ControlError::System)?;
        // The base state is taken before the listener is in the list, so no later event is missed.
        let heard = state.groups.entry(group.id()).or_insert_with(|| {
            let peak = Arc::default();
            peaks.reset(group, PeakOf::OpenFile(&peak));
            GroupListeners { group: Arc::downgrade(group), peak, listeners: Vec::new() }
        });
        awaited.start(group);
        heard.listeners.push(Listener { awaited, holder, sink });
        if group.is_dead() {
            state.is_rung = true;
            self.0.wake.notify_one();
        }
        Ok(())
    }

    /// Signals the listeners of a removed group.
    pub(crate) fn group_removed(&self, group: &Group) {
        let mut state = self.0.state.lock();
        if state.groups.contains_key(&group.id()) {
            state.is_rung = true;
            self.0.wake.notify_one();
        }
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        let groups = std::mem::take(&mut state.groups);
        state.is_rung = true;
        self.0.wake.notify_one();
        drop(state);
        drop(groups);
    }
}

impl ListenThread {
    /// Runs the thread, as long as there are listeners.
    fn watch(self: &Arc<Self>, engine: &Weak<Engine>) {
        let mut state = self.state.lock();
        loop {
            let (levels, mut news) = (std::mem::take(&mut *self.levels.lock()), PendingSignals::default());
            for ((_, level), group) in levels {
                if let Some(group) = group.upgrade() {
                    state.notify(&group, level, &mut news);
                }
            }
            state.look(&mut news);
            let open = state.ticks.is_multiple_of(TICKS_PER_SWEEP).then(|| state.begin_sweep()).flatten();
            drop(state);
            news.notify();
            if let Some(open) = open {
                self.start_sweep(open);
            }
            // `None`: the tree is gone.
            let Some(engine) = engine.upgrade() else { return };
            state = self.state.lock();
            let is_over = state.groups.is_empty();
            if is_over {
                engine.reclaimer().stop_listening_for_levels();
                state.has_thread = false;
            }
            drop(state);
            // With no lock held, because this may be the last reference.
            drop(engine);
            if is_over {
                return;
            }
            state = self.state.lock();
            if !state.is_rung {
                self.wake.wait_for(&mut state, TICK);
            }
            state.is_rung = false;
        }
    }

    /// Looks for closed eventfds. The search may take long for a process with many descriptors;
    /// events do not wait for it.
    fn start_sweep(self: &Arc<Self>, open: Vec<(u64, Arc<dyn EventSink>)>) {
        let shared = Arc::clone(self);
        let sweep = move || {
            for (group, sink) in open {
                if !sink.is_open() {
                    let forgotten = shared.state.lock().forget(group, &sink);
                    drop((forgotten, sink));
                }
            }
            shared.state.lock().is_sweeping = false;
        };
        if spawn_detached("umemcg-sweep", sweep).is_err() {
            // A later check tries again.
            self.state.lock().is_sweeping = false;
        }
    }
}

impl ListenerTable {
    fn look(&mut self, news: &mut PendingSignals) {
        self.ticks += 1;
        let Self { groups, share, .. } = self;
        groups.retain(|_, heard| {
            match heard.group.upgrade().filter(|group| !group.is_dead()) {
                Some(group) => {
                    if let Some(part) = GroupControl::if_present(&group) {
                        heard.look(&group, &part.peaks, news);
                    }
                }
                None => heard.listeners.drain(..).for_each(|listener| {
                    share.give(&listener.holder);
                    news.0.push((listener.sink, 1));
                }),
            }
            !heard.listeners.is_empty()
        });
    }

    /// Returns all eventfds, each with its group's id; none while a sweep runs.
    fn begin_sweep(&mut self) -> Option<Vec<(u64, Arc<dyn EventSink>)>> {
        if std::mem::replace(&mut self.is_sweeping, true) {
            return None;
        }
        let of = |(&group, heard): (&u64, &GroupListeners)| {
            heard
                .listeners
                .iter()
                .map(move |listener| (group, Arc::clone(&listener.sink)))
                .collect::<Vec<_>>()
        };
        Some(self.groups.iter().flat_map(of).collect())
    }

    /// Removes a listener whose eventfd is closed.
    fn forget(&mut self, group: u64, sink: &Arc<dyn EventSink>) -> Option<Listener> {
        let listeners = &mut self.groups.get_mut(&group)?.listeners;
        let at = listeners.iter().position(|listener| Arc::ptr_eq(&listener.sink, sink))?;
        let listener = listeners.remove(at);
        self.share.give(&listener.holder);
        Some(listener)
    }

    /// Propagates a level upwards from the reclaimed group.
    #[doc(alias = "vmpressure_work_fn")]
    fn notify(&self, group: &Group, level: PressureLevel, news: &mut PendingSignals) {
        let mut is_heard = false;
        for (depth, at) in group.ancestors().enumerate() {
            if let Some(heard) = self.groups.get(&at.id()) {
                is_heard |= heard.notify(level, depth > 0, is_heard, news);
            }
        }
    }
}
