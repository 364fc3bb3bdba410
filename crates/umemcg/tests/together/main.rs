//! Everything at once, in one process, under the [scheduler](umemcg_base::schedule) that owns time
//! and threads: users do random operations on files that they share, while limits change, groups
//! come and go, writers are paced and some of them killed, accounts take memory and wait for it,
//! objects are loaded, overtaken and held, memory and threads are short, sparse blocks are emptied,
//! flushers run, the store fails, stalls, is full or forgets what was not synced, ends reads later
//! than it begins them, and other programs change files in the store. Every result is compared with
//! a [sequential model](model); at the end the store is too, every page can be reclaimed, and every
//! count is zero. A thread that waits for ever is found immediately, because waiting costs no time
//! when every thread waits: a hang prints what each thread waits for.
//!
//! A round runs in a process of its own, so that it depends on its seed alone. Its seed chooses the
//! disturbances, how often threads switch and how long they are held. `UMEMCG_TOGETHER_SEED`
//! repeats one round exactly, `UMEMCG_TOGETHER_SECONDS` says how long new rounds are made.
#![cfg(schedule)]

mod accounts;
#[path = "../../../umemcg-cache/tests/all/common/disk.rs"]
mod disk;
mod disturbers;
// Some of it only the half on real mounts needs.
#[allow(dead_code)]
mod model;
mod narrow;
mod objects;
mod steps;
mod store;
mod users;
mod world;

use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use umemcg_base::schedule::{self, Policy};

use disk::Random;
use disturbers::{ALL, Disturber};
use users::User;
use world::World;

/// Operations of each user in a round.
const NR_OPERATIONS: usize = 200;
/// Threads that end what the store has begun.
const NR_ANSWERERS: usize = 2;
/// Longest that a process may pass no switch point.
const TIMEOUT: Duration = Duration::from_secs(60);
/// A short run, when nothing else is said.
const SECONDS_DEFAULT: u64 = 20;
const SEED: &str = "UMEMCG_TOGETHER_SEED";
const SECONDS: &str = "UMEMCG_TOGETHER_SECONDS";
/// The seed of the first of the new rounds; from the clock if it is not given.
const FIRST: &str = "UMEMCG_TOGETHER_FIRST";
/// Tells the ignored test below which round it is.
const ROUND: &str = "UMEMCG_TOGETHER_ROUND";

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Seeds side by side give rounds that have nothing in common.
fn scattered(seed: u64) -> u64 {
    let mixed = seed.wrapping_add(1).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (mixed ^ (mixed >> 32)).wrapping_mul(0xc4ce_b9fe_1a85_ec53)
}

/// The disturbers of a round: any of them, mostly more than half.
fn chosen(random: &mut Random) -> Vec<Disturber> {
    let mut chosen: Vec<Disturber> = ALL.into_iter().filter(|_| random.below(3) > 0).collect();
    // Faults excuse much: half of the rounds have none.
    if random.below(2) == 0 {
        chosen.retain(|disturber| disturber.name != "faults");
    }
    chosen
}

fn policy(random: &mut Random) -> Policy {
    Policy {
        lock: 1 + random.below(12) as u32,
        atomic: [3, 10, 40, 200][random.below(4)],
        hold: 1 + random.below(30) as u32,
        hold_steps: [100, 1_000, 10_000][random.below(3)],
    }
}

/// Runs a round in this process.
fn round(seed: u64) {
    let mut random = Random(scattered(seed));
    let (policy, disturbers) = (policy(&mut random), chosen(&mut random));
    let (nr_users, nr_files) = (2 + random.below(4), 1 + random.below(3));
    let names: Vec<&str> = disturbers.iter().map(|disturber| disturber.name).collect();
    eprintln!("{SEED}={seed}: {nr_users} users of {nr_files} files; {}", names.join(", "));
    eprintln!("{policy:?}");
    schedule::watch(TIMEOUT);
    schedule::run(scattered(seed), policy, move || {
        let world = World::new(&mut random, nr_files);
        let mut others = Vec::new();
        for disturber in disturbers {
            let (world, random) = (Arc::clone(&world), Random(random.next()));
            others.push(schedule::spawn(disturber.name, move || disturber.run(&world, random)).unwrap());
        }
        for nr in 0..NR_ANSWERERS {
            let world = Arc::clone(&world);
            let answer = move || while world.store.end_a_read() || !world.is_over() {};
            others.push(schedule::spawn(&format!("answers-{nr}"), answer).unwrap());
        }
        let mut users = Vec::new();
        for nr in 0..nr_users {
            let user = User::new(&world, Random(random.next()));
            users.push(schedule::spawn(&format!("user-{nr}"), move || user.run(NR_OPERATIONS)).unwrap());
        }
        users.into_iter().for_each(|user| user.join().unwrap());
        world.is_over.store(true, Ordering::Relaxed);
        others.into_iter().for_each(|other| other.join().unwrap());
        // Here the round ends. Threads whose work is over, and later those of the engine, give back
        // what they hold in the order in which the system lets them end.
        eprintln!("{:?}", schedule::progress());
        world.check_end();
    });
}

/// Ends the process at the first failure: other threads have seen a half of what failed.
fn fail_at_once(seed: u64) {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        default(info);
        eprint!("{}", schedule::describe());
        eprintln!("FAILED: {SEED}={seed} repeats it, {:?}", schedule::progress());
        // Not an orderly exit: locals of threads would wait for locks of others.
        std::process::abort();
    }));
}

#[test]
#[ignore = "one round, started by the tests below"]
fn a_round() {
    let Some(seed) = number(ROUND) else { return };
    fail_at_once(seed);
    round(seed);
}

fn start(seed: u64) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_round", "--ignored", "--nocapture", "--test-threads", "1"])
        .env(ROUND, seed.to_string())
        .output()
        .unwrap()
}

/// Runs the round of a seed, and returns its output.
fn run(seed: u64) -> Result<String, String> {
    let output = start(seed);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let again = format!("to repeat: make test-together-engine TOGETHER_SEED={seed}");
    Err(format!("{}:\n{text}{again}", output.status))
}

#[test]
fn files_hold_what_the_model_says_whatever_happens() {
    if let Some(seed) = number(SEED) {
        eprint!("{}", run(seed).unwrap_or_else(|failure| panic!("{failure}")));
        return;
    }
    let seconds = number(SECONDS);
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap();
    // New rounds only for a run that was asked for.
    let any = seconds.map_or(1, |_| now.as_nanos() as u64 % 1_000_000_000);
    let (first, until) = (
        number(FIRST).unwrap_or(any),
        Instant::now() + Duration::from_secs(seconds.unwrap_or(SECONDS_DEFAULT)),
    );
    let (next, failures) = (AtomicU64::new(first), Mutex::new(Vec::new()));
    let nr_workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let work = || {
            while Instant::now() < until && failures.lock().unwrap().is_empty() {
                let outcome = run(next.fetch_add(1, Ordering::Relaxed));
                failures.lock().unwrap().extend(outcome.err());
            }
        };
        (0..nr_workers).for_each(|_| drop(scope.spawn(work)));
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let nr = next.load(Ordering::Relaxed) - first;
    eprintln!("{nr} rounds from {SEED}={first} on, every result as the model says");
}

#[test]
fn a_seed_repeats_its_round_exactly() {
    for seed in 1..3 {
        let [once, again] = [(); 2].map(|()| run(seed).unwrap_or_else(|failure| panic!("{failure}")));
        assert!(once.contains("trace"), "{once}");
        assert_eq!(once, again);
    }
}
