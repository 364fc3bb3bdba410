//! A life of the daemon: it starts on what the one before has left, users and disturbers are at
//! work, it ends in one of many ways, and what it leaves is compared with the model.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::harness::{Mount, Options, is_mounted};
use crate::together::accounts;
use crate::together::disk::Random;
use crate::together::disturbers::{self, ALL, Disturber, Surroundings};
use crate::together::helper::{self, Helper};
use crate::together::killed;
use crate::together::paced;
use crate::together::tree::{DIRECTORY_MODES, Tree};
use crate::together::user::User;
use crate::together::verdict::{self, End};
use crate::together::watcher::Watcher;
use crate::together::world::{GROUPS, Setting, World, page_cache};

/// Longest that one operation may take: a request may be slowed by seconds, and the machine be
/// busy.
const OPERATION_MAX: Duration = Duration::from_secs(90);
const POOLS: [&str; 4] = ["8M", "12M", "16M", "64M"];
/// Groups that rules make: for paths, and for one of the ordinary users.
const RULES: [&str; 4] = ["--rule", "path:/d2/*=/rule/{1}", "--rule", "uid:2=/rule/of-user"];
/// Pages of the largest file.
const LENGTHS: [usize; 3] = [6, 32, 96];

/// The volume below the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Below {
    /// A directory of the host.
    Directory,
    /// A small tmpfs, which another program fills at times.
    Small,
    /// A mount of another daemon, which stops at times.
    Mount,
    /// The same, of a `tmpfs` volume.
    Memory,
}

/// All of them.
pub const BELOW: [Below; 4] = [Below::Directory, Below::Small, Below::Mount, Below::Memory];

/// The end of a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// SIGKILL while users work.
    Kill,
    /// SIGKILL when they have ended.
    KillIdle,
    /// SIGKILL while the daemon writes what is left.
    KillWriting,
    /// SIGTERM when users have ended.
    Term,
    /// SIGTERM while they work; they go on for a while.
    TermBusy,
    /// `umemcg umount`.
    Command,
    /// umount2(2), after which the daemon writes the rest.
    Umount,
}

const ENDINGS: [Ending; 10] = [
    Ending::Kill,
    Ending::Kill,
    Ending::Kill,
    Ending::Kill,
    Ending::KillIdle,
    Ending::KillWriting,
    Ending::Term,
    Ending::TermBusy,
    Ending::Command,
    Ending::Umount,
];

/// A backing directory through several lives.
pub struct Era {
    below: Below,
    /// Dropped in this order: the mount before what is below it.
    mount: Option<Mount>,
    inner: Option<Mount>,
    directory: TempDir,
    helper: PathBuf,
    zero_range: Result<(), Errno>,
    /// The daemon that runs has [`RULES`].
    has_rules: bool,
}

/// What the lives have done.
#[derive(Debug, Default, Clone, Copy)]
pub struct LifeCounts {
    pub nr_operations: u64,
    pub nr_lives: u64,
    pub nr_kills: u64,
}

impl Era {
    pub fn new(below: Below) -> Self {
        let directory = tempfile::Builder::new().prefix("umemcg-together-").tempdir().unwrap();
        let store = directory.path().join("store");
        fs::create_dir(&store).unwrap();
        let inner = match below {
            Below::Directory => None,
            Below::Small => {
                let options = Some(c"size=10m");
                mount("umemcg-together", &store, "tmpfs", MountFlags::empty(), options).unwrap();
                None
            }
            Below::Mount => {
                let options = Options { pool: "32M", data: Some(store.clone()), ..Options::default() };
                Some(Mount::start_with(&options))
            }
            Below::Memory => {
                let mount = Mount::start_with(&Options { volumes: true, ..Options::default() });
                let at = ["--mount", mount.mnt().to_str().unwrap()].map(str::to_owned);
                let add = ["volume", "add", "store", "--tmpfs"];
                mount.umemcg(&[&add[..], &at.each_ref().map(String::as_str)].concat()).good();
                Some(mount)
            }
        };
        let helper = directory.path().join("helper");
        helper::build(&helper);
        let mut era =
            Self { below, mount: None, inner, directory, helper, zero_range: Ok(()), has_rules: false };
        for (nr, mode) in DIRECTORY_MODES.into_iter().enumerate() {
            let directory = era.data().join(format!("d{nr}"));
            fs::create_dir_all(&directory).unwrap();
            fs::set_permissions(directory, fs::Permissions::from_mode(mode)).unwrap();
        }
        killed::prepare(&era.data());
        paced::prepare(&era.data());
        era.zero_range = era.probe_zero_range();
        era
    }

