//! The ground of `tenants`: a mount with two volumes, the groups of A and of B, and their files.
//! The volume `local` is a directory. The volume `slow` is the mount of a second daemon, its store,
//! which a load may have stand still.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use rustix::thread::gettid;

use crate::footprint::Program;
use crate::mounts::Mount;
use crate::options::{Failure, Options};

pub const MIB: u64 = 1 << 20;
pub const PAGE: u64 = 4096;
const POOL: &str = "256M";
const A_LIMIT: u64 = 64 * MIB;
/// The groups below A's, and the directories to which a rule gives groups.
pub const NR_GROUPS: usize = 150;
/// The limit of each group of A that meets its limit all the time.
const EVENTS_LIMIT: u64 = 256 << 10;
/// A's `memory.high`.
const HIGH: u64 = MIB;
/// The size of the files read by A and B. The files are sparse, so the device behind them matters
/// little, and far larger than the pool, so hardly any page is cached.
pub const COLD_FILE: u64 = 1 << 40;
/// The size of the file that A's groups write together.
pub const WRITE_FILE: u64 = 256 * MIB;
/// The size of the file that A writes in each directory of the rule.
pub const RULE_FILE: u64 = 2 * MIB;
/// The size of the file that B reads and A writes.
pub const SHARED_FILE: u64 = 16 * MIB;
/// The limit of B's group where its dirty data counts.
const WRITER_LIMIT: u64 = 32 * MIB;
/// The limit of B's group whose events are heard of.
const HEARER_LIMIT: u64 = MIB;
/// At full size: names pinned by A, other names looked up by B, A's asynchronous reads.
const NR_PINNED: usize = 16_000;
const NR_WALKED: usize = 30_000;
const NR_READS: usize = 30_000;
const NR_MIN: usize = 1_000;
/// How long the store of a rename stands still at a time, at full size and at least.
const STANDS_STILL: Duration = Duration::from_secs(5);
const STANDS_STILL_MIN: Duration = Duration::from_millis(100);
/// The cost of a name.
const NAME_BYTES: u64 = 344;
const NAMES_PER_DIRECTORY: usize = 1_000;
/// The time limit for the daemon to be there, and for the store to stand still.
const WITHIN: Duration = Duration::from_secs(30);

/// See the module text.
pub struct Ground {
    mount: Option<Mount>,
    store: Option<Mount>,
    control: PathBuf,
    point: PathBuf,
    pub nr_pinned: usize,
    pub nr_walked: usize,
    pub nr_reads: usize,
    /// How long the store of a rename stands still at a time.
    pub stands_still: Duration,
    /// The pieces of the file that A's groups have written, by place.
    pub written: Vec<AtomicBool>,
    directory: tempfile::TempDir,
}

impl Ground {
    pub fn new(options: &Options, program: &Program) -> Result<Self, Failure> {
        let nr_files_max = raise_descriptor_limit();
        let scaled = |nr: usize| ((nr as f64 * options.scale.min(1.0)) as usize).max(NR_MIN);
        let [nr_pinned, nr_walked, nr_reads] = [NR_PINNED, NR_WALKED, NR_READS].map(scaled);
        let nr_pinned = nr_pinned.min(nr_files_max.saturating_sub(2_000));
        let directory =
            tempfile::tempdir_in(options.directory()).map_err(Failure::at("cannot make a directory"))?;
        let at = |name: &str| directory.path().join(name);
        make_files(directory.path(), nr_pinned + nr_walked).map_err(Failure::at("cannot make the files"))?;
        let umemcg = program.path()?;
        let (data, slow, control, point) = (at("store"), at("slow"), at("control"), at("mount"));
        let mut command = Command::new(&umemcg);
        command.arg("mount").arg(&data).arg(&slow).args(["--pool", "64M", "--page-cache", "own"]);
        let unmount = [&umemcg.display().to_string(), "umount", "{}"];
        let store = Mount::start("the store", slow.clone(), &mut command, &unmount)?;
        let mut command = Command::new(&umemcg);
        command.args(["mount", "--volumes"]).arg(&point).arg("--control").arg(&control);
        command.args(["--pool", POOL, "--page-cache", "own"]);
        command.args(["--rule", "path:/local/p/*=/by-rule/{1}"]);
        let mount = Mount::start("umemcg", point.clone(), &mut command, &unmount)?;
        let local = at("local");
        let nr_pieces = WRITE_FILE / MIB;
        let written = (0..nr_pieces).map(|_| AtomicBool::new(false)).collect();
        let ground = Self {
            mount: Some(mount),
            store: Some(store),
            control,
            point,
            nr_pinned,
            nr_walked,
            nr_reads,
            stands_still: STANDS_STILL.mul_f64(options.scale.min(1.0)).max(STANDS_STILL_MIN),
            written,
            directory,
        };
        ground.add_volume(&umemcg, "local", &local)?;
        ground.add_volume(&umemcg, "slow", &slow)?;
        ground.add_groups()?;
        Ok(ground)
    }

