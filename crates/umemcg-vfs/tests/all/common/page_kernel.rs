//! A kernel that keeps file pages of a volume and that the test plays, and a group that pays.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use umemcg::{Group, StatItem};
use umemcg_vfs::{
    Caller, IdleInode, KeptPages, KeptWindow, KernelCache, Lookup, NodeId, OFlags, Open, PageDrop, Volume,
    VolumeFile,
};

use super::{Fixture, ROOT, name};

pub const PAGE: u64 = 4096;

/// A kernel that notes what it is asked for, and does it when the test says so.
#[derive(Debug, Default)]
pub struct Kernel {
    pub drops: Mutex<Vec<PageDrop>>,
    pub changed: Mutex<Vec<NodeId>>,
    pub watched: Mutex<Vec<Box<dyn KeptPages>>>,
    /// Inodes that it was to let go of.
    pub idle: Mutex<Vec<NodeId>>,
    pub opens_silently: AtomicBool,
}

impl Kernel {
    /// Does what it was asked for, one thing every few milliseconds, until `is_over`. Returns the
    /// longest time between two of them.
    pub fn obey_slowly(&self, is_over: &AtomicBool) -> Duration {
        let (mut longest, mut before) = (Duration::ZERO, Instant::now());
        while !is_over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(4));
            let first = self.drops.lock().unwrap().pop();
            if let Some(drop) = first {
                drop.task.done(true);
            }
            let now = Instant::now();
            longest = longest.max(now - before);
            before = now;
        }
        longest
    }

    /// Does all that it was asked for; returns the first page of each range, and the one behind it.
    pub fn obey(&self) -> Vec<(u64, u64)> {
        let drops = std::mem::take(&mut *self.drops.lock().unwrap());
        let done = drops.into_iter().filter_map(|drop| {
            let may_tell = drop.task.may_tell();
            drop.task.done(may_tell);
            may_tell.then_some((drop.pages.start, drop.pages.end))
        });
        done.collect()
    }
}

impl Kernel {
    /// Returns up to `nr` of the windows that are charged, from a place on.
    pub fn windows(&self, place: &mut u32, nr: usize) -> Vec<KeptWindow> {
        self.watched.lock().unwrap()[0].kept_windows(place, nr).unwrap()
    }
}

/// Says that the kernel has dropped these pages of a window by itself. Returns whether that counts.
pub fn note_missing(window: &KeptWindow, pages: Range<u64>) -> bool {
    window.holder.upgrade().unwrap().note_missing(&pages, window.moment)
}

impl KernelCache for Kernel {
    fn asks_by_name(&self) -> bool {
        false
    }
    fn let_go(&self, idle: Vec<IdleInode>) -> bool {
        self.idle.lock().unwrap().extend(idle.iter().map(|idle| idle.node));
        true
    }
    fn keeps_pages(&self) -> bool {
        true
    }
    /// Longer than a test takes: an open notifies the kernel only of changes younger than this.
    fn attribute_lifetime(&self) -> Duration {
        Duration::from_secs(3600)
    }
    fn opens_silently(&self) -> bool {
        self.opens_silently.load(Ordering::Relaxed)
    }
    fn drop_pages(&self, drops: Vec<PageDrop>) {
        self.drops.lock().unwrap().extend(drops);
    }
    fn watch_pages(&self, kept: Box<dyn KeptPages>) {
        self.watched.lock().unwrap().push(kept);
    }
    fn attributes_changed(&self, node: NodeId) -> bool {
        self.changed.lock().unwrap().push(node);
        true
    }
}

pub struct World {
    pub fixture: Fixture,
    pub kernel: Arc<Kernel>,
    pub group: Arc<Group>,
}

impl World {
    pub fn new(limit: u64) -> Self {
        let fixture = Fixture::new();
        let kernel: Arc<Kernel> = Arc::default();
        fixture.vfs.set_kernel(Arc::<Kernel>::clone(&kernel));
        let group = fixture.engine.create_group(fixture.engine.root(), "g".as_ref()).unwrap();
        fixture.engine.set_max(&group, limit);
        Self { fixture, kernel, group }
    }

    /// Opens a file that is on the host already, for this group.
    pub fn open(&self, path: &str, nr_pages: u64) -> Arc<dyn VolumeFile> {
        std::fs::write(self.fixture.dir.path().join(path), vec![7; (nr_pages * PAGE) as usize]).unwrap();
        self.reopen(path)
    }

    pub fn reopen(&self, path: &str) -> Arc<dyn VolumeFile> {
        self.open_as(path, OFlags::RDWR)
    }

    /// Opens a file that is on the host already for reading only.
    pub fn open_to_read(&self, path: &str, nr_pages: u64) -> Arc<dyn VolumeFile> {
        std::fs::write(self.fixture.dir.path().join(path), vec![7; (nr_pages * PAGE) as usize]).unwrap();
        self.reopen_to_read(path)
    }

    pub fn reopen_to_read(&self, path: &str) -> Arc<dyn VolumeFile> {
        self.open_as(path, OFlags::RDONLY)
    }

    fn open_as(&self, path: &str, flags: OFlags) -> Arc<dyn VolumeFile> {
        let entry = self.fixture.vfs.lookup(&self.caller(), ROOT, name(path)).unwrap();
        self.fixture.vfs.open(&self.caller(), entry.node, flags).unwrap()
    }

    /// The process that pays.
    pub fn caller(&self) -> Caller {
        Caller { group: Arc::clone(&self.group), ..self.fixture.root.clone() }
    }

    /// Reads as the kernel does to fill its cache.
    pub fn read(&self, file: &Arc<dyn VolumeFile>, first: u64, nr: u64) {
        let io = file.begin_kernel_io(first * PAGE, nr * PAGE, false, &self.group).unwrap();
        let pages = file.read(&self.group, first * PAGE, (nr * PAGE) as usize).unwrap();
        assert_eq!(pages.len() as u64, nr * PAGE);
        drop(pages);
        drop(io);
    }

    /// Makes a directory on the host with this many files, their names 8 bytes long; 128 fill a
    /// page of the kernel.
    pub fn directory(&self, path: &str, nr_files: usize) -> NodeId {
        let dir = self.fixture.dir.path().join(path);
        std::fs::create_dir(&dir).unwrap();
        (0..nr_files).for_each(|nr| std::fs::write(dir.join(format!("{nr:08}")), []).unwrap());
        self.fixture.vfs.lookup(&self.fixture.root, ROOT, name(path)).unwrap().node
    }

    /// Lists up to `max` names from a position on as the kernel does, at this group's cost. Returns
    /// the position behind them, and how many there were.
    pub fn list(&self, node: NodeId, position: u64, max: usize) -> (u64, usize) {
        let dir = self.fixture.vfs.directory_for_request(node).unwrap();
        let (io, mut part) = dir.begin_kernel_io(position, &self.group).unwrap();
        let (mut end, mut nr) = (position, 0);
        dir.readdir(position, &mut |entry| {
            if nr == max {
                return false;
            }
            part.push(entry.next_offset, entry.name.len());
            (end, nr) = (entry.next_offset, nr + 1);
            true
        })
        .unwrap();
        io.listed(&part);
        (end, nr)
    }

    /// Pages that the kernel has at this group's cost.
    pub fn kept(&self) -> u64 {
        kept(&self.group)
    }
}

pub fn kept(group: &Group) -> u64 {
    group.stat_total(StatItem::FileKernel) as u64 / PAGE
}
