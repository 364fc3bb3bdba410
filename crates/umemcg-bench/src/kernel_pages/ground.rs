//! The common ground of the sections of `kernel-pages`: a mount with pages in the kernel's cache, a
//! mount with pages of its own, and the files behind them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use umemcg_base::PAGE_SIZE_U64;

use crate::fuse::Programs;
use crate::grouped_mount::GroupedMount;
use crate::kernel_view::KernelView;
use crate::neighbour_load::{Done, EACH_FILE_BYTES, STREAM_BYTES, Tempo, Work};
use crate::options::{Failure, Options};
use crate::store::write_contents;
use crate::tenant::Tenant;
use crate::threads::{time_of_machine, time_of_process};

pub const MIB: u64 = 1 << 20;
/// At full size.
const POOL_BYTES: u64 = 256 * MIB;
const POOL_BYTES_MIN: u64 = 64 * MIB;
/// The size of a stream, as a multiple of the room it goes through.
pub const STREAM_FACTOR: u64 = 10;
/// A tenant without a time limit of its own ends within this.
const LONG: Duration = Duration::from_secs(120);

/// The most reads of a file until the kernel has all of it.
const NR_FILLS_MAX: u32 = 3;

/// The groups of each mount: the tenants A and B, a group for A's requests with next to no room, a
/// streaming group, and a group without a limit.
pub const A: &str = "a";
pub const B: &str = "b";
pub const LITTLE: &str = "little";
pub const STREAMER: &str = "streamer";
pub const FILLER: &str = "filler";
/// Below this much room the mount serves files without the kernel's cache.
const LITTLE_BYTES: u64 = 512 << 10;

/// Sizes in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub pool: u64,
    /// The limits of A and of B.
    pub a: u64,
    pub b: u64,
    /// B's file.
    pub set: u64,
    /// The limit of the streaming group.
    pub room: u64,
    /// The file whose pages are reclaimed.
    pub taken: u64,
}

impl Sizes {
    fn new(scale: f64) -> Self {
        let pool = ((POOL_BYTES as f64 * scale) as u64).max(POOL_BYTES_MIN).next_multiple_of(32 * MIB);
        Self { pool, a: pool / 2, b: pool * 3 / 8, set: pool / 4, room: pool / 4, taken: pool / 2 }
    }
}

/// Processor time and real time of a stream, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Spent {
    /// Of the program.
    pub program: f64,
    /// Of the program and of the daemon.
    pub processes: f64,
    /// Of the whole machine.
    pub machine: f64,
    pub elapsed: f64,
}

/// See the module text.
pub struct Ground {
    pub kernel: GroupedMount,
    /// Like `kernel`, but other programs may change the directory: each open comes to the daemon.
    pub shared: GroupedMount,
    pub own: GroupedMount,
    /// A directory without a mount.
    pub plain: PathBuf,
    pub view: KernelView,
    pub sizes: Sizes,
    _directory: tempfile::TempDir,
}

impl Ground {
    /// Makes the files and the mounts.
    pub fn new(options: &Options, programs: &Programs) -> Result<Self, Failure> {
        let sizes = Sizes::new(options.scale);
        let directory = tempfile::Builder::new()
            .prefix("umemcg-bench.")
            .tempdir_in(options.directory())
            .map_err(Failure::at("cannot make a directory"))?;
        let top = directory.path();
        let [kernel, shared, own, plain] = ["kernel", "shared", "own", "plain"].map(|name| top.join(name));
        for data in [&kernel, &shared, &own] {
            fs::create_dir_all(data.join("data/stream")).map_err(Failure::at("cannot make a directory"))?;
        }
        fs::create_dir_all(plain.join("stream")).map_err(Failure::at("cannot make a directory"))?;
        let view = KernelView::build(top)?;
        write(&kernel.join("data/set"), sizes.set)?;
        link(&kernel.join("data/set"), &plain.join("set"))?;
        write(&kernel.join("data/taken"), sizes.taken)?;
        write(&plain.join("taken"), sizes.taken)?;
        write(&kernel.join("data/large"), STREAM_FACTOR * sizes.room)?;
        for other in [&shared, &own] {
            link(&kernel.join("data/large"), &other.join("data/large"))?;
        }
        for at in 0..STREAM_FACTOR * sizes.pool / EACH_FILE_BYTES {
            let [one, others @ ..] =
                [&kernel, &shared, &own].map(|side| side.join(format!("data/stream/{at}")));
            write(&one, EACH_FILE_BYTES)?;
            others.iter().try_for_each(|other| link(&one, other))?;
            link(&one, &plain.join(format!("stream/{at}")))?;
        }
        rustix::fs::sync();
        let (umemcg, _) = programs.find()?;
        let pool = format!("{}M", sizes.pool / MIB);
        let mount = |name, place: &Path, whose, is_exclusive| {
            let options = ["--pool", &pool, "--page-cache", whose, "--exclusive"];
            let options = if is_exclusive { &options[..] } else { &options[..4] };
            GroupedMount::start(name, &umemcg, place, &place.join("data"), options)
        };
        let kernel = mount("umemcg, kernel pages", &kernel, "kernel", true)?;
        let shared = mount("umemcg, kernel pages, not exclusive", &shared, "kernel", false)?;
        let own = mount("umemcg, own pages", &own, "own", true)?;
        for mount in [&kernel, &shared, &own] {
            let limits = [(A, sizes.a), (B, sizes.b), (LITTLE, LITTLE_BYTES), (STREAMER, sizes.room)];
            limits.iter().try_for_each(|&(group, limit)| mount.add_group(group, Some(limit)))?;
            mount.add_group(FILLER, None)?;
        }
        Ok(Self { kernel, shared, own, plain, view, sizes, _directory: directory })
    }