    fn add_volume(&self, umemcg: &Path, name: &str, data: &Path) -> Result<(), Failure> {
        let mut add = Command::new(umemcg);
        add.args(["volume", "add", name, "--dir"]).arg(data).arg("--mount").arg(&self.point);
        add.stdout(Stdio::null()).stderr(Stdio::null());
        // Its socket is there a moment after its mount.
        self.until(&format!("the volume {name} is added"), || {
            add.status().is_ok_and(|status| status.success())
        })
    }

    fn add_groups(&self) -> Result<(), Failure> {
        self.until("the control files are there", || self.control.join("memory.stat").exists())?;
        let names = (self.nr_pinned + self.nr_walked / 4) as u64 * NAME_BYTES;
        let mut groups = vec![
            ("a".to_owned(), Some(A_LIMIT)),
            ("a/high".to_owned(), None),
            ("b".to_owned(), None),
            ("b/writes".to_owned(), Some(WRITER_LIMIT)),
            ("b/hears".to_owned(), Some(HEARER_LIMIT)),
            ("b/walks".to_owned(), Some(names)),
        ];
        for at in 0..NR_GROUPS {
            groups.push((format!("a/s{at}"), None));
            groups.push((format!("a/e{at}"), Some(EVENTS_LIMIT)));
        }
        for (group, limit) in groups {
            fs::create_dir(self.control.join(&group)).map_err(Failure::at("cannot make a group"))?;
            if let Some(limit) = limit {
                self.set(&format!("{group}/memory.limit_in_bytes"), limit)?;
            }
        }
        self.set("a/high/memory.high", HIGH)
    }

    fn set(&self, file: &str, value: u64) -> Result<(), Failure> {
        let failed = format!("cannot write {value} to {file}");
        fs::write(self.control.join(file), value.to_string()).map_err(Failure::at(&failed))
    }

    fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) -> Result<(), Failure> {
        let deadline = Instant::now() + WITHIN;
        while !is_so() {
            if Instant::now() > deadline {
                return Err(Failure::Setup(format!("not within {} s: {what}", WITHIN.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Returns the path of a file of the volume `local`, or `slow`.
    pub fn at(&self, path: &str) -> PathBuf {
        self.point.join(path)
    }

    /// Returns the path of a control file.
    pub fn control(&self, path: &str) -> PathBuf {
        self.control.join(path)
    }

    /// Returns a path for a program.
    pub fn outside(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the path of a name pinned by A or walked by B.
    pub fn name(&self, nr: usize) -> PathBuf {
        self.at("local").join(name(nr))
    }

    /// Moves this thread to the group to charge from now on.
    pub fn join(&self, group: &str) -> Result<(), Failure> {
        let tid = gettid().as_raw_nonzero().to_string();
        fs::write(self.control.join(group).join("tasks"), tid).map_err(Failure::at("cannot join a group"))
    }

    /// Has the store stand still until the result is dropped.
    pub fn stop_store(&self) -> Result<StoppedStore, Failure> {
        let Some(store) = &self.store else { return Err(Failure::Setup("the store has ended".into())) };
        let process = i32::try_from(store.process_id()).ok().and_then(Pid::from_raw);
        let process = process.ok_or_else(|| Failure::Setup("the store has no process".into()))?;
        kill_process(process, Signal::STOP).map_err(Failure::at("cannot stop the store"))?;
        let stopped = StoppedStore(process);
        self.until("the store stands still", || stopped.stands_still())?;
        Ok(stopped)
    }

    /// Ends the mounts, and checks A's written data.
    pub fn end(mut self) -> Result<(), Failure> {
        self.mount.take().map_or(Ok(()), Mount::end)?;
        self.store.take().map_or(Ok(()), Mount::end)?;
        let local = self.directory.path().join("local");
        let pieces = pieces_of(&local.join("written"), WRITE_FILE)?;
        for (at, (found, is_written)) in pieces.into_iter().zip(&self.written).enumerate() {
            if found != Some(u8::from(is_written.load(Relaxed))) {
                return Err(Failure::Wrong(format!("MiB {at} of what A's groups wrote is not right")));
            }
        }
        for at in 0..NR_GROUPS {
            let pieces = pieces_of(&local.join(format!("p/{at}/written")), RULE_FILE)?;
            if pieces.iter().any(|found| !matches!(found, Some(0 | 1))) {
                return Err(Failure::Wrong(format!("what A wrote in directory {at} is not right")));
            }
        }
        Ok(())
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // After a failed run. The store first: the other daemon may wait for it. A killed daemon
        // leaves the mount of its control files.
        drop(self.store.take());
        if self.mount.take().is_some() {
            let _ = Command::new("fusermount3").args(["-uz", "--"]).arg(&self.control).status();
        }
    }
}

/// A store that stands still, and goes on when this is dropped.
pub struct StoppedStore(Pid);

impl StoppedStore {
    /// Returns whether no thread of it runs any more.
    fn stands_still(&self) -> bool {
        let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", self.0.as_raw_nonzero())) else { return true };
        let mut stats = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
        let stands =
            |stat: String| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['R', 'S']));
        stats.all(stands)
    }
}

impl Drop for StoppedStore {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Raises this process's limit of descriptors as far as it may; returns it.
fn raise_descriptor_limit() -> usize {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit as usize)
}

fn name(nr: usize) -> String {
    format!("names/{}/{}", nr / NAMES_PER_DIRECTORY, nr % NAMES_PER_DIRECTORY)
}

/// Makes the files of both volumes.
fn make_files(directory: &Path, nr_names: usize) -> std::io::Result<()> {
    let (local, store) = (directory.join("local"), directory.join("store"));
    for name in
        ["local/shared", "local/synced", "local/one", "local/two", "store/one", "store/two", "control"]
    {
        fs::create_dir_all(directory.join(name))?;
    }
    for path in [local.join("cold"), store.join("cold")] {
        File::create(path)?.set_len(COLD_FILE)?;
    }
    File::create(local.join("written"))?.set_len(WRITE_FILE)?;
    File::create(local.join("pages"))?.set_len(SHARED_FILE)?;
    File::create(local.join("own"))?.set_len(SHARED_FILE)?;
    for path in [local.join("one/f"), store.join("one/f")] {
        File::create(path)?;
    }
    for at in 0..NR_GROUPS {
        let place = local.join(format!("p/{at}"));
        fs::create_dir_all(&place)?;
        File::create(place.join("written"))?.set_len(RULE_FILE)?;
        File::create(place.join("read"))?.set_len(COLD_FILE)?;
    }
    for nr in 0..nr_names {
        let path = local.join(name(nr));
        if nr.is_multiple_of(NAMES_PER_DIRECTORY)
            && let Some(directory) = path.parent()
        {
            fs::create_dir_all(directory)?;
        }
        File::create(path)?;
    }
    Ok(())
}

/// Returns the byte filling each mebibyte of a file; `None` for a mebibyte of different bytes.
fn pieces_of(path: &Path, len: u64) -> Result<Vec<Option<u8>>, Failure> {
    let failed = "cannot read what A wrote";
    let file = File::open(path).map_err(Failure::at(failed))?;
    let mut piece = vec![2; MIB as usize];
    let read = |at: u64| -> Result<Option<u8>, Failure> {
        file.read_exact_at(&mut piece, at * MIB).map_err(Failure::at(failed))?;
        Ok(piece.iter().all(|&byte| byte == piece[0]).then_some(piece[0]))
    };
    (0..len / MIB).map(read).collect()
}

/// Random numbers that are the same in each run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 20) % bound
    }
}
