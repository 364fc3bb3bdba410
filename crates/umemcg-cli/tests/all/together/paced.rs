//! A program that writes to pages that another tenant pays for, and is paced by that tenant's dirty
//! limit. It is killed, and before or after that the paying group is removed.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::together::disk::Random;
use crate::together::killed::{DIRECTORY, end};
use crate::together::world::{GROUPS, Stop, World};

/// The file of these programs alone, in the directory of killed programs.
const FILE: &str = "paced";
/// Between the least background threshold of a group and its least dirty limit.
const LEN: usize = 48 * 4096;
/// The bytes of the program.
const WRITTEN: u8 = b'0';
/// Writes them over the whole file, again and again.
const PROGRAM: &str = "echo $$ > \"$0\"; while :; do printf %0${2}d 0 1<>\"$1\"; done";
/// The longest time until the program is killed, or the group is removed.
const LIFE_US: usize = 30_000;

/// Makes the file in its directory below the backing directory, which exists.
pub fn prepare(data: &Path) {
    fs::write(data.join(DIRECTORY).join(FILE), "").unwrap();
}

fn open(world: &World, flags: OFlags) -> Result<OwnedFd, Errno> {
    world.open(&format!("{DIRECTORY}/{FILE}"), flags)
}

/// One such program, from the first byte of its file to the last look at it.
pub fn pace_foreign_writer(world: &World, random: &mut Random) -> Result<(), Stop> {
    let payer = world.cg.join("payer");
    if fs::create_dir(&payer).is_err() {
        return Ok(());
    }
    // The least is allowed all the same.
    for limit in ["memory.dirty_limit_in_bytes", "memory.dirty_background_limit_in_bytes"] {
        let _ = fs::write(payer.join(limit), "0");
    }
    let value = 1 + random.below(40) as u8;
    join(&payer);
    let filled = fill(world, value);
    join(&world.cg.join(GROUPS[random.below(GROUPS.len())]));
    let is_filled = filled?;
    world.begin(world.nr_users + 1, "a paced writer, killed");
    let written = write_and_remove(world, random, &payer);
    world.end(world.nr_users + 1);
    written?;
    if is_filled { check(world, value) } else { Ok(()) }
}

/// Moves this thread to a group. The mount may be going.
fn join(group: &Path) {
    let _ = fs::write(group.join("tasks"), rustix::thread::gettid().as_raw_nonzero().to_string());
}

/// Makes pages that the group of this thread pays for. Returns whether the store has let it.
fn fill(world: &World, value: u8) -> Result<bool, Stop> {
    let bytes = vec![value; LEN];
    let opened = open(world, OFlags::WRONLY | OFlags::TRUNC);
    let written = opened.and_then(|fd| rustix::io::pwrite(&fd, &bytes, 0));
    match world.settle(written)? {
        Ok(LEN) => Ok(true),
        Ok(_) if world.may_be_full || world.may_be_cut() => Ok(false),
        Err(errno) if world.is_excused(errno) => Ok(false),
        other => Stop::wrong(format!("the first {LEN} bytes of {FILE}: {other:?}")),
    }
}

/// Runs the program in a group of another tenant, and removes the paying group meanwhile or
/// afterwards.
fn write_and_remove(world: &World, random: &mut Random, payer: &Path) -> Result<(), Stop> {
    let program = match start(world, random) {
        Ok(program) => program,
        Err(_) if world.is_going() => return Ok(()),
        Err(error) => return Stop::wrong(format!("a paced writer: {error}")),
    };
    thread::sleep(Duration::from_micros(random.below(LIFE_US) as u64));
    let remove = || match fs::remove_dir(payer) {
        Err(error) if !world.is_going() => Stop::wrong(format!("rmdir of the paying group: {error}")),
        _ => Ok(()),
    };
    if random.below(2) == 0 {
        let removed = remove();
        end(program, random)?;
        removed
    } else {
        end(program, random)?;
        remove()
    }
}

fn start(world: &World, random: &mut Random) -> std::io::Result<Child> {
    let tasks = world.cg.join(GROUPS[random.below(GROUPS.len())]).join("tasks");
    let mut program = Command::new("setpriv");
    program.args(["--pdeathsig", "KILL", "--", "sh", "-c", PROGRAM]).arg(tasks);
    // The directory is in the mount alone: no file is made below it.
    program.arg(FILE).arg(LEN.to_string()).current_dir(world.mnt.join(DIRECTORY));
    program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

/// The file has the bytes of both writers and no others.
fn check(world: &World, value: u8) -> Result<(), Stop> {
    let mut bytes = vec![0; LEN + 1];
    let opened = open(world, OFlags::RDONLY);
    let read = opened.and_then(|fd| rustix::io::pread(&fd, &mut bytes[..], 0));
    let nr = match world.settle(read)? {
        Ok(nr) if nr == LEN || nr < LEN && world.may_be_cut() => nr,
        Err(errno) if world.is_excused(errno) => return Ok(()),
        other => return Stop::wrong(format!("{FILE}: {other:?} of {LEN} bytes")),
    };
    match bytes[..nr].iter().position(|byte| ![value, WRITTEN].contains(byte)) {
        Some(at) => Stop::wrong(format!("byte {at} of {FILE} is {}, not {value} or {WRITTEN}", bytes[at])),
        None => Ok(()),
    }
}
