//! What all threads of a round share: one engine, the bucket, the staging directory, the groups,
//! the volume with a kernel above it; and what each thread is doing.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use umemcg::files::{ReadStep, StartedRead};
use umemcg::{ChargeEffort, Engine, EngineConfig, Group, StatItem};
use umemcg_vfs::bucket::StagedFile;
use umemcg_vfs::object::{Freshness, ObjectConfig, StagingConfig};
use umemcg_vfs::{
    Caller, IdleInode, KernelCache, Lookup, NodeId, ObjectVolume, Open, PageDrop, VfsError, Volume,
    VolumeError, VolumeFile,
};

use crate::common::object_world::World;
use crate::object_together::bucket::FaultyBucket;
use crate::object_together::dice::Dice;
use crate::object_together::lock;

/// The tenants.
pub const NR_GROUPS: usize = 3;
/// Objects of a kind that all users share.
pub const NR_SHARED: usize = 2;
/// Longest wait for anything.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A kernel above the volume: it refers to some names that were looked up, until it is asked to let
/// go of them, and may keep the pages that are read and written, until it is asked to drop them.
#[derive(Debug, Default)]
pub struct Kernel {
    volume: Mutex<Weak<ObjectVolume>>,
    refs: Mutex<HashMap<NodeId, u64>>,
    keeps_pages: bool,
    drops: Mutex<Vec<PageDrop>>,
}

impl Kernel {
    /// Refers to a node that was looked up.
    pub fn keep(&self, node: NodeId) {
        *lock(&self.refs).entry(node).or_default() += 1;
    }

    pub fn forget_all(&self) {
        let all: Vec<_> = lock(&self.refs).drain().collect();
        let volume = lock(&self.volume).upgrade();
        all.into_iter().for_each(|(node, nr)| volume.iter().for_each(|volume| volume.forget(node, nr)));
    }

