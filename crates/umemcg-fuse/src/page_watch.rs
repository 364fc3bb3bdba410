//! The thread that compares the charged file pages with the pages in the kernel's cache.
//!
//! The kernel drops pages by itself, for want of memory or for `drop_caches`, without a
//! notification. RETRIEVE asks it for pages of an inode: it sends its cached pages, up to the first
//! missing one, and waits for nothing. Unlike `cachestat(2)` and `mincore(2)`, RETRIEVE needs no
//! descriptor on the mount, which would keep `umount` from succeeding. It costs a copy of the
//! cached pages.
//!
//! The host's counters in `/proc/vmstat` determine how much is compared. After dropped pages, all
//! windows are compared, some at each look, and many where pages are missing. Otherwise a few are
//! compared at each look, since reclaim of a container's own memory cgroup does not count there.
//! Each RETRIEVE has a cost, so the number of runs asked for in vain bounds a look.

use std::sync::Arc;
use std::time::Duration;

use umemcg_base::{Condvar, LeafMutex, PAGE_SHIFT, PAGE_SIZE_U64, Rank, assert_may_wait};
use umemcg_vfs::{KeptPages, KeptWindow};

/// The time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The most runs of pages of a volume found whole at a look while the host drops nothing.
const NR_RUNS_QUIET: usize = 16;
/// The same after the host has dropped something. A host short of memory drops pages all the time,
/// mostly of others.
const NR_RUNS_WHOLE: usize = 256;
/// The most windows of a volume compared at a look.
const NR_WINDOWS_MAX: usize = 4096;
/// Windows handed out at once. A window touched by a request meanwhile is not judged.
const NR_WINDOWS_AT_ONCE: usize = 16;
/// The longest wait for the kernel's answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(5);
/// Set in the numbers of our questions, to keep them apart from the numbers of the kernel's
/// requests.
const NUMBER_BIT: u64 = 1 << 62;

/// The windows of one volume, and the place of the next look.
#[derive(Debug)]
struct Watched {
    kept: Box<dyn KeptPages>,
    place: u32,
    /// Rounds to the last window, two after a drop: the first one starts in the middle.
    nr_rounds_due: u8,
}

#[derive(Debug, Default)]
struct WatchState {
    /// Volumes not yet taken over by the thread.
    new: Vec<Watched>,
    has_thread: bool,
    is_ended: bool,
    /// The number of the last question, and the bytes in the kernel's answer.
    asked: u64,
    answer: Option<u32>,
}

/// Asks the kernel for bytes of a node: number, node, offset, length. Returns whether the kernel
/// will send them.
type Retrieve = dyn Fn(u64, u64, u64, u32) -> bool + Send + Sync;

/// See the module text. The thread starts with the first volume.
pub(crate) struct PageWatch {
    state: LeafMutex<WatchState>,
    wake: Condvar,
    retrieve: Box<Retrieve>,
}

impl std::fmt::Debug for PageWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageWatch").field("state", &self.state).finish_non_exhaustive()
    }
}

