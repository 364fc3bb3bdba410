//! Rounds: writers at work, a kill at a random moment, a start, and a look at everything.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, kill_process};

use crate::crash::record::Random;
use crate::harness::{needs_mount, until};
use crate::object_crash::known::shown;
use crate::object_crash::world::{World, Writes};
use crate::object_crash::writer::{Shared, Writer};

const NR_WRITERS: u32 = 3;
/// Rounds of the ordinary test.
const NR_ROUNDS: u64 = 12;
/// After this many rounds the server is a new one, or its disk would only fill; and the volume has
/// a staging directory or none, by chance (`UMEMCG_OBJECT_CRASH_WRITES` says which).
const NR_ROUNDS_OF_SERVER: u64 = 30;

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kill {
    Daemon,
    /// While the server stands still, which then goes on.
    DaemonUnheard,
    Server,
    /// After it has stood still for a while.
    ServerUnheard,
    Both,
}

impl Kill {
    fn any(random: &mut Random) -> Self {
        const ALL: [Kill; 8] = [
            Kill::Daemon,
            Kill::Daemon,
            Kill::DaemonUnheard,
            Kill::Server,
            Kill::Server,
            Kill::ServerUnheard,
            Kill::Both,
            Kill::Both,
        ];
        ALL[random.below(ALL.len() as u64) as usize]
    }

    fn ends_daemon(self) -> bool {
        !matches!(self, Self::Server | Self::ServerUnheard)
    }

    fn ends_server(self) -> bool {
        !matches!(self, Self::Daemon | Self::DaemonUnheard)
    }

    fn run(self, world: &mut World, random: &mut Random) {
        let server = Pid::from_raw(world.weed.pid().cast_signed()).unwrap();
        if matches!(self, Self::DaemonUnheard | Self::ServerUnheard) {
            kill_process(server, Signal::STOP).unwrap();
            thread::sleep(Duration::from_millis(random.below(300)));
        }
        let server_first = random.below(2) == 0;
        if self.ends_server() && server_first {
            world.weed.kill();
        }
        if self.ends_daemon() {
            world.mount.kill_daemon();
        }
        if self.ends_server() {
            world.weed.kill();
        } else {
            kill_process(server, Signal::CONT).unwrap();
        }
    }
}

/// What all rounds have done.
#[derive(Debug, Default)]
struct Totals {
    nr_by_kill: BTreeMap<String, u64>,
    nr_acknowledged: u64,
    nr_errors: u64,
    /// Kills at which an upload in parts was noted.
    nr_in_parts: u64,
    /// Uploads in parts that daemons have left.
    nr_uploads_left: usize,
    nr_lost: u64,
    /// Files whose last change was not acknowledged.
    nr_unsure: u64,
    /// Those of which the store has the change.
    nr_new: u64,
}

/// One server and mount, with the files of all writers.
struct Life {
    world: World,
    writers: Vec<Writer>,
    shared: Arc<Shared>,
    writes: Writes,
}

impl Life {
    fn start(random: &mut Random) -> Self {
        let writes = match number_from_environment("UMEMCG_OBJECT_CRASH_WRITES").unwrap_or(random.below(2)) {
            0 => Writes::Staged,
            _ => Writes::Streamed,
        };
        eprintln!("{writes:?}");
        let (world, shared) = (World::start(writes), Arc::<Shared>::default());
        fs::create_dir(world.mount.mnt().join("d")).unwrap();
        let places = || (world.mount.mnt(), world.mount.outside().to_owned());
        let writers =
            (1..=NR_WRITERS).map(|nr| Writer::new((nr, writes), places(), random.below(1 << 32), &shared));
        Self { writers: writers.collect(), shared, writes, world }
    }

    fn round(&mut self, random: &mut Random, totals: &mut Totals) {
        let kill = Kill::any(random);
        eprintln!("kill of {kill:?}");
        *totals.nr_by_kill.entry(format!("{kill:?}")).or_default() += 1;
        self.shared.is_over.store(false, Ordering::Relaxed);
        let threads: Vec<JoinHandle<Writer>> = self
            .writers
            .drain(..)
            .map(|mut writer| {
                thread::spawn(move || {
                    writer.work();
                    writer
                })
            })
            .collect();
        self.wait_for_moment(&threads, random);
        totals.nr_in_parts += u64::from(self.world.has_noted_upload());
        kill.run(&mut self.world, random);
        if kill.ends_server() && !kill.ends_daemon() {
            self.world.start_server_again();
            self.shared.is_over.store(true, Ordering::Relaxed);
        }
        until("the writers end", || threads.iter().all(JoinHandle::is_finished));
        self.writers.extend(threads.into_iter().map(|thread| thread.join().expect("a writer is content")));
        if kill.ends_daemon() {
            self.world.detach();
            if kill.ends_server() {
                self.world.start_server_again();
            } else {
                self.world.wait_until_none_is_connected();
            }
            totals.nr_uploads_left += self.world.uploads().len();
            self.world.mount_again();
        } else if random.below(3) == 0 {
            // The end of the mount stores what is not stored yet.
            self.world.mount.umount();
            self.world.mount_again();
        } else {
            let mnt = self.world.mount.mnt();
            self.world.mount.umemcg(&["sync", mnt.to_str().unwrap()]).good();
        }
        self.check(kill, totals);
    }