    /// Drops pages as it is asked to, on a thread of its own, until it is gone.
    fn start_dropping(self: &Arc<Self>) {
        let kernel = Arc::downgrade(self);
        std::thread::spawn(move || {
            while let Some(kernel) = kernel.upgrade() {
                // Not locked meanwhile: the end of one may ask for another.
                let drops = std::mem::take(&mut *lock(&kernel.drops));
                for drop in drops {
                    let may_tell = drop.task.may_tell();
                    drop.task.done(may_tell);
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        });
    }
}

impl KernelCache for Kernel {
    fn asks_by_name(&self) -> bool {
        false
    }
    fn let_go(&self, idle: Vec<IdleInode>) -> bool {
        let volume = lock(&self.volume).upgrade();
        for idle in idle {
            let known = lock(&self.refs).remove(&idle.node);
            if let (Some(nr), Some(volume)) = (known, &volume) {
                volume.forget(idle.node, nr);
            }
        }
        true
    }
    fn keeps_pages(&self) -> bool {
        self.keeps_pages
    }
    fn drop_pages(&self, drops: Vec<PageDrop>) {
        lock(&self.drops).extend(drops);
    }
}

/// What a thread is doing, for a report.
#[derive(Debug)]
pub struct Doing {
    pub name: String,
    what: Mutex<(String, Instant)>,
    is_over: AtomicBool,
}

impl Doing {
    pub fn begin(&self, what: impl Into<String>) {
        *lock(&self.what) = (what.into(), Instant::now());
    }

    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// See the module text.
pub struct Together {
    pub seed: u64,
    pub engine: Arc<Engine>,
    pub bucket: Arc<FaultyBucket>,
    pub staging: Arc<tempfile::TempDir>,
    pub max_bytes: u64,
    /// There is no staging directory.
    pub streams: bool,
    /// The kernel keeps pages.
    pub keeps_pages: bool,
    pub groups: Mutex<Vec<Arc<Group>>>,
    /// None while it is closed.
    pub volume: Mutex<Option<Arc<ObjectVolume>>>,
    pub kernel: Mutex<Arc<Kernel>>,
    /// One writer at a time has an object of `lock/`.
    pub turns: [Mutex<()>; NR_SHARED],
    /// The users have ended, or one of them has failed.
    pub is_over: AtomicBool,
    pub doings: Mutex<Vec<Arc<Doing>>>,
    /// The round has ended.
    pub has_ended: AtomicBool,
    /// What the pool had before there were groups.
    pub usage_before: u64,
    /// What was in `lost/` when the volume was opened: files and bytes.
    pub lost_before: Mutex<(usize, u64)>,
    next_serial: AtomicU64,
}

impl Together {
    pub fn new(seed: u64, dice: &mut Dice) -> Arc<Self> {
        let pool_bytes = [6 << 20, 8 << 20, 16 << 20][dice.below(3) as usize];
        let engine = Engine::new(EngineConfig::new(pool_bytes).nr_kswapd(1)).unwrap();
        // Write-back by age in a round of seconds, too.
        engine.cache().dirty_limits().set_interval(Duration::from_millis(100));
        engine.cache().dirty_limits().set_expire(Duration::from_millis(300));
        let usage_before = engine.root().usage_exact();
        let groups = (0..NR_GROUPS)
            .map(|nr| engine.create_group(engine.root(), OsStr::new(&format!("g{nr}"))).unwrap())
            .collect();
        Arc::new(Self {
            seed,
            engine,
            bucket: FaultyBucket::new(seed),
            staging: Arc::new(tempfile::tempdir().unwrap()),
            max_bytes: [64 << 20, 64 << 20, 4 << 20][dice.below(3) as usize],
            streams: dice.one_in(3),
            keeps_pages: !dice.one_in(3),
            groups: Mutex::new(groups),
            volume: Mutex::default(),
            kernel: Mutex::default(),
            turns: Default::default(),
            is_over: AtomicBool::new(false),
            doings: Mutex::default(),
            has_ended: AtomicBool::new(false),
            usage_before,
            lost_before: Mutex::default(),
            next_serial: AtomicU64::new(1),
        })
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Returns a number for a version that no other has.
    pub fn next_serial(&self) -> u32 {
        self.next_serial.fetch_add(1, Ordering::Relaxed) as u32
    }

    pub fn group(&self, nr: usize) -> Arc<Group> {
        Arc::clone(&lock(&self.groups)[nr % NR_GROUPS])
    }

    pub fn doing(&self, name: String) -> Arc<Doing> {
        let what = Mutex::new(("nothing yet".into(), Instant::now()));
        let doing = Arc::new(Doing { name, what, is_over: AtomicBool::new(false) });
        lock(&self.doings).push(Arc::clone(&doing));
        doing
    }

    /// Returns the volume as a thread of a group uses it.
    pub fn view(&self, thread: u32) -> World {
        let group = self.group(thread as usize);
        World {
            volume: self.volume(),
            bucket: Arc::clone(&self.bucket.memory),
            engine: Arc::clone(&self.engine),
            me: Caller { uid: 0, gid: 0, supplementary_gid: None, group, umask: 0, thread },
            staging: Arc::clone(&self.staging),
            config: self.staging_config(),
        }
    }

    fn staging_config(&self) -> StagingConfig {
        StagingConfig {
            retry_pause: Duration::from_millis(200),
            ..StagingConfig::new(self.staging.path().into(), self.max_bytes)
        }
    }

    pub fn volume(&self) -> Arc<ObjectVolume> {
        Arc::clone(lock(&self.volume).as_ref().unwrap())
    }

    pub fn kernel(&self) -> Arc<Kernel> {
        Arc::clone(&lock(&self.kernel))
    }

    /// Opens the volume, when the last bytes of the one before are written.
    pub fn mount(&self) {
        let config = ObjectConfig {
            bucket: Arc::clone(&self.bucket) as _,
            freshness: Freshness::CloseToOpen,
            stores_attributes: true,
            uid: 7,
            gid: 8,
            staging: (!self.streams).then(|| self.staging_config()),
            streams: self.streams,
            notes: self.streams.then(|| self.staging.path().to_owned()),
        };
        let until = Instant::now() + PATIENCE;
        let volume = loop {
            match ObjectVolume::open(&self.engine, &config, 0) {
                Err(VolumeError::InUse { .. }) if Instant::now() < until => {
                    self.engine.sync_all(Duration::from_secs(1));
                }
                opened => break opened.unwrap(),
            }
        };
        let kernel = Arc::new(Kernel { keeps_pages: self.keeps_pages, ..Kernel::default() });
        kernel.start_dropping();
        *lock(&kernel.volume) = Arc::downgrade(&volume);
        volume.set_kernel(Arc::clone(&kernel) as _);
        *lock(&self.kernel) = kernel;
        *lock(&self.volume) = Some(volume);
        *lock(&self.lost_before) = self.lost_so_far();
    }

    /// Returns how many files are in `lost/`, and their bytes.
    pub fn lost_so_far(&self) -> (usize, u64) {
        let staged = self.view(0).staged();
        let lost = staged.iter().filter(|staged| staged.is_lost);
        (lost.clone().count(), lost.map(|staged| staged.bytes).sum())
    }

    /// Closes the volume without a word.
    pub fn unmount(&self) {
        let kernel = self.kernel();
        kernel.forget_all();
        *lock(&kernel.volume) = Weak::new();
        let volume = lock(&self.volume).take();
        drop(volume);
    }

    /// Returns what is in `lost/`, with its keys and bytes.
    pub fn lost(&self) -> Vec<(StagedFile, Vec<u8>)> {
        let staged = self.view(0).staged().into_iter().filter(|staged| staged.is_lost);
        staged.map(|staged| (staged.clone(), std::fs::read(&staged.path).unwrap_or_default())).collect()
    }

    /// Returns whether these bytes are in `lost/`, at the latest when all is written.
    pub fn has_lost(&self, bytes: &[u8]) -> bool {
        let has = || self.lost().iter().any(|(_, lost)| lost == bytes);
        has() || {
            self.engine.sync_all(Duration::from_secs(60));
            has()
        }
    }

    /// Describes what the pool holds.
    fn usage(&self) -> String {
        let root = self.engine.root();
        let mut text = format!(
            "  the pool has {} of {}, {} before:",
            root.usage_exact(),
            root.max_bytes(),
            self.usage_before
        );
        for &item in StatItem::ALL {
            let total = root.stat_total(item);
            if total != 0 {
                text += &format!(" {item:?} {total}");
            }
        }
        text + "\n"
    }

    /// Until the round ends, prints what each thread is doing and ends the process if one has done
    /// the same for too long.
    pub fn watch(&self) {
        while !self.has_ended.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
            let mut report = format!("FAILED: a thread hangs; {}={}\n", super::SEED, self.seed);
            let mut hangs = false;
            for doing in lock(&self.doings).iter().filter(|doing| !doing.is_over.load(Ordering::Relaxed)) {
                let (what, since) = lock(&doing.what).clone();
                hangs |= since.elapsed() > PATIENCE;
                report += &format!("  {}: {what}, for {:?}\n", doing.name, since.elapsed());
            }
            if hangs {
                report += &self.usage();
                // Past the capture of the tests' output, which an abort would lose.
                let _ = std::io::Write::write_all(&mut std::io::stderr(), report.as_bytes());
                std::process::abort();
            }
        }
    }
}

/// Reads a part of an open file, in steps or at once; fewer bytes at its end.
pub fn read(
    world: &World,
    file: &Arc<dyn VolumeFile>,
    (offset, len): (u64, usize),
    in_steps: bool,
) -> Result<Vec<u8>, VfsError> {
    let copied = |pages: umemcg::files::PinnedPages<'_>| pages.to_vec();
    // Dropped last, with nothing pinned.
    let io = file.begin_kernel_io(offset, len as u64, false, world.group());
    if io.as_ref().is_some_and(|io| io.is_beyond_limit()) {
        drop(world.engine.charge_with(world.group(), 4096, ChargeEffort::Opportunistic));
    }
    if !in_steps {
        return file.read(world.group(), offset, len).map(copied);
    }
    let mut read = file.content().start_read(offset, len);
    loop {
        let waiting = match file.step_read(world.group(), read)? {
            ReadStep::Done(pages) => return Ok(copied(pages)),
            ReadStep::Waits(waiting) => waiting,
        };
        let (sender, receiver) = std::sync::mpsc::channel::<StartedRead>();
        waiting.when_ready(move |read| drop(sender.send(read)));
        let Ok(next) = receiver.recv() else { return Err(Errno::IO.into()) };
        read = next;
    }
}

/// Reads an open file to its end.
pub fn read_all(
    world: &World,
    file: &Arc<dyn VolumeFile>,
    part: usize,
    in_steps: bool,
) -> Result<Vec<u8>, VfsError> {
    let mut bytes = Vec::new();
    loop {
        let more = read(world, file, (bytes.len() as u64, part), in_steps)?;
        if more.is_empty() {
            return Ok(bytes);
        }
        bytes.extend(more);
    }
}

/// Lists a directory: names with lengths, none for directories.
pub fn list(world: &World, path: &str) -> Result<Vec<(String, Option<u64>)>, VfsError> {
    let entry = world.find(path)?;
    let opened = world.volume.opendir(&world.me, entry.node);
    world.volume.forget(entry.node, 1);
    let directory = opened?;
    let (mut names, mut offset) = (Vec::new(), 0);
    loop {
        let before = offset;
        let mut sink = |entry: &umemcg_vfs::DirEntry<'_>| {
            if offset == before + 5 {
                return false;
            }
            offset = entry.next_offset;
            let found = entry.entry;
            if !matches!(entry.name.to_str(), Some("." | "..")) {
                let len = found
                    .filter(|found| found.attr.mode & 0o170_000 != 0o040_000)
                    .map(|found| found.attr.size);
                names.push((entry.name.to_str().unwrap().to_owned(), len));
            }
            found.inspect(|found| world.volume.forget(found.node, 1));
            true
        };
        directory.readdirplus(&world.me, before, &mut sink)?;
        if offset == before {
            break;
        }
    }
    names.sort();
    Ok(names)
}