impl PageWatch {
    /// Creates a watch without a thread.
    pub(crate) fn new(retrieve: impl Fn(u64, u64, u64, u32) -> bool + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { state: LeafMutex::default(), wake: Condvar::default(), retrieve: Box::new(retrieve) })
    }

    /// Starts to compare the pages of a volume, until it is gone.
    pub(crate) fn watch(self: &Arc<Self>, kept: Box<dyn KeptPages>) {
        let mut state = self.state.lock();
        state.new.push(Watched { kept, place: 0, nr_rounds_due: 0 });
        if state.has_thread {
            return;
        }
        let me = Arc::clone(self);
        let spawned = std::thread::Builder::new().name("umemcg-pages".into()).spawn(move || me.run());
        match spawned {
            Ok(_) => state.has_thread = true,
            Err(error) => tracing::warn!(%error, "cannot start the thread that compares pages"),
        }
    }

    /// Notes the number of bytes sent by the kernel.
    pub(crate) fn answered(&self, number: u64, bytes: u32) {
        let mut state = self.state.lock();
        if state.asked == number {
            state.answer = Some(bytes);
            self.wake.notify_all();
        }
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.state.lock().is_ended = true;
        self.wake.notify_all();
    }

    fn run(&self) {
        let mut watched: Vec<Watched> = Vec::new();
        let mut nr_dropped_before = nr_dropped_by_host();
        loop {
            {
                let mut state = self.state.lock();
                if !state.is_ended {
                    self.wake.wait_for(&mut state, LOOK_INTERVAL);
                }
                if state.is_ended {
                    return;
                }
                watched.append(&mut state.new);
            }
            let nr_dropped = nr_dropped_by_host();
            if nr_dropped != nr_dropped_before {
                nr_dropped_before = nr_dropped;
                watched.iter_mut().for_each(|of_volume| of_volume.nr_rounds_due = 2);
            }
            watched.retain_mut(|of_volume| self.look(of_volume).is_some());
        }
    }

    /// Compares the next windows of a volume. `None` when it is gone.
    fn look(&self, of_volume: &mut Watched) -> Option<()> {
        let mut nr_left = if of_volume.nr_rounds_due > 0 { NR_RUNS_WHOLE } else { NR_RUNS_QUIET };
        for _ in 0..NR_WINDOWS_MAX / NR_WINDOWS_AT_ONCE {
            let windows = of_volume.kept.kept_windows(&mut of_volume.place, NR_WINDOWS_AT_ONCE)?;
            let nr_whole = windows.iter().map(|window| self.compare(window)).sum();
            if of_volume.place == 0 {
                of_volume.nr_rounds_due = of_volume.nr_rounds_due.saturating_sub(1);
                if of_volume.nr_rounds_due == 0 {
                    break;
                }
            }
            // Only whole runs count against the bound: where a page is missing, more will be.
            nr_left = nr_left.saturating_sub(nr_whole);
            if nr_left == 0 {
                break;
            }
        }
        Some(())
    }

    /// Reports the missing pages of a window to its holder. Returns the number of runs asked for in
    /// vain: the kernel had all pages, or did not answer, or a request came in between.
    fn compare(&self, window: &KeptWindow) -> usize {
        let mut nr_whole = 0;
        for run in &window.runs {
            let mut page = run.start;
            while page < run.end {
                let len = (run.end - page) << PAGE_SHIFT;
                let there = self.bytes_there(window.node.0, page << PAGE_SHIFT, len as u32);
                let Some(bytes) = there else { return nr_whole + 1 };
                page += u64::from(bytes).div_ceil(PAGE_SIZE_U64);
                if page < run.end {
                    let missing = page..page + 1;
                    let holder = window.holder.upgrade();
                    if !holder.is_some_and(|holder| holder.note_missing(&missing, window.moment)) {
                        return nr_whole + 1;
                    }
                } else {
                    nr_whole += 1;
                }
                page += 1;
            }
        }
        nr_whole
    }

    /// Returns the number of bytes of a range in the kernel's cache, up to the first missing one.
    /// `None` without an answer.
    fn bytes_there(&self, node: u64, offset: u64, len: u32) -> Option<u32> {
        let number = {
            let mut state = self.state.lock();
            state.asked = NUMBER_BIT | ((state.asked & !NUMBER_BIT) + 2);
            state.answer = None;
            state.asked
        };
        if !(self.retrieve)(number, node, offset, len) {
            return None;
        }
        assert_may_wait(Rank::KernelNotification, "pages that the kernel sends");
        let mut state = self.state.lock();
        while state.answer.is_none() && !state.is_ended {
            if self.wake.wait_for(&mut state, ANSWER_WAIT_MAX).timed_out() {
                break;
            }
        }
        state.answer
    }
}

/// Returns a number that changes when the host's kernel drops pages from its cache.
fn nr_dropped_by_host() -> u64 {
    std::fs::read_to_string("/proc/vmstat").map_or(0, |text| nr_dropped(&text))
}