    /// Waits until something was acknowledged, or until an upload in parts has begun, and a random
    /// time longer.
    fn wait_for_moment(&self, threads: &[JoinHandle<Writer>], random: &mut Random) {
        let nr_before = self.shared.nr_acknowledged.load(Ordering::Relaxed);
        let (is_for_parts, nr_enough) = (random.below(3) > 0, random.below(12));
        until("it is the moment", || {
            let nr = self.shared.nr_acknowledged.load(Ordering::Relaxed) - nr_before;
            let is_moment = nr >= nr_enough && (!is_for_parts || self.world.has_noted_upload());
            is_moment || threads.iter().any(JoinHandle::is_finished)
        });
        thread::sleep(Duration::from_micros(random.below(if is_for_parts { 250_000 } else { 60_000 })));
    }

    /// Looks at everything; from then on what is there is what was acknowledged.
    fn check(&mut self, kill: Kill, totals: &mut Totals) {
        let world = &self.world;
        // Files are let go of after the answer to their close.
        let mut drafts = Vec::new();
        let are_gone = crate::harness::holds_in_time(|| {
            drafts = world.drafts();
            drafts.is_empty()
        });
        assert!(are_gone, "drafts of nothing: {drafts:?}");
        // What a stream could not end, while its server was down, the next start ends.
        if kill.ends_daemon() || self.writes != Writes::Streamed {
            let mut uploads = Vec::new();
            let are_over = crate::harness::holds_in_time(|| {
                uploads = world.uploads();
                uploads.is_empty()
            });
            assert!(are_over, "uploads in parts that are left: {uploads:?}");
        }
        let lost = world.take_lost();
        assert!(kill.ends_daemon() || lost.is_empty(), "lost while the daemon lives: {:?}", lost[0].key);
        totals.nr_lost += lost.len() as u64;
        for lost in &lost {
            let known = self.writers.iter().find_map(|writer| writer.files.get(&lost.key));
            let known = known.unwrap_or_else(|| panic!("lost, but never written: {:?}", lost.key));
            assert!(!known.is_sure(), "lost, but acknowledged: {}", lost.key);
            assert!(
                !lost.is_whole || known.holds(Some(&lost.bytes)),
                "lost, and another: {}: {} of {known:?}",
                lost.key,
                shown(&lost.bytes)
            );
        }
        let mut keys = world.keys();
        keys.remove("d/");
        for writer in &mut self.writers {
            let mut found_of = BTreeMap::new();
            for (name, known) in &writer.files {
                let (found, shown_at_mount) = (world.object(name), world.file(name));
                let text = || found.as_deref().map(shown);
                assert!(known.holds(found.as_deref()), "{name} is {:?}, and may be {known:?}", text());
                assert!(
                    found == shown_at_mount,
                    "{name} is {:?}, and the mount shows {:?}",
                    text(),
                    shown_at_mount.as_deref().map(shown)
                );
                assert_eq!(keys.remove(name), found.is_some(), "{name} is listed");
                let is_new = found.as_deref() != known.bytes().map(|bytes| &bytes[..]);
                totals.nr_unsure += u64::from(!known.is_sure());
                totals.nr_new += u64::from(!known.is_sure() && is_new);
                found_of.insert(name.clone(), found);
            }
            for (from, to, bytes) in &writer.renames {
                assert!(
                    found_of[from].is_some() || found_of[to].as_deref() == Some(&bytes[..]),
                    "renamed from {from} to {to}, and at neither"
                );
            }
            for (name, found) in found_of {
                writer.settle(&name, found);
            }
        }
        assert!(keys.is_empty(), "never written: {keys:?}");
    }
}

/// A number that the caller of the tests may set.
fn number_from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number")))
}

/// Says which round failed, when it does.
struct Place {
    round: u64,
    seed: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("in round {}, UMEMCG_CRASH_SEED={}", self.round, self.seed);
        }
    }
}

#[test]
#[ignore = "needs SeaweedFS and the feature object (make test-object)"]
fn objects_that_were_acknowledged_survive_kills_of_either_side() {
    needs_mount!();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = number_from_environment("UMEMCG_CRASH_SEED").unwrap_or(u64::from(now.subsec_nanos()));
    let nr_rounds = number_from_environment("UMEMCG_OBJECT_CRASH_ROUNDS").unwrap_or(NR_ROUNDS);
    eprintln!("{nr_rounds} rounds, UMEMCG_CRASH_SEED={seed}");
    let (mut random, mut totals) = (Random(seed), Totals::default());
    let mut place = Place { round: 0, seed };
    while place.round < nr_rounds {
        let mut life = Life::start(&mut random);
        let last = nr_rounds.min(place.round + NR_ROUNDS_OF_SERVER);
        while place.round < last {
            place.round += 1;
            life.round(&mut random, &mut totals);
            if place.round.is_multiple_of(20) {
                eprintln!("{} rounds", place.round);
            }
        }
        totals.nr_acknowledged += life.shared.nr_acknowledged.load(Ordering::Relaxed);
        totals.nr_errors += life.shared.nr_errors.load(Ordering::Relaxed);
        life.world.mount.umount();
    }
    eprintln!("{nr_rounds} rounds, all kept: {totals:?}");
}
