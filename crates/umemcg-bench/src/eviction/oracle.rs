//! LRU and S3-FIFO: libCacheSim's, or ours after it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::traces::Trace;
use crate::options::Failure;

/// The allowed difference of ours from libCacheSim's, in points of hit ratio.
const POINTS_APART_MAX: f64 = 1.5;

/// Replays numbers of 32 bits in a file: prints the hit ratio of each policy.
const SCRIPT: &str = r"
import array, sys, libcachesim
path, room = sys.argv[1], int(sys.argv[2])
trace = array.array('I')
trace.frombytes(open(path, 'rb').read())
for policy in (libcachesim.LRU, libcachesim.S3FIFO):
    cache = policy(cache_size=room)
    request = libcachesim.Request()
    request.obj_size = 1
    nr_hits = 0
    for page in trace:
        request.obj_id = page
        nr_hits += cache.get(request)
    print(nr_hits / len(trace))
";

/// See the module text.
pub(super) struct Oracle(Option<PathBuf>);

impl Oracle {
    /// Finds libCacheSim.
    pub(super) fn find(interpreter: Option<PathBuf>) -> Self {
        let usual = std::env::current_exe().map(|program| program.with_file_name("../oracle/bin/python"));
        Self(interpreter.or_else(|| usual.ok().filter(|usual| usual.exists())))
    }

    pub(super) fn describe(&self) -> &'static str {
        match self.0 {
            Some(_) => "LRU and S3-FIFO are libCacheSim's, and ours within 1.5 points of it",
            None => "LRU and S3-FIFO are ours: libCacheSim is not installed (scripts/deps.sh --bench)",
        }
    }

    /// Returns the hit ratios of LRU and S3-FIFO in percent.
    pub(super) fn hit_ratios(&self, trace: &Trace, place: &Path) -> Result<(f64, f64), Failure> {
        let ours = (lru(trace), S3Fifo::new(trace.room as usize).hit_percent(trace));
        let Some(interpreter) = &self.0 else { return Ok(ours) };
        let file = place.join("trace");
        let bytes: Vec<u8> = trace.requests.iter().flat_map(|page| page.to_ne_bytes()).collect();
        std::fs::write(&file, bytes).map_err(Failure::at("cannot write a trace"))?;
        let mut command = Command::new(interpreter);
        command.args(["-c", SCRIPT]).arg(&file).arg(trace.room.to_string());
        let output = command.output().map_err(Failure::at("cannot run libCacheSim"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let ratios: Vec<f64> = text.lines().filter_map(|line| line.parse().ok()).collect();
        let [lru, s3_fifo] = ratios[..] else {
            return Err(Failure::Setup(format!(
                "libCacheSim: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            )));
        };
        let theirs = (100.0 * lru, 100.0 * s3_fifo);
        if (theirs.0 - ours.0).abs() > POINTS_APART_MAX || (theirs.1 - ours.1).abs() > POINTS_APART_MAX {
            return Err(Failure::Wrong(format!("{}: libCacheSim has {theirs:?}, ours {ours:?}", trace.name)));
        }
        Ok(theirs)
    }
}

fn percent(nr_hits: usize, trace: &Trace) -> f64 {
    100.0 * nr_hits as f64 / trace.requests.len() as f64
}

/// Pages in the order of their last insertion.
#[derive(Debug, Default)]
struct Latest {
    places: HashMap<u32, u64>,
    order: BTreeMap<u64, u32>,
    next: u64,
}

impl Latest {
    /// Returns whether it was there.
    fn remove(&mut self, page: u32) -> bool {
        let place = self.places.remove(&page);
        place.is_some_and(|place| self.order.remove(&place).is_some())
    }

    /// Returns whether it was there.
    fn put(&mut self, page: u32) -> bool {
        let was_there = self.remove(page);
        self.places.insert(page, self.next);
        self.order.insert(self.next, page);
        self.next += 1;
        was_there
    }

    fn shrink_to(&mut self, nr: usize) {
        while self.order.len() > nr
            && let Some((_, page)) = self.order.pop_first()
        {
            self.places.remove(&page);
        }
    }
}

fn lru(trace: &Trace) -> f64 {
    let mut kept = Latest::default();
    let hits = trace.requests.iter().filter(|&&page| {
        let is_hit = kept.put(page);
        kept.shrink_to(trace.room as usize);
        is_hit
    });
    percent(hits.count(), trace)
}

/// S3-FIFO as libCacheSim has it: a tenth is the small queue, nine tenths are the main queue and
/// as many ghosts; two hits in the small queue lead to the main queue.
struct S3Fifo {
    room: usize,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    nr_uses: HashMap<u32, u32>,
    ghosts: Latest,
    has_evicted: bool,
}

impl S3Fifo {
    fn new(room: usize) -> Self {
        Self {
            room,
            small: VecDeque::new(),
            main: VecDeque::new(),
            nr_uses: HashMap::new(),
            ghosts: Latest::default(),
            has_evicted: false,
        }
    }

    fn hit_percent(mut self, trace: &Trace) -> f64 {
        let hits = trace.requests.iter().filter(|&&page| self.uses(page));
        percent(hits.count(), trace)
    }

    /// Returns whether it was there.
    fn uses(&mut self, page: u32) -> bool {
        if let Some(nr) = self.nr_uses.get_mut(&page) {
            *nr += 1;
            return true;
        }
        let has_left = self.ghosts.remove(page);
        while self.small.len() + self.main.len() >= self.room {
            self.evict();
        }
        self.nr_uses.insert(page, 0);
        let is_small_full = !self.has_evicted && self.small.len() >= self.room / 10;
        if has_left || is_small_full {
            self.main.push_back(page)
        } else {
            self.small.push_back(page)
        }
        false
    }

    fn evict(&mut self) {
        self.has_evicted = true;
        let nr_main_max = self.room - self.room / 10;
        if self.main.len() <= nr_main_max
            && let Some(page) = self.small.pop_front()
        {
            if self.nr_uses[&page] >= 2 {
                self.nr_uses.insert(page, 0);
                return self.main.push_back(page);
            }
            self.nr_uses.remove(&page);
            self.ghosts.put(page);
            self.ghosts.shrink_to(self.room * 9 / 10);
        } else if let Some(page) = self.main.pop_front()
            && let Some(nr @ 1..) = self.nr_uses.remove(&page)
        {
            self.nr_uses.insert(page, nr.min(3) - 1);
            self.main.push_back(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(requests: Vec<u32>, room: u64) -> Trace {
        Trace { name: String::new(), requests, places: Vec::new(), opens: Vec::new(), room }
    }

    #[test]
    fn a_loop_defeats_least_recently_used_only() {
        let looped = trace((0..40_000).map(|at| at % 1200).collect(), 1000);
        assert_eq!(lru(&looped), 0.0);
        assert!(S3Fifo::new(1000).hit_percent(&looped) > 50.0);
    }
}