fn nr_dropped(vmstat: &str) -> u64 {
    let counts = vmstat.lines().filter_map(|line| line.split_once(' '));
    let of_drops = counts.filter(|(name, _)| *name == "drop_pagecache" || name.starts_with("pgsteal_"));
    of_drops.filter_map(|(_, count)| count.parse::<u64>().ok()).fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ops::Range;
    use std::sync::{Mutex, OnceLock, Weak};

    use super::*;
    use umemcg_vfs::{NodeId, WindowHolder};

    /// Takes this many notes, then acts as if a request had come.
    #[derive(Debug)]
    struct Missing(Mutex<Vec<(u64, u64)>>, usize);

    impl WindowHolder for Missing {
        fn note_missing(&self, pages: &Range<u64>, moment: u64) -> bool {
            let mut noted = self.0.lock().unwrap();
            let counts = noted.len() < self.1;
            if counts {
                assert_eq!(pages.end, pages.start + 1);
                noted.push((pages.start, moment));
            }
            counts
        }
    }

    /// Returns the pages reported missing, and the number of runs asked for in vain.
    fn compared<const N: usize>(
        watch: &PageWatch,
        runs: [(u64, u64); N],
        nr_notes: usize,
    ) -> (Vec<u64>, usize) {
        let holder = Arc::new(Missing(Mutex::default(), nr_notes));
        let weak: Weak<dyn WindowHolder> = Arc::downgrade(&holder) as _;
        let window = KeptWindow {
            node: NodeId(7),
            runs: runs.map(|(first, end)| first..end).into(),
            holder: weak,
            moment: 3,
        };
        let nr_whole = watch.compare(&window);
        let noted = holder.0.lock().unwrap();
        assert!(noted.iter().all(|&(_, moment)| moment == 3));
        (noted.iter().map(|&(page, _)| page).collect(), nr_whole)
    }

    /// Returns a watch of a kernel with these pages of every node.
    fn watch_of(has: BTreeSet<u64>) -> Arc<PageWatch> {
        let kernel: Arc<OnceLock<Weak<PageWatch>>> = Arc::default();
        let itself = Arc::clone(&kernel);
        let watch = PageWatch::new(move |number, _node, offset, len| {
            let first = offset >> PAGE_SHIFT;
            let nr = (first..first + u64::from(len >> PAGE_SHIFT)).take_while(|page| has.contains(page));
            let bytes = (nr.count() as u32) << PAGE_SHIFT;
            itself.get().and_then(Weak::upgrade).unwrap().answered(number, bytes);
            true
        });
        kernel.set(Arc::downgrade(&watch)).unwrap();
        watch
    }

    #[test]
    fn the_gaps_of_a_window_are_told() {
        let watch = watch_of([64, 65, 70, 71, 100].into());
        let gaps = (66..70).chain(72..100).collect::<Vec<_>>();
        assert_eq!(compared(&watch, [(64, 101)], usize::MAX), (gaps, 1));
    }

    #[test]
    fn only_pages_that_are_charged_are_asked_for() {
        let watch = watch_of([64, 65, 70, 71, 100].into());
        assert_eq!(compared(&watch, [(64, 66), (70, 73), (99, 101)], usize::MAX), (vec![72, 99], 2));
        assert_eq!(watch.state.lock().asked & !NUMBER_BIT, 2 * 4);
    }

    #[test]
    fn a_window_that_a_request_meets_is_asked_no_further() {
        let watch = watch_of([64].into());
        assert_eq!(compared(&watch, [(64, 128)], 3), (vec![65, 66, 67], 1));
        assert_eq!(watch.state.lock().asked & !NUMBER_BIT, 2 * 4);
    }

    #[test]
    fn a_node_that_the_kernel_does_not_know_tells_nothing() {
        let watch = PageWatch::new(|_, _, _, _| false);
        assert_eq!(compared(&watch, [(0, 64)], usize::MAX), (vec![], 1));
    }

    #[test]
    fn drops_of_the_host_are_in_its_counters() {
        assert_eq!(nr_dropped("pgsteal_kswapd 5\npgsteal_direct 2\npgscan_direct 9\ndrop_pagecache 1\n"), 8);
    }
}
