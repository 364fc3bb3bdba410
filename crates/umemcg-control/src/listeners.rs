//! Who asked for events through `cgroup.event_control`, and the thread that looks whether there are any.
//!
//! One thread looks ten times a second, as long as anybody listens; groups without listeners cost nothing, and charges know nothing
//! of it. A usage that went over a threshold and came back between two looks is seen by the group's peak, which each
//! look starts afresh for this party alone. A listener goes when its process has closed the eventfd, which is looked for twice a second, and
//! with the group, whose removal is its last event.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::io::Errno;
use umemcg::{Engine, EventKind, Group, PressureLevel};
use umemcg_base::clock::spawn_detached;
use umemcg_base::sync::{Condvar, Mutex};

use crate::descriptors::EventSink;
use crate::error::ControlError;
use crate::ownership::ControlPart;
use crate::peak::{PeakNote, PeakOf, Peaks};
use crate::tree::ControlTree;

/// From one look to the next.
const TICK: Duration = Duration::from_millis(100);
/// Looks from one search for closed eventfds to the next.
const TICKS_PER_SWEEP: u32 = 5;
/// Each listener keeps a descriptor open.
const NR_LISTENERS_MAX: usize = 1024;
/// Of one user who is not root, so that nobody takes all of them.
const NR_LISTENERS_USER_MAX: usize = 128;

/// How far up a level of pressure is passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "vmpressure_modes")]
pub(crate) enum Passing {
    /// To the nearest group that listens.
    UntilHeard,
    /// To every group above.
    Always,
    /// Not at all: only the group that was reclaimed.
    Never,
}

/// What a listener waits for.
#[derive(Debug)]
pub(crate) enum Awaited {
    /// The usage crosses a threshold, either way.
    Usage { threshold: u64, was_at: bool },
    /// A charge failed for good, here or above.
    Oom { seen: u64 },
    /// Reclaim finds it this hard, or harder.
    Level(PressureLevel, Passing),
}

impl Awaited {
    pub(crate) fn usage(threshold: u64) -> Self {
        Self::Usage { threshold, was_at: false }
    }

    pub(crate) fn oom() -> Self {
        Self::Oom { seen: 0 }
    }

    /// What is so already is no event.
    fn start(&mut self, group: &Group) {
        match self {
            Self::Usage { threshold, was_at } => *was_at = group.usage_bytes() >= *threshold,
            Self::Oom { seen } => *seen = nr_oom(group),
            Self::Level(..) => {}
        }
    }

    /// Events since the last look, in which the usage was `peak` at most and is `usage` now.
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

/// Charges that failed for good for want of room in the group or in one above it.
fn nr_oom(group: &Group) -> u64 {
    group.ancestors().map(|at| at.event_count_local(EventKind::Oom)).sum()
}

#[derive(Debug)]
struct Listener {
    awaited: Awaited,
    /// Whose it is.
    uid: u32,
    sink: Box<dyn EventSink>,
}

/// The listeners of one group.
#[derive(Debug)]
struct Heard {
    group: Weak<Group>,
    /// The highest usage since the last look.
    peak: Arc<PeakNote>,
    listeners: Vec<Listener>,
}

impl Heard {
    fn look(&mut self, group: &Group, peaks: &Peaks) {
        // Before the usage is read: what comes in between is in the next peak, or in the usage.
        let peak = peaks.take(group, &self.peak);
        let usage = group.usage_bytes();
        for Listener { awaited, sink, .. } in &mut self.listeners {
            let nr_events = awaited.look(group, usage, peak);
            if nr_events > 0 {
                sink.signal(nr_events);
            }
        }
    }

