//! Replays a trace against pages in a kernel's cache, and against our own pages. A miss is a read
//! from the store.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use umemcg::files::{File, PinnedPages, Readahead};
use umemcg::{Engine, EngineConfig, Group, StatItem};
use umemcg_vfs::{
    Caller, HostVolume, IdleInode, KernelCache, KernelCaching, Lookup, NodeId, OFlags, Open, PageDrop,
    Volume, VolumeConfig, VolumeFile,
};

use super::traces::Trace;
use crate::options::Failure;
use crate::stats::thread_time;
use crate::store::Generated;

const PAGE: u64 = 4096;
/// Requests after which the limit is set again.
const LIMIT_PERIOD: usize = 256;
/// The room of an empty group.
const SPARE_BYTES: u64 = 256 << 10;

/// The result of a replay.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) hit_percent: f64,
    pub(super) mean_kept: f64,
    /// Whether the kernel kept most of it: with OPEN requests, the daemon serves a file larger than
    /// the room from its own pages.
    pub(super) is_kept_by_kernel: bool,
    /// Processor time of all requests, hits included, for each miss.
    pub(super) miss_us: f64,
}

/// A kernel that keeps pages until it gets a request to drop them.
#[derive(Debug, Default)]
struct Kernel(Mutex<HashSet<(NodeId, u64)>>);

