//! Programs that are killed amid a change of names or attributes: it is made or not, at once or
//! later, and the mount comes to show what the backing directory has.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::together::disk::Random;
use crate::together::world::{GROUPS, Stop, World};

/// What these programs have to themselves, in the mount.
pub const DIRECTORY: &str = "killed";
const NAMES: [&str; 5] = ["a", "b", "c", "deep/a", "deep/b"];
/// The most directories that there may be.
pub const NR_DIRECTORIES: usize = 2 + NAMES.len();
/// The longest time until a killed program ends, and until the mount shows what the backing
/// directory has. Less than the minute for which the kernel believes attributes.
const SETTLED_WITHIN: Duration = Duration::from_secs(30);
/// Programs are killed in less than this after they were started.
const LIFE_US: usize = 6_000;

/// Makes the directory in a backing directory.
pub fn prepare(data: &Path) {
    fs::create_dir_all(data.join(DIRECTORY).join("deep")).unwrap();
}

/// The words of a command, which may be refused.
fn change(random: &mut Random) -> Vec<String> {
    let (from, to) = (NAMES[random.below(NAMES.len())], NAMES[random.below(NAMES.len())]);
    let len = random.below(20_000).to_string();
    let words: &[&str] = match random.below(10) {
        0 => &["mkdir", to],
        1 => &["rmdir", to],
        2 | 3 => &["truncate", "-s", &len, to],
        4 => &["unlink", to],
        5 => &["ln", from, to],
        6 => &["ln", "-s", "nowhere/to/be/found", to],
        7 | 8 => &["mv", "-T", from, to],
        _ => &["chmod", ["600", "644", "755"][random.below(3)], to],
    };
    words.iter().map(|&word| word.to_owned()).collect()
}

/// What can be seen of a name: mode, number of links and length, but of a directory the mode alone.
type Seen = Result<(u32, Option<(u64, i64)>), Errno>;

fn see(root: &OwnedFd) -> Vec<Seen> {
    let see = |name: &&str| {
        let stat = rustix::fs::statat(root, *name, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_directory = stat.st_mode & 0o170_000 == 0o040_000;
        Ok((stat.st_mode, (!is_directory).then_some((stat.st_nlink, stat.st_size))))
    };
    NAMES.iter().map(see).collect()
}

/// Starts a program in a group, and kills it.
pub fn kill_program(world: &World, random: &mut Random) -> Result<(), Stop> {
    let words = change(random);
    world.begin(world.nr_users, &format!("{words:?}, killed"));
    let killed = run_and_kill(world, random, &words);
    world.end(world.nr_users);
    killed
}

fn run_and_kill(world: &World, random: &mut Random, words: &[String]) -> Result<(), Stop> {
    let tasks = world.cg.join(GROUPS[random.below(GROUPS.len())]).join("tasks");
    let mut program = Command::new("sh");
    program.arg("-c").arg("echo $$ > \"$0\"; exec \"$@\"").arg(tasks).args(words);
    program.current_dir(world.mnt.join(DIRECTORY)).stdin(Stdio::null()).stdout(Stdio::null());
    match program.stderr(Stdio::null()).spawn() {
        Ok(program) => end(program, random)?,
        Err(_) if world.is_going() => return Ok(()),
        Err(error) => return Stop::wrong(format!("{words:?}: {error}")),
    }
    until_same(world, words)
}

/// Kills a program after a moment, and waits until it has ended.
pub fn end(mut program: Child, random: &mut Random) -> Result<(), Stop> {
    thread::sleep(Duration::from_micros(random.below(LIFE_US) as u64));
    let _ = program.kill();
    let deadline = Instant::now() + SETTLED_WITHIN;
    while program.try_wait().is_ok_and(|ended| ended.is_none()) {
        if Instant::now() >= deadline {
            let stack = fs::read_to_string(format!("/proc/{}/stack", program.id()));
            return Stop::wrong(format!("a killed program does not end: {stack:?}"));
        }
        thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}

/// Waits until the mount shows what there is, also when the users have ended.
fn until_same(world: &World, words: &[String]) -> Result<(), Stop> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mount = world.settle(world.open(DIRECTORY, flags))?;
    let mount = mount.map_err(|errno| Stop::Wrong(format!("open of {DIRECTORY}: {errno}")))?;
    let store = rustix::fs::openat(CWD, world.data.join(DIRECTORY), flags, Mode::empty());
    let store = store.map_err(|errno| Stop::Wrong(format!("open of the backing directory: {errno}")))?;
    let deadline = Instant::now() + SETTLED_WITHIN;
    loop {
        let (seen, there) = (see(&mount), see(&store));
        if seen == there || world.is_leaving() || world.failure().is_some() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Stop::wrong(format!(
                "after {words:?} of {NAMES:?}\n  it shows {seen:?}\n  not      {there:?}"
            ));
        }
        thread::sleep(Duration::from_millis(1));
    }
}
