//! A volume of objects with everything at once: users of several tenants write, cut, rename,
//! remove and read files of their own and shared ones, while another program changes objects,
//! limits change, groups come and go, caches are dropped, and the store fails or loses answers. In
//! between the volume is closed, left as by a crash, left while the store is down, or removed, and
//! opened again on the same staging directory. In most rounds the kernel above keeps pages.
//!
//! A third of the rounds have no staging directory: files are written as [streams](streamer).
//!
//! Files of one user are compared with a [sequential model](private), [shared ones](shared) hold
//! versions that are known by their bytes. At the end nothing is charged, open, staged or on its
//! way. A thread that hangs is told with what all others do.
//!
//! `UMEMCG_TOGETHER_SEED` repeats the operations of a round, not their timing.
//! `UMEMCG_TOGETHER_SECONDS` says how long new rounds are made, `UMEMCG_TOGETHER_FIRST` from which
//! seed on.

mod bucket;
mod dice;
mod disturbers;
mod ends;
mod parted;
mod private;
mod shared;
mod streamer;
mod user;
mod versions;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use dice::Dice;
use disturbers::{ALL, Disturber};
use ends::End;
use private::Private;
use shared::Sharer;
use streamer::Streamer;
use user::User;
use world::{Doing, Together};

const SEED: &str = "UMEMCG_TOGETHER_SEED";
const SECONDS: &str = "UMEMCG_TOGETHER_SECONDS";
const FIRST: &str = "UMEMCG_TOGETHER_FIRST";

/// Rounds of a run that is not told how long to be.
const NR_ROUNDS: u64 = 2;
/// Threads of users: each kind for every tenant.
const NR_USERS: u32 = 3;
/// Times that the volume is opened in a round.
const NR_MOUNTS: usize = 4;
/// Operations of a user on one mount.
const NR_OPERATIONS: usize = 60;

/// Locks, also after another thread has failed.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// The users of a round, which outlive the volume.
struct Users(Vec<(String, Box<dyn User>)>);

/// Runs a thread of a round; its failure ends the round.
fn guarded(together: &Together, doing: &Doing, act: impl FnOnce(&Doing)) {
    let outcome = catch_unwind(AssertUnwindSafe(|| act(doing)));
    if outcome.is_err() {
        together.is_over.store(true, Ordering::Relaxed);
    }
    doing.end();
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

impl Users {
    fn new(together: &Arc<Together>, dice: &mut Dice) -> Self {
        let own = |nr: u32, dice: Dice| -> Box<dyn User> {
            match together.streams {
                true => Box::new(Streamer::new(together, nr, dice)),
                false => Box::new(Private::new(together, nr, dice)),
            }
        };
        let mut users: Vec<_> =
            (1..=NR_USERS).map(|nr| (format!("user {nr}"), own(nr, dice.split()))).collect();
        for nr in 1..=NR_USERS {
            let sharer = Sharer::new(together, NR_USERS + nr, dice.split());
            users.push((format!("sharer {nr}"), Box::new(sharer)));
        }
        Self(users)
    }

    /// Lets all of them work on a mount, beside the disturbers.
    fn work(&mut self, together: &Arc<Together>, disturbers: &[Disturber], dice: &mut Dice) {
        together.is_over.store(false, Ordering::Relaxed);
        lock(&together.doings).clear();
        std::thread::scope(|scope| {
            let (mut users, mut others) = (Vec::<ScopedJoinHandle<'_, ()>>::new(), Vec::new());
            for (name, user) in &mut self.0 {
                let doing = together.doing(name.clone());
                users.push(scope.spawn(move || {
                    guarded(together, &doing, |doing| {
                        user.begin();
                        (0..NR_OPERATIONS).filter(|_| !together.is_over()).for_each(|_| user.step(doing));
                    });
                }));
            }
            for &disturber in disturbers {
                let (doing, dice) = (together.doing(disturber.name.into()), dice.split());
                others.push(scope.spawn(move || {
                    guarded(together, &doing, |doing| disturber.run(together, doing, dice));
                }));
            }
            let outcomes: Vec<_> = users.into_iter().map(ScopedJoinHandle::join).collect();
            together.is_over.store(true, Ordering::Relaxed);
            let others = others.into_iter().map(ScopedJoinHandle::join);
            outcomes.into_iter().chain(others).for_each(|outcome| {
                outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            });
        });
    }
}

/// Any of the disturbers, mostly more than half.
fn chosen(dice: &mut Dice) -> Vec<Disturber> {
    ALL.into_iter().filter(|_| !dice.one_in(4)).collect()
}

fn round(seed: u64) {
    let mut dice = Dice::of(seed);
    let together = Together::new(seed, &mut dice);
    let _ending = Ending(Arc::clone(&together));
    let watched = Arc::clone(&together);
    std::thread::spawn(move || watched.watch());
    let disturbers = chosen(&mut dice);
    let names: Vec<_> = disturbers.iter().map(|disturber| disturber.name).collect();
    let how = if together.streams { ", streams" } else { "" };
    let pages = if together.keeps_pages { "kernel pages" } else { "own pages" };
    println!("{SEED}={seed}: {pages}{how}, {}", names.join(", "));
    let mut users = Users::new(&together, &mut dice);
    together.mount();
    for directory in ["swap", "lock", "logs", "dirs", "dirs/x"] {
        together.view(0).mkdir(directory).unwrap();
    }
    for nr in 0..NR_MOUNTS {
        users.work(&together, &disturbers, &mut dice);
        let doing = together.doing("the end of a mount".into());
        let end = if nr + 1 == NR_MOUNTS { End::Closed } else { End::any(&mut dice) };
        println!("{end:?}");
        doing.begin(format!("{end:?}"));
        end.run(&together, &mut users.0);
    }
    drop(users);
    ends::check_nothing_left(&together);
}

/// Ends a round, also one that has failed.
struct Ending(Arc<Together>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::Relaxed);
    }
}

/// Runs the round of a seed, and names it when it fails.
fn run(seed: u64) {
    if let Err(panic) = catch_unwind(|| round(seed)) {
        let report = format!("FAILED: {SEED}={seed}, make test-together-objects TOGETHER_SEED={seed}\n");
        let _ = std::io::Write::write_all(&mut std::io::stderr(), report.as_bytes());
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn objects_hold_what_was_acknowledged_whatever_happens() {
    if let Some(seed) = number(SEED) {
        return run(seed);
    }
    let Some(seconds) = number(SECONDS) else { return (1..=NR_ROUNDS).for_each(run) };
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let first = number(FIRST).unwrap_or(now.as_nanos() as u64 % 1_000_000_000);
    let (until, mut seed) = (Instant::now() + Duration::from_secs(seconds), first);
    while Instant::now() < until {
        run(seed);
        seed += 1;
    }
    println!("{} rounds from {SEED}={first} on", seed - first);
}