    /// Returns the files through which A streams, as they are seen on the mount.
    pub fn stream_files(&self) -> Vec<PathBuf> {
        let nr = STREAM_FACTOR * self.sizes.pool / EACH_FILE_BYTES;
        (0..nr).map(|at| self.kernel.seen().join(format!("stream/{at}"))).collect()
    }

    /// Reads a file, and checks that the kernel has all of its pages then: how many. Reads it again
    /// if the host has dropped some meanwhile.
    pub fn read_until_cached(
        &self,
        path: &Path,
        mut read: impl FnMut() -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        let len = fs::metadata(path).map_err(Failure::at("cannot look at a file"))?.len();
        let (pages, mut found) = (len / PAGE_SIZE_U64, 0);
        for _ in 0..NR_FILLS_MAX {
            read()?;
            found = self.view.count(&[path.to_owned()])?;
            if found == pages {
                return Ok(pages);
            }
        }
        let path = path.display();
        Err(Failure::Wrong(format!("the kernel has {found} of {pages} pages of {path}, which was read")))
    }

    /// Has a group read a file, as [`read_until_cached`](Self::read_until_cached).
    pub fn fill(&self, group: &str, file: &str) -> Result<u64, Failure> {
        let path = self.kernel.seen().join(file);
        let script = format!("{} && exec cat \"$0\"", self.kernel.enter(group));
        self.read_until_cached(&path, || {
            let read = Command::new("sh").arg("-c").arg(&script).arg(&path).stdout(Stdio::null()).status();
            if read.map_err(Failure::at("cannot start sh"))?.success() {
                return Ok(());
            }
            Err(Failure::Wrong(format!("{} cannot be read", path.display())))
        })
    }

    /// Has a group of a mount read so many bytes of a file or of the files of a directory.
    pub fn stream(
        &self,
        mount: &GroupedMount,
        group: &str,
        what: &str,
        bytes: u64,
    ) -> Result<Spent, Failure> {
        let load = (Work::Stream, mount.seen().join(what), bytes);
        let times = Tempo::Times(bytes / STREAM_BYTES as u64);
        let mut tenant = Tenant::start(load, LONG, times, |process| mount.place(group, process))?;
        let before = (time_of_process(mount.process_id()), time_of_machine());
        tenant.tell()?;
        let done = tenant.done()?;
        let (daemon, machine) =
            (time_of_process(mount.process_id()) - before.0, time_of_machine() - before.1);
        check(&done, bytes / STREAM_BYTES as u64)?;
        Ok(Spent {
            program: done.cpu_seconds,
            processes: done.cpu_seconds + daemon.as_secs_f64(),
            machine: machine.as_secs_f64(),
            elapsed: done.seconds,
        })
    }

    /// Ends the mounts.
    pub fn end(self) -> Result<(), Failure> {
        self.kernel.end()?;
        self.shared.end()?;
        self.own.end()
    }
}

fn check(done: &Done, calls: u64) -> Result<(), Failure> {
    if done.calls == calls && done.refused == 0 {
        return Ok(());
    }
    Err(Failure::Wrong(format!("{} of {calls} calls, {} refused", done.calls, done.refused)))
}

fn write(path: &Path, len: u64) -> Result<(), Failure> {
    let mut file = File::create(path).map_err(Failure::at("cannot create a file"))?;
    write_contents(&mut file, len).map_err(Failure::at("cannot write a file"))
}

fn link(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::hard_link(from, to).map_err(Failure::at("cannot link a file"))
}