    fn store(&self) -> PathBuf {
        match (&self.inner, self.below) {
            (None, _) => self.directory.path().join("store"),
            (Some(inner), Below::Memory) => inner.mnt().join("store"),
            (Some(inner), _) => inner.mnt(),
        }
    }

    fn data(&self) -> PathBuf {
        self.store().join("data")
    }

    fn filler(&self) -> PathBuf {
        self.store().join("filler")
    }

    fn probe_zero_range(&self) -> Result<(), Errno> {
        let path = self.store().join("probe");
        let file = fs::File::create(&path).unwrap();
        let probed = rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 0, 4096);
        fs::remove_file(path).unwrap();
        probed
    }

    fn start_daemon(&mut self, random: &mut Random) {
        let pool = POOLS[random.below(POOLS.len())];
        let mut arguments = Vec::new();
        if random.below(3) == 0 && page_cache() != "exclusive" {
            arguments.extend(["--attr-timeout", "0s"]);
        }
        if random.below(3) == 0 {
            arguments.extend(["--io-mode", ["direct", "dropbehind"][random.below(2)]]);
        }
        self.has_rules = random.below(3) == 0;
        if self.has_rules {
            arguments.extend(RULES);
        }
        let data = self.data();
        match &mut self.mount {
            None => {
                let options = Options { pool, data: Some(data), arguments, ..Options::default() };
                self.mount = Some(Mount::start_with(&options));
            }
            Some(mount) => {
                arguments.extend(["--pool", pool]);
                mount.start_daemon(&arguments);
            }
        }
    }

    fn mount(&mut self) -> &mut Mount {
        self.mount.as_mut().expect("started")
    }

    /// One life; says what was wrong.
    pub fn live(
        &mut self,
        random: &mut Random,
        work: Duration,
        counts: &mut LifeCounts,
    ) -> Result<(), String> {
        let data = self.data();
        let (tree, inodes) = verdict::read(&data)?;
        self.start_daemon(random);
        let mount = self.mount.as_ref().unwrap();
        for group in GROUPS {
            fs::create_dir(mount.cg().join(group)).unwrap();
        }
        let nr_users = 3 + random.below(10);
        let is_allowed = |other: &Disturber| !(other.is_outside() && page_cache() == "exclusive");
        let chosen = ALL.into_iter().filter(|_| random.below(3) > 0).filter(is_allowed);
        let chosen: Vec<Disturber> = chosen.collect();
        let is_full = chosen.iter().any(|disturber| disturber.name == "full");
        let root =
            rustix::fs::open(mount.mnt(), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let setting = Setting {
            root: root.unwrap(),
            mnt: mount.mnt(),
            cg: mount.cg(),
            data: data.clone(),
            helpers: GROUPS.iter().map(|group| Helper::start(mount, &self.helper, group)).collect(),
            len_max: LENGTHS[random.below(LENGTHS.len())] * 4096,
            may_be_full: is_full && self.below == Below::Small,
            zero_range: self.zero_range,
            has_rules: self.has_rules,
            nr_users,
        };
        let ending = ENDINGS[random.below(ENDINGS.len())];
        let names: Vec<&str> = chosen.iter().map(|disturber| disturber.name).collect();
        let rules = if self.has_rules { "rules, " } else { "" };
        let about =
            format!("{:?} below, {nr_users} users, {rules}{}; {ending:?}", self.below, names.join(", "));
        let watcher = Watcher::start(&setting.cg);
        let world = World::new(tree, &inodes, setting);
        drop(inodes);
        let lived = self.run(&world, &chosen, random, work, ending);
        counts.nr_operations += world.nr_operations.load(Ordering::Relaxed);
        counts.nr_lives += 1;
        let checked = lived.and_then(|()| self.end(world, watcher, ending, random, counts));
        checked.map_err(|why| format!("{about}\n{why}"))
    }

    /// Users and disturbers at work, until the life is over and they have ended.
    fn run(
        &mut self,
        world: &Arc<World>,
        chosen: &[Disturber],
        random: &mut Random,
        work: Duration,
        ending: Ending,
    ) -> Result<(), String> {
        let surroundings = Arc::new(Surroundings {
            store: self.inner.as_ref().map(Mount::pid),
            filler: (self.below == Below::Small).then(|| self.filler()),
        });
        let watchdog = Watchdog::start(world, self.mount().pid(), surroundings.store);
        let disturbers = disturbers::start(chosen, world, &surroundings, random);
        let users: Vec<_> = (0..world.nr_users)
            .map(|nr| {
                let user = User::new(world, nr, Random(random.next()));
                thread::Builder::new().name(format!("user-{nr}")).spawn(move || user.run()).unwrap()
            })
            .collect();
        world.have_joined.wait();
        let until = Instant::now() + work;
        while Instant::now() < until && !world.is_over() {
            thread::park_timeout(Duration::from_millis(2));
        }
        if world.failure().is_none() {
            match ending {
                Ending::Kill => {
                    world.is_dying.store(true, Ordering::SeqCst);
                    self.mount().signal(Signal::KILL);
                }
                Ending::TermBusy => {
                    world.is_ending.store(true, Ordering::SeqCst);
                    self.mount().signal(Signal::TERM);
                    thread::sleep(Duration::from_millis(random.below(300) as u64));
                }
                _ => {}
            }
        }
        world.is_over.store(true, Ordering::SeqCst);
        let panicked = users.into_iter().chain(disturbers).filter_map(|thread| thread.join().err()).count();
        drop(watchdog);
        disturbers::empty_store(&self.filler());
        match world.failure() {
            Some(why) => {
                let status = self.status_of_daemon();
                Err(format!("{why}\n{status}"))
            }
            None if panicked > 0 => Err(format!("{panicked} threads of the test panicked")),
            None => Ok(()),
        }
    }

    /// The daemon ends, and its work is judged.
    fn end(
        &mut self,
        world: Arc<World>,
        watcher: Watcher,
        ending: Ending,
        random: &mut Random,
        counts: &mut LifeCounts,
    ) -> Result<(), String> {
        let is_orderly = matches!(ending, Ending::Term | Ending::Command | Ending::Umount);
        let mount = self.mount.as_mut().unwrap();
        let mut world = Arc::try_unwrap(world).expect("all threads have ended");
        world.helpers.clear();
        if is_orderly {
            watcher.check()?;
        }
        drop(watcher);
        if is_orderly && random.below(2) == 0 {
            accounts::check(mount)?;
        }
        let tree = world.into_tree();
        let end = match ending {
            Ending::Kill | Ending::KillIdle | Ending::KillWriting => End::Killed,
            _ => End::Orderly,
        };
        match ending {
            Ending::Kill => {}
            Ending::KillIdle => mount.signal(Signal::KILL),
            Ending::KillWriting => {
                mount.signal(Signal::TERM);
                thread::sleep(Duration::from_micros(random.below(20_000) as u64));
                mount.signal(Signal::KILL);
            }
            Ending::Term => mount.signal(Signal::TERM),
            Ending::TermBusy => {}
            Ending::Command => drop(mount.umemcg(&["umount", mount.mnt().to_str().unwrap()])),
            Ending::Umount => {
                unmount(mount.mnt().as_path(), UnmountFlags::empty())
                    .map_err(|errno| format!("umount: {errno}"))?;
            }
        }
        let ended = mount.wait();
        if end == End::Orderly && !ended.status.success() {
            return Err(format!("the end: {ended:?}"));
        }
        counts.nr_kills += u64::from(end == End::Killed);
        self.judge(tree, end).map_err(|why| format!("{why}\nthe daemon said: {}", ended.stderr))?;
        self.clear_mounts(random.below(2) == 0);
        Ok(())
    }

    fn judge(&self, tree: Tree, end: End) -> Result<(), String> {
        verdict::check(&tree, &self.data(), end)
    }

    /// Takes dead mounts out of the tree, unless the next daemon is to take over both.
    fn clear_mounts(&self, is_for_next: bool) {
        let mount = self.mount.as_ref().unwrap();
        let paths = [mount.mnt(), mount.cg()].into_iter().filter(|path| is_mounted(path));
        let paths: Vec<PathBuf> = paths.collect();
        if !is_for_next || paths.len() < 2 {
            paths.iter().for_each(|path| unmount(path.as_path(), UnmountFlags::DETACH).unwrap());
        }
    }

    /// Kills the daemon if it lives, after a failure, and says how it has ended.
    fn status_of_daemon(&mut self) -> String {
        let mount = self.mount();
        let _ = kill_process(mount.pid(), Signal::KILL);
        format!("the daemon: {:?}", mount.wait())
    }
}