    /// A window ended at `level`; `is_above` for a group above the one that was reclaimed. Whether anybody was told.
    #[doc(alias = "vmpressure_event")]
    fn tell(&self, level: PressureLevel, is_above: bool, is_heard: bool) -> bool {
        let mut told = false;
        for Listener { awaited, sink, .. } in &self.listeners {
            let Awaited::Level(wanted, passing) = *awaited else { continue };
            let passed = match passing {
                Passing::Never => !is_above,
                Passing::UntilHeard => !is_heard,
                Passing::Always => true,
            };
            if passed && level >= wanted {
                sink.signal(1);
                told = true;
            }
        }
        told
    }
}

/// All listeners of a tree.
#[derive(Debug, Default)]
pub(crate) struct Listeners(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    /// Windows that ended since the last look, by group and level; a leaf.
    levels: Mutex<HashMap<(u64, PressureLevel), Weak<Group>>>,
}

#[derive(Debug, Default)]
struct State {
    /// By the group's id.
    groups: HashMap<u64, Heard>,
    nr_listeners: usize,
    has_thread: bool,
    /// Look at once.
    is_rung: bool,
    /// Look for closed eventfds, too.
    ticks: u32,
}

impl Listeners {
    /// Adds a listener of the user `uid`. Starts the thread with the first.
    ///
    /// # Errors
    /// ENFILE when there are too many, EMFILE when the user has too many, EAGAIN when there is no thread to be had.
    pub(crate) fn add(
        &self,
        tree: &ControlTree,
        group: &Arc<Group>,
        uid: u32,
        mut awaited: Awaited,
        sink: Box<dyn EventSink>,
    ) -> Result<(), ControlError> {
        let mut state = self.0.state.lock();
        if state.nr_listeners >= NR_LISTENERS_MAX {
            return Err(ControlError::System(Errno::NFILE));
        }
        if uid != 0 && state.nr_listeners_of(uid) >= NR_LISTENERS_USER_MAX {
            return Err(ControlError::System(Errno::MFILE));
        }
        if !state.has_thread {
            let (shared, engine) = (Arc::clone(&self.0), Arc::downgrade(tree.engine()));
            let levels = Arc::downgrade(&self.0);
            spawn_detached("umemcg-events", move || shared.watch(&engine))
                .map_err(|_| ControlError::Again)?;
            state.has_thread = true;
            tree.engine().reclaimer().listen_for_levels(move |group, level| {
                if let Some(shared) = levels.upgrade() {
                    shared.levels.lock().insert((group.id(), level), Arc::downgrade(group));
                }
            });
        }
        // Its own look begins before it is in the list, so that nothing later is missed.
        let heard = state.groups.entry(group.id()).or_insert_with(|| {
            let peak = Arc::default();
            tree.part(group).peaks.reset(group, PeakOf::OpenFile(&peak));
            Heard { group: Arc::downgrade(group), peak, listeners: Vec::new() }
        });
        awaited.start(group);
        heard.listeners.push(Listener { awaited, uid, sink });
        state.nr_listeners += 1;
        if group.is_dead() {
            state.is_rung = true;
            self.0.wake.notify_one();
        }
        Ok(())
    }

    /// A group was removed: whoever listens to it hears of it now.
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
        state.groups.clear();
        state.is_rung = true;
        self.0.wake.notify_one();
    }
}

impl Shared {
    /// The thread's life: as long as anybody listens.
    fn watch(&self, engine: &Weak<Engine>) {
        let mut state = self.state.lock();
        loop {
            let levels = std::mem::take(&mut *self.levels.lock());
            for ((_, level), group) in levels {
                if let Some(group) = group.upgrade() {
                    state.tell(&group, level);
                }
            }
            state.look();
            // None: the tree has gone, and everything with it.
            let Some(engine) = engine.upgrade() else { return };
            if state.groups.is_empty() {
                engine.reclaimer().stop_listening_for_levels();
                state.has_thread = false;
                return;
            }
            drop(engine);
            if !state.is_rung {
                self.wake.wait_for(&mut state, TICK);
            }
            state.is_rung = false;
        }
    }
}

impl State {
    fn nr_listeners_of(&self, uid: u32) -> usize {
        let all = self.groups.values().flat_map(|heard| &heard.listeners);
        all.filter(|listener| listener.uid == uid).count()
    }

    fn look(&mut self) {
        self.ticks += 1;
        let is_sweep = self.ticks.is_multiple_of(TICKS_PER_SWEEP);
        self.groups.retain(|_, heard| {
            if is_sweep {
                heard.listeners.retain(|listener| listener.sink.is_open());
            }
            match heard.group.upgrade().filter(|group| !group.is_dead()) {
                Some(group) => {
                    if let Some(part) = ControlPart::if_present(&group) {
                        heard.look(&group, &part.peaks);
                    }
                }
                None => {
                    heard.listeners.drain(..).for_each(|listener| listener.sink.signal(1));
                }
            }
            !heard.listeners.is_empty()
        });
        self.nr_listeners = self.groups.values().map(|heard| heard.listeners.len()).sum();
    }

    /// Passes a level on, from the group that was reclaimed upwards.
    #[doc(alias = "vmpressure_work_fn")]
    fn tell(&self, group: &Group, level: PressureLevel) {
        let mut is_heard = false;
        for (depth, at) in group.ancestors().enumerate() {
            if let Some(heard) = self.groups.get(&at.id()) {
                is_heard |= heard.tell(level, depth > 0, is_heard);
            }
        }
    }
}
