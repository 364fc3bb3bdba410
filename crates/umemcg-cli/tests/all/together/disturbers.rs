//! The disturbers: threads that change everything that users do not ask for. A life has some of
//! them, as its seed says: with all of them always on, what one breaks the next would hide.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::PROGRAM;
use crate::together::disk::{CELL, Random};
use crate::together::inode::Inode;
use crate::together::killed::kill_program;
use crate::together::model::LEN_MAX;
use crate::together::paced::pace_foreign_writer;
use crate::together::tree::Place;
use crate::together::world::{GROUPS, Stop, World};

/// Longest that reads of a file that another program has changed end early on a busy machine.
const WHOLE_WITHIN: Duration = Duration::from_secs(120);

/// The state of disturbers beside the world.
#[derive(Debug)]
pub struct Surroundings {
    /// The daemon of the store, where the store is a mount of another daemon.
    pub store: Option<Pid>,
    /// A file that takes the room of the store, where the store is small.
    pub filler: Option<PathBuf>,
}

/// One turn of a disturber.
type Act = fn(&World, &Surroundings, &mut Random) -> Result<(), Stop>;

/// A disturber: its name, what it does, and the longest pause between two turns.
#[derive(Debug, Clone, Copy)]
pub struct Disturber {
    pub name: &'static str,
    act: Act,
    pause_ms: usize,
}

pub const ALL: [Disturber; 11] = [
    Disturber { name: "limits", act: change_limits, pause_ms: 20 },
    Disturber { name: "groups", act: make_and_remove_groups, pause_ms: 20 },
    Disturber { name: "dropping", act: drop_caches, pause_ms: 40 },
    Disturber { name: "reclaim", act: reclaim, pause_ms: 20 },
    Disturber { name: "sync", act: sync, pause_ms: 150 },
    Disturber { name: "outside", act: change_outside, pause_ms: 10 },
    Disturber { name: "outside names", act: change_names_outside, pause_ms: 30 },
    Disturber { name: "full", act: fill_store, pause_ms: 200 },
    Disturber { name: "stalls", act: stall, pause_ms: 300 },
    Disturber { name: "killed programs", act: |world, _, random| kill_program(world, random), pause_ms: 5 },
    Disturber { name: "paced", act: |world, _, random| pace_foreign_writer(world, random), pause_ms: 20 },
];

impl Disturber {
    /// Returns whether it changes the directory below the mount.
    pub fn is_outside(&self) -> bool {
        self.name.starts_with("outside")
    }

    /// Takes turns until the users are to end.
    pub fn run(self, world: &World, surroundings: &Surroundings, mut random: Random) {
        while !world.is_over() {
            match (self.act)(world, surroundings, &mut random) {
                Ok(()) | Err(Stop::Over) => {}
                Err(Stop::Wrong(why)) => return world.fail(format!("{}: {why}", self.name)),
            }
            thread::sleep(Duration::from_micros(random.below(self.pause_ms * 1000) as u64));
        }
    }
}

/// Writes to a control file. A refusal is none of a disturber's business.
fn write(world: &World, group: &str, file: &str, value: &str) {
    let _ = fs::write(world.cg.join(group).join(file), value);
}

fn some_group(random: &mut Random) -> &'static str {
    GROUPS[random.below(GROUPS.len())]
}

/// Control files with values that make trouble.
const KNOBS: [(&str, &[&str]); 9] = [
    ("memory.limit_in_bytes", &["0", "64k", "256k", "1m", "4m", "-1", "-1"]),
    ("memory.max", &["0", "16k", "256k", "1m", "4m", "max", "max"]),
    ("memory.high", &["256k", "2m", "max", "max", "max"]),
    ("memory.soft_limit_in_bytes", &["0", "256k", "-1"]),
    ("memory.low", &["0", "512k", "max"]),
    ("memory.dirty_limit_in_bytes", &["0", "64k", "256k", "1m"]),
    ("memory.dirty_background_limit_in_bytes", &["0", "32k", "128k"]),
    ("memory.wmark_ratio", &["0", "50", "90"]),
    ("memory.kswapd_dedicated", &["0", "1"]),
];

/// Bytes, as control files take them.
fn bytes(text: &str) -> u64 {
    let (digits, shift) = match text.strip_suffix(['k', 'm']) {
        Some(digits) => (digits, if text.ends_with('k') { 10 } else { 20 }),
        None => (text, 0),
    };
    digits.parse::<u64>().map_or(u64::MAX, |number| number << shift)
}