impl Drop for Era {
    fn drop(&mut self) {
        drop(self.mount.take());
        drop(self.inner.take());
        if self.below == Below::Small {
            let _ = unmount(self.directory.path().join("store").as_path(), UnmountFlags::DETACH);
        }
    }
}

/// Ends a life in which an operation takes for ever, and says what the daemon's threads waited for.
struct Watchdog(Arc<AtomicBool>, Option<thread::JoinHandle<()>>);

impl Watchdog {
    fn start(world: &Arc<World>, daemon: Pid, store: Option<Pid>) -> Self {
        let (world, is_done) = (Arc::clone(world), Arc::new(AtomicBool::new(false)));
        let seen = Mutex::new(vec![(String::new(), Instant::now()); world.doing().len()]);
        let done = Arc::clone(&is_done);
        let watch = move || {
            while !done.load(Ordering::SeqCst) {
                thread::park_timeout(Duration::from_millis(200));
                let mut seen = seen.lock().unwrap();
                for (doing, seen) in world.doing().into_iter().zip(seen.iter_mut()) {
                    if doing.is_empty() || doing != seen.0 {
                        *seen = (doing, Instant::now());
                    }
                }
                let stuck = seen.iter().enumerate().filter(|(_, seen)| seen.1.elapsed() > OPERATION_MAX);
                let stuck: String =
                    stuck.map(|(user, seen)| format!("    user {user}: {}\n", seen.0)).collect();
                if !stuck.is_empty() {
                    // The debugger wakes what it looks at, so it comes last.
                    let daemons: Vec<Pid> = [Some(daemon), store].into_iter().flatten().collect();
                    let here = waits_of(rustix::process::getpid());
                    let waits: String = daemons.iter().map(|&pid| waits_of(pid)).collect();
                    let places: String = daemons.iter().map(|&pid| places_of(pid)).collect();
                    world.fail(format!("an operation takes for ever\n{stuck}{here}{waits}{places}"));
                    world.is_dying.store(true, Ordering::SeqCst);
                    let _ = kill_process(daemon, Signal::KILL);
                    if let Some(store) = store {
                        let _ = kill_process(store, Signal::CONT);
                    }
                    return;
                }
            }
        };
        Self(is_done, Some(thread::spawn(watch)))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
        let thread = self.1.take().unwrap();
        thread.thread().unpark();
        let _ = thread.join();
    }
}

/// Returns what each thread of a process waits for in the kernel.
fn waits_of(process: Pid) -> String {
    let tasks = PathBuf::from(format!("/proc/{}/task", process.as_raw_nonzero()));
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default().trim().replace('\n', " < ");
    let line = |task: fs::DirEntry| {
        let of = |name: &str| read(&task.path().join(name));
        format!("    {} {} {}: {}\n", of("comm"), of("syscall"), of("wchan"), of("stack"))
    };
    let lines = fs::read_dir(tasks).map_or(String::new(), |tasks| tasks.flatten().map(line).collect());
    format!("process {}:\n{lines}", process.as_raw_nonzero())
}

/// Returns where in the program its threads are, with a debugger at hand.
fn places_of(process: Pid) -> String {
    let process = process.as_raw_nonzero().to_string();
    let gdb = Command::new("gdb").args(["-p", &process, "-batch", "-ex", "thread apply all bt 12"]).output();
    gdb.map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).into_owned())
}
