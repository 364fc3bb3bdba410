//! Lives of a daemon, each ended by SIGKILL at a random moment, while groups with small limits
//! write and a thread changes settings.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;

use crate::crash::expected::Expected;
use crate::crash::record::Random;
use crate::crash::writers;
use crate::harness::{Mount, Options, is_mounted, needs_mount, until};

const POOL: &str = "32M";
/// Groups: name, limit, dirty limit and where the flusher begins.
pub const GROUPS: [(&str, &str, &str, &str); 3] =
    [("a", "512k", "128k", "64k"), ("b", "1m", "256k", "32k"), ("c", "4m", "0", "0")];
/// After this many lives the files are new, or they would only grow.
const LIVES_OF_FILES: u64 = 8;
/// Kills of the ordinary tests.
const NR_KILLS: u64 = 6;

/// A number that the caller of the tests may set.
pub fn number_from_environment(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number")))
}

struct Tenant {
    name: &'static str,
    expected: Arc<Mutex<Expected>>,
    process: Option<Child>,
    reader: Option<thread::JoinHandle<()>>,
}

impl Tenant {
    fn nr_acknowledged(&self) -> u64 {
        self.expected.lock().unwrap().nr_acknowledged
    }

    /// Starts its writers, and a thread that takes down what they say.
    fn start(&mut self, mount: &Mount, era: u64, seed: u64, life: u64) {
        let directory = mount.mnt().join(format!("era{era}/{}", self.name));
        let mut process = writers::start(mount, self.name, &directory, seed, life);
        let output = BufReader::new(process.stdout.take().unwrap());
        let expected = Arc::clone(&self.expected);
        self.reader = Some(thread::spawn(move || {
            output.lines().for_each(|line| expected.lock().unwrap().note(&line.unwrap()));
        }));
        self.process = Some(process);
    }

    /// The daemon is dead, so its writers end.
    fn finish(&mut self, of_this_life: &str) {
        let mut process = self.process.take().unwrap();
        let reader = self.reader.take().unwrap();
        until("the writers hear that the daemon is dead", || reader.is_finished());
        reader
            .join()
            .unwrap_or_else(|_| panic!("a writer of {} had another trouble: {of_this_life}", self.name));
        assert!(process.wait().unwrap().success());
    }
}

/// Starts one of several operations beside the writing, before the daemon dies; returns which.
fn disturb(mount: &Mount, random: &mut Random) -> u64 {
    let write = |file: &str, text: &str| fs::write(mount.cg().join(file), text).unwrap();
    let which = random.below(8);
    match which {
        0 => write("vm.drop_caches", "3"),
        1 => drop(mount.umemcg(&["sync", mount.mnt().to_str().unwrap()])),
        // A thread that is inside may finish, and the kill comes first.
        2 => mount.signal(Signal::TERM),
        // Busy if what is dirty does not get durable in time.
        3 => drop(fs::write(mount.cg().join("c/memory.limit_in_bytes"), "1m")),
        4 => write("b/memory.low_wmark_distance", "0"),
        5 => drop(fs::write(mount.cg().join("a/memory.force_empty"), "0")),
        _ => {}
    }
    which
}

/// Makes the groups with their limits.
pub fn make_groups(mount: &Mount) {
    for (name, limit, dirty, background) in GROUPS {
        mount.group(name, limit);
        for (file, value) in
            [("memory.dirty_limit_in_bytes", dirty), ("memory.dirty_background_limit_in_bytes", background)]
        {
            let path = mount.cg().join(name).join(file);
            if value != "0" && path.exists() {
                fs::write(path, value).unwrap();
            }
        }
    }
}

fn kill_again_and_again(nr_kills: u64, seed: u64) {
    eprintln!("{nr_kills} kills, UMEMCG_CRASH_SEED={seed}");
    let mut random = Random(seed);
    let mut mount = Mount::start_with(&Options { pool: POOL, ..Options::default() });
    let mut tenants: Vec<Tenant> = GROUPS
        .iter()
        .map(|&(name, ..)| Tenant { name, expected: Arc::default(), process: None, reader: None })
        .collect();
    let mut nr_acknowledged = 0;
    for life in 1..=nr_kills {
        let era = (life - 1) / LIVES_OF_FILES;
        let of_era = |tenant: &Tenant| -> PathBuf { format!("era{era}/{}", tenant.name).into() };
        if (life - 1) % LIVES_OF_FILES == 0 {
            for tenant in &mut tenants {
                nr_acknowledged += tenant.nr_acknowledged();
                tenant.expected = Arc::default();
                fs::create_dir_all(mount.data().join(of_era(tenant))).unwrap();
            }
            if let Some(before) = era.checked_sub(1) {
                fs::remove_dir_all(mount.data().join(format!("era{before}"))).unwrap();
            }
        }
        if life > 1 {
            mount.start_daemon(&["--pool", POOL]);
        }
        make_groups(&mount);
        let before: Vec<u64> = tenants.iter().map(Tenant::nr_acknowledged).collect();
        for tenant in &mut tenants {
            tenant.start(&mount, era, random.below(1 << 32), life);
        }
        // Each has been told something, and one of them more.
        let enough = 1 + random.below(100);
        until("something is acknowledged", || {
            let told = tenants.iter().zip(&before).map(|(tenant, before)| tenant.nr_acknowledged() - before);
            let told: Vec<u64> = told.collect();
            told.iter().all(|&nr| nr > 0) && told.iter().sum::<u64>() > enough
        });
        let disturbance = disturb(&mount, &mut random);
        thread::sleep(Duration::from_micros(random.below(20_000)));
        mount.kill_daemon();
        let of_this_life = format!("life {life}, disturbance {disturbance}, UMEMCG_CRASH_SEED={seed}");
        tenants.iter_mut().for_each(|tenant| tenant.finish(&of_this_life));
        for path in [mount.mnt(), mount.cg()] {
            // A signal may have taken it out of the tree already.
            if is_mounted(&path) {
                unmount(path.as_path(), UnmountFlags::DETACH).unwrap();
            }
        }
        for tenant in &tenants {
            let kept = tenant.expected.lock().unwrap().check(&mount.data().join(of_era(tenant)));
            assert_eq!(kept, Ok(()), "group {}, {of_this_life}", tenant.name);
        }
        if life.is_multiple_of(20) {
            eprintln!("{life} kills");
        }
    }
    nr_acknowledged += tenants.iter().map(Tenant::nr_acknowledged).sum::<u64>();
    eprintln!("{nr_kills} kills, {nr_acknowledged} acknowledgements, all kept");
    // A last life that ends in order.
    mount.start_daemon(&["--pool", POOL]);
    mount.umount();
}

#[test]
fn whatever_was_acknowledged_is_there_after_each_of_many_kills() {
    needs_mount!();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = number_from_environment("UMEMCG_CRASH_SEED").unwrap_or(u64::from(now.subsec_nanos()));
    let nr_kills = number_from_environment("UMEMCG_CRASH_KILLS").unwrap_or(NR_KILLS);
    kill_again_and_again(nr_kills, seed);
}