/// Written values are read, and refused ones have changed nothing: no other thread changes these.
fn change_limits(world: &World, _: &Surroundings, random: &mut Random) -> Result<(), Stop> {
    let (file, values) = KNOBS[random.below(KNOBS.len())];
    let (group, value) = (some_group(random), values[random.below(values.len())]);
    let path = world.cg.join(group).join(file);
    let Ok(before) = fs::read_to_string(&path) else { return Ok(()) };
    let written = fs::write(&path, value);
    let Ok(after) = fs::read_to_string(&path) else { return Ok(()) };
    let is_so = match written {
        Ok(()) => bytes(after.trim()).min(1 << 62) == bytes(value).min(1 << 62),
        Err(_) => after == before,
    };
    if is_so || world.is_going() {
        return Ok(());
    }
    Stop::wrong(format!("{group}/{file} was {before:?}, {value} written: {written:?}, is {after:?}"))
}

/// Groups come and go below those of the users, with a member that moves in and out.
fn make_and_remove_groups(world: &World, _: &Surroundings, random: &mut Random) -> Result<(), Stop> {
    let above = some_group(random);
    let group = format!("{above}/t{}", random.below(2));
    if fs::create_dir(world.cg.join(&group)).is_err() {
        return Ok(());
    }
    let me = rustix::thread::gettid().as_raw_nonzero().to_string();
    write(world, &group, "memory.max", ["0", "64k", "1m", "max"][random.below(4)]);
    write(world, &group, "tasks", &me);
    // It leaves names, pages and dirty data there.
    let place = Place::any(random);
    let looked = world.tree.look(place)?;
    if let Ok(Some(inode)) = looked.there()
        && inode.is_file()
        && let Ok(fd) = world.open(&place.path(), OFlags::RDWR | OFlags::NOFOLLOW)
    {
        let mut bytes = vec![0; LEN_MAX];
        let _beside = inode.beside_others();
        let since = inode.data.begin_read();
        let got = rustix::io::pread(&fd, &mut bytes[..], 0);
        let asked = if world.may_be_cut() { got.unwrap_or(0) } else { LEN_MAX };
        let checked = inode.data.end_read(since, 0, asked, got.ok().map(|nr| &bytes[..nr]));
        checked.or_else(|why| Stop::wrong(format!("inode {}: {why}\n{}", inode.nr, inode.story.text())))?;
    }
    drop(looked);
    write(world, above, "tasks", &me);
    match fs::remove_dir(world.cg.join(&group)) {
        Err(error) if !world.is_going() => Stop::wrong(format!("rmdir of {group}: {error}")),
        _ => Ok(()),
    }
}

fn drop_caches(world: &World, _: &Surroundings, random: &mut Random) -> Result<(), Stop> {
    match random.below(3) {
        0 => write(world, "", "vm.compact_memory", "1"),
        1 => write(world, "", "vm.drop_caches", "1"),
        _ => write(world, "", "vm.drop_caches", "3"),
    }
    Ok(())
}

fn reclaim(world: &World, _: &Surroundings, random: &mut Random) -> Result<(), Stop> {
    match random.below(2) {
        0 => write(world, some_group(random), "memory.reclaim", ["64k", "512k", "4m"][random.below(3)]),
        _ => write(world, some_group(random), "memory.force_empty", "0"),
    }
    Ok(())
}

/// `umemcg sync`: everything that was accepted before is durable.
fn sync(world: &World, _: &Surroundings, random: &mut Random) -> Result<(), Stop> {
    if random.below(4) == 0 {
        let _ = rustix::fs::syncfs(&world.root);
        return Ok(());
    }
    let files = world.files();
    let since: Vec<u64> = files.iter().map(|inode| inode.data.begin_sync()).collect();
    let output = Command::new(PROGRAM).arg("sync").arg(&world.mnt).stdin(Stdio::null()).output();
    let output = output.map_err(|error| Stop::Wrong(error.to_string()))?;
    if output.status.success() {
        files.iter().zip(since).for_each(|(inode, since)| inode.data.is_synced(since));
        return Ok(());
    }
    // The mount may be going.
    if world.is_going() || world.may_be_full {
        return Ok(());
    }
    Stop::wrong(String::from_utf8_lossy(&output.stderr))
}

/// Another program changes a file in the backing directory.
fn change_outside(world: &World, _: &Surroundings, random: &mut Random) -> Result<(), Stop> {
    let place = Place::any(random);
    let looked = world.tree.look(place)?;
    let Ok(Some(inode)) = looked.there() else { return Ok(()) };
    if !inode.is_file() {
        return Ok(());
    }
    if random.below(2) == 0 {
        outside_alone(world, place, &inode, random)
    } else {
        outside_beside(world, place, &inode, random)
    }
}