impl Kernel {
    fn with<R>(&self, use_it: impl FnOnce(&mut HashSet<(NodeId, u64)>) -> R) -> R {
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl KernelCache for Kernel {
    fn asks_by_name(&self) -> bool {
        false
    }
    fn let_go(&self, _: Vec<IdleInode>) -> bool {
        true
    }
    fn keeps_pages(&self) -> bool {
        true
    }
    fn drop_pages(&self, drops: Vec<PageDrop>) {
        for drop in drops {
            let may_tell = drop.task.may_tell();
            if may_tell && drop.pages.end - drop.pages.start > 64 {
                self.with(|pages| pages.retain(|page| page.0 != drop.node || !drop.pages.contains(&page.1)));
            } else if may_tell {
                self.with(|pages| drop.pages.clone().for_each(|page| _ = pages.remove(&(drop.node, page))));
            }
            drop.task.done(may_tell);
        }
    }
}

/// A group with room for as many pages of data.
struct Room {
    engine: Arc<Engine>,
    group: Arc<Group>,
    nr_pages: u64,
    items: &'static [StatItem],
    kept: Vec<f64>,
}

impl Room {
    fn new(nr_pages: u64, items: &'static [StatItem]) -> Result<Self, Failure> {
        let pool_bytes = 4 * nr_pages * PAGE + (64 << 20);
        let config = EngineConfig::new(pool_bytes);
        let engine = Engine::new(config).map_err(Failure::at("cannot make an engine"))?;
        let group =
            engine.create_group(engine.root(), "g".as_ref()).map_err(Failure::at("cannot make a group"))?;
        Ok(Self { engine, group, nr_pages, items, kept: Vec::new() })
    }

    /// Sets the limit to the present bookkeeping plus the room.
    fn set_limit(&mut self) {
        self.group.drain_own_stock();
        let data: u64 = self.items.iter().map(|&item| self.group.stat_total(item).max(0) as u64).sum();
        let other = self.group.usage_bytes().saturating_sub(data).max(SPARE_BYTES);
        self.engine.set_max(&self.group, self.nr_pages * PAGE + other);
        self.kept.push((data / PAGE) as f64);
    }

    /// Sums up requests. Each page is missed once at least, and no more are kept than there is room
    /// for, or a little more while bookkeeping shrinks.
    fn outcome(&self, trace: &Trace, time: std::time::Duration) -> Result<Outcome, Failure> {
        let nr_misses = self.group.stat_total(StatItem::CacheMiss);
        let nr_hits = trace.requests.len() as f64 - nr_misses as f64;
        let data: i64 = self.items.iter().map(|&item| self.group.stat_total(item)).sum();
        let full = &self.kept[self.kept.len() / 4..];
        let mean_kept = full.iter().sum::<f64>() / full.len() as f64;
        let kept_max = self.nr_pages + self.nr_pages / 4 + 2 * SPARE_BYTES / PAGE;
        if (nr_misses as usize) < trace.places.len() || mean_kept > kept_max as f64 {
            return Err(Failure::Wrong(format!(
                "{}: {nr_misses} misses of {} pages, {mean_kept:.0} kept in room for {}",
                trace.name,
                trace.places.len(),
                self.nr_pages
            )));
        }
        Ok(Outcome {
            hit_percent: 100.0 * nr_hits / trace.requests.len() as f64,
            is_kept_by_kernel: 2 * self.group.stat_total(StatItem::FileKernel) > data,
            mean_kept,
            miss_us: time.as_secs_f64() * 1e6 / nr_misses as f64,
        })
    }
}

/// Whether the daemon sees opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opens {
    /// By OPEN requests: the daemon decides each time whether the kernel keeps pages of the file.
    Told,
    /// Not at all, as on an exclusive mount.
    Silent,
}

/// A file of a trace.
struct Opened {
    name: String,
    file: Option<Arc<dyn VolumeFile>>,
    is_kept_by_kernel: bool,
}

impl Opened {
    /// Opens the file as a request of the kernel does, or for reads without an open.
    fn open(&mut self, volume: &HostVolume, caller: &Caller, is_told: bool) -> Result<(), Failure> {
        self.file = None; // the process before has closed it
        let entry = volume.lookup(caller, NodeId::ROOT, self.name.as_ref());
        let file = entry.and_then(|entry| volume.open(caller, entry.node, OFlags::RDONLY));
        let file = file.map_err(Failure::at("cannot open a file"))?;
        self.is_kept_by_kernel = !is_told || file.kernel_caching(false) != KernelCaching::Bypass;
        self.file = Some(file);
        Ok(())
    }
}

/// Replays a trace against pages in a kernel's cache.
pub(super) fn kernel(trace: &Trace, place: &Path, told: Opens) -> Result<Outcome, Failure> {
    let mut room =
        Room::new(trace.room, &[StatItem::FileKernel, StatItem::InactiveFile, StatItem::ActiveFile])?;
    let dir = tempfile::tempdir_in(place).map_err(Failure::at("cannot make a directory"))?;
    let files = make_files(trace, dir.path())?;
    let volume = HostVolume::new(&room.engine, VolumeConfig::new(dir.path()))
        .map_err(Failure::at("cannot make a volume"))?;
    let kernel: Arc<Kernel> = Arc::default();
    volume.set_kernel(Arc::<Kernel>::clone(&kernel));
    let caller = Caller {
        uid: 0,
        gid: 0,
        supplementary_gid: None,
        group: Arc::clone(&room.group),
        umask: 0o022,
        thread: 0,
    };
    let new = |name: String| Opened { name, file: None, is_kept_by_kernel: true };
    let mut files: Vec<Opened> = files.into_iter().map(new).collect();
    let mut opens = trace.opens.iter().filter(|_| told == Opens::Told).peekable();
    let before = thread_time();
    for (at, &page) in trace.requests.iter().enumerate() {
        if at % LIMIT_PERIOD == 0 {
            room.set_limit();
        }
        while let Some((_, file)) = opens.next_if(|open| open.0 <= at) {
            files[*file as usize].open(&volume, &caller, true)?;
        }
        let (file, page) = trace.places[page as usize];
        let opened = &mut files[file as usize];
        if opened.file.is_none() {
            opened.open(&volume, &caller, false)?;
        }
        if let Some(file) = &opened.file {
            read_above(&kernel, &**file, opened.is_kept_by_kernel, (page, &room.group))?;
        }
    }
    let time = thread_time() - before;
    let nr_kept = room.group.stat_total(StatItem::FileKernel) as u64 / PAGE;
    let nr_there = kernel.with(|pages| pages.len() as u64);
    if nr_kept != nr_there {
        return Err(Failure::Wrong(format!("{nr_kept} pages are charged of {nr_there} that are kept")));
    }
    room.outcome(trace, time)
}

/// Reads a page through a kernel.
fn read_above(
    kernel: &Kernel,
    file: &dyn VolumeFile,
    is_kept: bool,
    (page, group): (u64, &Arc<Group>),
) -> Result<(), Failure> {
    if !is_kept {
        return read_page(file.content(), group, page).map(drop);
    }
    if kernel.with(|pages| !pages.insert((file.node(), page))) {
        return Ok(());
    }
    let io = file.begin_kernel_io(page * PAGE, PAGE, false, group);
    let read = read_page(file.content(), group, page)?;
    if read.len() as u64 != PAGE || io.is_none() {
        return Err(Failure::Wrong(format!("page {page} cannot be kept")));
    }
    drop(read);
    drop(io);
    Ok(())
}

/// Makes the files of a trace, from holes. Returns their names.
fn make_files(trace: &Trace, dir: &Path) -> Result<Vec<String>, Failure> {
    let mut lengths = Vec::new();
    for &(file, page) in &trace.places {
        if lengths.len() <= file as usize {
            lengths.resize(file as usize + 1, 0);
        }
        lengths[file as usize] = lengths[file as usize].max((page + 1) * PAGE);
    }
    let make = |(file, len): (usize, u64)| {
        let name = file.to_string();
        let made = std::fs::File::create(dir.join(&name)).and_then(|made| made.set_len(len));
        made.map(|()| name)
    };
    let names: Result<Vec<_>, _> = lengths.into_iter().enumerate().map(make).collect();
    names.map_err(Failure::at("cannot make a file"))
}

/// Replays a trace against our own pages.
pub(super) fn own(trace: &Trace) -> Result<Outcome, Failure> {
    let mut room = Room::new(trace.room, &[StatItem::InactiveFile, StatItem::ActiveFile])?;
    let nr_files = trace.places.iter().map(|place| place.0 as usize + 1).max().unwrap_or(0);
    let open = |_| room.engine.open_file(Arc::new(Generated), 1 << 40);
    let files: Result<Vec<Arc<File>>, _> = (0..nr_files).map(open).collect();
    let files = files.map_err(Failure::at("cannot open a file"))?;
    let before = thread_time();
    for (at, &page) in trace.requests.iter().enumerate() {
        if at % LIMIT_PERIOD == 0 {
            room.set_limit();
        }
        let (file, page) = trace.places[page as usize];
        drop(read_page(&files[file as usize], &room.group, page)?);
    }
    let time = thread_time() - before;
    room.outcome(trace, time)
}

/// Reads a page alone: read-ahead is not part of the comparison.
fn read_page<'f>(file: &'f Arc<File>, group: &Arc<Group>, page: u64) -> Result<PinnedPages<'f>, Failure> {
    let readahead = Readahead::new();
    readahead.note(u64::MAX - 2, u64::MAX - 1);
    file.read(group, page * PAGE, PAGE as usize, &readahead).map_err(Failure::at("cannot read"))
}
