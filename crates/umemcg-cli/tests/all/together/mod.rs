//! Everything at once, on a real mount of a real daemon: users in nested groups do random
//! operations on the same few files and names, while limits change, groups come and go, memory is
//! short, caches are dropped, the store fills and stalls, other programs change what is below the
//! mount, programs are killed amid a change or while they are paced, and the daemon is killed or
//! told to end at any moment. Every result is compared with a sequential model, and after each life
//! of the daemon the backing directory is.
//!
//! The other half of this is `umemcg/tests/together`: the engine alone, in one process, under a
//! scheduler that repeats a seed exactly. Here a seed (`UMEMCG_TOGETHER_SEED`) repeats what each
//! thread decides, not when. `UMEMCG_TOGETHER_SECONDS` says how long new lives begin.

mod accounts;
mod attributes;
mod data;
#[path = "../../../../umemcg-cache/tests/all/common/disk.rs"]
mod disk;
mod disturbers;
mod helper;
mod inode;
mod killed;
mod life;
#[path = "../../../../umemcg/tests/together/model.rs"]
#[allow(dead_code)]
mod model;
mod names;
mod ordinary;
mod paced;
mod tree;
mod user;
mod verdict;
mod watcher;
mod world;

use std::time::{Duration, Instant, SystemTime};

use rustix::fs::Mode;

use crate::harness::needs_mount;
use disk::Random;
use life::{BELOW, Era, LifeCounts};

/// A short run, when nothing else is said.
const SECONDS_DEFAULT: u64 = 5;
/// Lives of one backing directory.
const LIVES_OF_ERA: usize = 5;

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number")))
}

/// Seeds side by side give lives that have nothing in common.
fn scattered(seed: u64) -> u64 {
    let mixed = seed.wrapping_add(1).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (mixed ^ (mixed >> 32)).wrapping_mul(0xc4ce_b9fe_1a85_ec53)
}

/// Some lives on one directory.
fn era(seed: u64, until: Instant, counts: &mut LifeCounts) -> Result<(), String> {
    let mut random = Random(scattered(seed));
    let mut era = Era::new(BELOW[random.below(BELOW.len())]);
    for life in 0..LIVES_OF_ERA {
        // Each has its own, so that what one draws makes no difference to the next.
        let mut random = Random(scattered(seed ^ (life as u64 + 1) << 40));
        let work = Duration::from_millis([100, 400, 800, 1_600][random.below(4)]);
        era.live(&mut random, work, counts).map_err(|why| format!("life {life}: {why}"))?;
        if Instant::now() > until {
            break;
        }
    }
    Ok(())
}

#[test]
fn a_mount_does_what_the_model_says_whatever_happens() {
    needs_mount!();
    // Files are made with the modes that were asked for.
    rustix::process::umask(Mode::empty());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let only = number("UMEMCG_TOGETHER_SEED");
    let seconds = number("UMEMCG_TOGETHER_SECONDS");
    // New lives only for a run that was asked for.
    let any = seconds.map_or(1, |_| now.as_nanos() as u64 % 1_000_000_000);
    let first = number("UMEMCG_TOGETHER_FIRST").unwrap_or(any);
    let (started, mut counts) = (Instant::now(), LifeCounts::default());
    let until = started + Duration::from_secs(seconds.unwrap_or(SECONDS_DEFAULT));
    for seed in only.unwrap_or(first).. {
        if let Err(why) = era(seed, until, &mut counts) {
            panic!("{why}\nto repeat: make test-together-mount TOGETHER_SEED={seed}");
        }
        if Instant::now() > until || only.is_some() {
            break;
        }
    }
    let LifeCounts { nr_operations, nr_lives, nr_kills } = counts;
    let seconds = started.elapsed().as_secs();
    eprintln!(
        "{nr_lives} lives, {nr_kills} kills, {nr_operations} operations in {seconds} s, from seed {first} on: all as the model says"
    );
}