/// Pages of a file that exist.
fn some_pages(inode: &Inode, random: &mut Random) -> Option<std::ops::Range<usize>> {
    let nr_pages = inode.data.len() / 4096;
    let first = random.below(nr_pages.max(1));
    let end = first + 1 + random.below(nr_pages.checked_sub(first).filter(|nr| *nr > 0)?);
    Some(first * 4096..end * 4096)
}

/// While users write to the file, too: they may overwrite it, or take it for their own.
fn outside_beside(world: &World, place: Place, inode: &Inode, random: &mut Random) -> Result<(), Stop> {
    let Some(range) = some_pages(inode, random) else { return Ok(()) };
    let Some(_claim) = inode.data.claim(range.clone()) else { return Ok(()) };
    if range.end > inode.data.len() {
        return Ok(());
    }
    let Ok(file) = fs::OpenOptions::new().write(true).open(world.data.join(place.path())) else {
        return Ok(());
    };
    // What is in the store may be shorter than the file by what is still to be written there.
    if file.metadata().is_ok_and(|there| (there.len() as usize) < range.end) {
        return Ok(());
    }
    let (value, _changing) = (1 + random.below(255) as u8, inode.change());
    let what = format!("from outside, beside others: {range:?} = {value}");
    inode.data.begin_fill(&range, value);
    let written = file.write_all_at(&vec![value; range.len()], range.start as u64);
    inode.story.tell(format!("{what}: {written:?}"));
    drop(world.open(&place.path(), OFlags::RDONLY | OFlags::NOFOLLOW));
    Ok(())
}

/// While no user is at the file, and nothing of it is dirty: the next open must see it, whatever it
/// is.
fn outside_alone(world: &World, place: Place, inode: &Inode, random: &mut Random) -> Result<(), Stop> {
    let wrong = |what: String| {
        let story = inode.story.text();
        Stop::wrong(format!("{} = inode {}: {what}\n{story}", place.path(), inode.nr))
    };
    let _alone = inode.alone();
    let (since, _changing) = (inode.data.begin_sync(), inode.change());
    let Ok(fd) = world.settle(world.open(&place.path(), OFlags::RDWR | OFlags::NOFOLLOW))? else {
        return Ok(());
    };
    if world.settle(rustix::fs::fsync(&fd))?.is_err() {
        return Ok(());
    }
    inode.data.is_synced(since);
    drop(fd);
    let path = world.data.join(place.path());
    let Ok(file) = fs::OpenOptions::new().write(true).open(&path) else {
        return wrong("is not there".into());
    };
    let old = inode.data.len();
    let there = file.metadata().map_or(0, |there| there.len() as usize);
    if there != old {
        return wrong(format!("{there} bytes in the backing directory after an fsync, not {old}"));
    }
    let new = if random.below(3) == 0 { CELL * random.below(world.len_max / CELL + 1) } else { old };
    if new != old {
        let fill = new..LEN_MAX;
        inode.data.begin_fill(&fill, 0);
        inode.data.begin_len(new);
        if file.set_len(new as u64).is_err() {
            return Ok(());
        }
        inode.story.tell(format!("from outside, alone: {new} bytes long"));
        drop(file);
        see_length(world, place, new, &wrong)?;
        inode.data.end_fill(&fill, fill.len(), 0);
        inode.data.end_len();
    } else if let Some(range) = some_pages(inode, random) {
        let value = 1 + random.below(255) as u8;
        inode.data.begin_fill(&range, value);
        let written = file.write_all_at(&vec![value; range.len()], range.start as u64);
        inode.story.tell(format!("from outside, alone: {range:?} = {value}: {written:?}"));
        drop(file);
        see_length(world, place, new, &wrong)?;
        if written.is_ok() {
            inode.data.end_fill(&range, range.len(), 0);
        }
    }
    Ok(())
}

/// The next open sees what another program has left, and then the kernel takes the file to be as
/// long: it ignores an answer that a change of the inode, or a message about it, overtakes.
fn see_length(
    world: &World,
    place: Place,
    len: usize,
    wrong: &dyn Fn(String) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let opened = world.settle(world.open(&place.path(), OFlags::RDONLY | OFlags::NOFOLLOW))?;
    let fd = opened.map_err(|errno| Stop::Wrong(format!("open of {}: {errno}", place.path())))?;
    let stat = |how| {
        let stat = rustix::fs::statx(&fd, "", AtFlags::EMPTY_PATH | how, StatxFlags::SIZE);
        world.settle(stat.map(|stat| stat.stx_size as usize))
    };
    let deadline = Instant::now() + WHOLE_WITHIN;
    loop {
        match stat(AtFlags::STATX_FORCE_SYNC)? {
            Ok(told) if told != len => return wrong(format!("{told} bytes after the open, not {len}")),
            Ok(_) => {}
            Err(_) => return Ok(()),
        }
        match stat(AtFlags::STATX_DONT_SYNC)? {
            Ok(known) if known != len && Instant::now() >= deadline => {
                return wrong(format!("{known} bytes by the kernel, not {len}"));
            }
            Ok(known) if known != len => thread::sleep(Duration::from_millis(1)),
            _ => return Ok(()),
        }
    }
}

/// Files of another program's own: what it writes is what the next open sees.
fn change_names_outside(world: &World, _: &Surroundings, random: &mut Random) -> Result<(), Stop> {
    let name = format!("d{}/o{}", random.below(crate::together::tree::NR_DIRECTORIES), random.below(1 << 30));
    let path = world.data.join(&name);
    for turn in 0..2 {
        // Of another length each time: two changes in one tick of the clock have the same times.
        let expected = vec![1 + random.below(255) as u8; 1 + 2 * random.below(10_000) + turn];
        if fs::write(&path, &expected).is_err() {
            break;
        }
        let fd = match world.settle(world.open(&name, OFlags::RDONLY))? {
            Ok(fd) => fd,
            Err(errno) => return Stop::wrong(format!("{name}, made outside: {errno}")),
        };
        let mut bytes = vec![0; 1 << 15];
        match read_whole(world, &fd, &mut bytes, &expected)? {
            Ok(nr) if bytes[..nr] == expected => {}
            Ok(nr) if world.may_be_cut() && expected.starts_with(&bytes[..nr]) => {}
            Ok(nr) => {
                let (is, should) = (bytes[..nr].first().copied(), (expected.len(), expected[0]));
                return Stop::wrong(format!("{name}, turn {turn}: {nr} bytes of {is:?}, not {should:?}"));
            }
            Err(errno) => return Stop::wrong(format!("{name}: {errno}")),
        }
    }
    let _ = fs::remove_file(path);
    Ok(())
}

/// Reads a file that another program has changed. A read beside which a change is told may end
/// where the file ended before, and on a busy machine a change is told after the open. What such a
/// read gives is right, and a later one is whole.
fn read_whole(
    world: &World,
    fd: &OwnedFd,
    bytes: &mut [u8],
    expected: &[u8],
) -> Result<Result<usize, Errno>, Stop> {
    let deadline = Instant::now() + WHOLE_WITHIN;
    loop {
        let got = world.settle(rustix::io::pread(fd, &mut *bytes, 0))?;
        let is_cut = got.is_ok_and(|nr| nr < expected.len() && expected.starts_with(&bytes[..nr]));
        if !is_cut || world.may_be_cut() || Instant::now() >= deadline {
            return Ok(got);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Takes all of the store's room for a while.
fn fill_store(_: &World, surroundings: &Surroundings, random: &mut Random) -> Result<(), Stop> {
    let Some(filler) = &surroundings.filler else { return Ok(()) };
    let file = fs::File::create(filler).map_err(|error| Stop::Wrong(error.to_string()))?;
    let mut at = 0;
    while let Ok(nr) = file.write_at(&[1; 64 << 10], at) {
        at += nr as u64;
        if nr == 0 {
            break;
        }
    }
    thread::sleep(Duration::from_millis(random.below(150) as u64));
    empty_store(filler);
    Ok(())
}

/// Gives the room back.
pub fn empty_store(filler: &Path) {
    let _ = fs::remove_file(filler);
}

/// Stops the store's daemon for a moment.
fn stall(_: &World, surroundings: &Surroundings, random: &mut Random) -> Result<(), Stop> {
    let Some(store) = surroundings.store else { return Ok(()) };
    let _ = kill_process(store, Signal::STOP);
    thread::sleep(Duration::from_millis(random.below(250) as u64));
    let _ = kill_process(store, Signal::CONT);
    Ok(())
}

/// Starts the disturbers of a life.
pub fn start(
    disturbers: &[Disturber],
    world: &Arc<World>,
    surroundings: &Arc<Surroundings>,
    random: &mut Random,
) -> Vec<thread::JoinHandle<()>> {
    let start = |disturber: &Disturber| {
        let (disturber, world, surroundings) = (*disturber, Arc::clone(world), Arc::clone(surroundings));
        let random = Random(random.next());
        let name = disturber.name.to_owned();
        thread::Builder::new().name(name).spawn(move || disturber.run(&world, &surroundings, random)).unwrap()
    };
    disturbers.iter().map(start).collect()
}
