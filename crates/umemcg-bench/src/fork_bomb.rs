//! `fork-bomb` (mail shrinker-bit-clearing): 255 groups with a volume and a file each, and one
//! group of 200 MiB under constant pressure. The share of reclaim's time spent on asking shrinkers,
//! by group, with the map and without it; and the cost of reclaim while shrinkers come and go all
//! the time.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use umemcg::Group;
use umemcg::files::Readahead;
use umemcg_base::PAGE_SIZE_U64;
use umemcg_reclaim::baseline::{self, Spent};
use umemcg_vfs::{Caller, Create, HostVolume, Lookup, Names, NodeId, OFlags, VolumeConfig};

use crate::many_volumes::World;
use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{Report, Section, Target, Verdict};
use crate::stats::Samples;
use crate::store::{HostFile, first_word};

const NR_GROUPS: usize = 255;
const LIMIT_BYTES: u64 = 200 << 20;
/// Bytes read by the group under pressure in one sample, at full size.
const STREAM_BYTES: u64 = 2 << 30;
const READ_BYTES: u64 = 128 << 10;
/// Bytes read while shrinkers come and go on one side, before it is the other's turn; and how
/// often, in a round.
const WINDOW_BYTES: u64 = 128 << 20;
const PAIRS: usize = 4;
/// Share of the time in reclaim that may go into asking, in percent. The mail: 36.4 before, 0.46
/// after.
const ASKING_PERCENT_MAX: f64 = 0.5;
const MAIL_PERCENT: (f64, f64) = (36.4, 0.46);
/// The most that reclaim of a page may cost while shrinkers come and go, as a multiple of its cost
/// while they do so in another pool. Two runs of the same work differ as much by other load of the
/// machine.
const REGISTRATION_MAX: f64 = 1.02;
/// Pairs needed for a bound.
const ROUNDS_MIN: usize = 15;

/// The sides, in the order of the tables: with the map; without; while shrinkers come and go in the
/// pool under pressure; while they do so in another pool: the same work for the machine, but none
/// of it for the pool.
const MAP: usize = 0;
const NO_MAP: usize = 1;
const BUSY: usize = 2;
const ELSEWHERE: usize = 3;
const SIDES: [&str; 4] =
    ["umemcg", "no map", "umemcg, shrinkers come and go", "umemcg, they do so in another pool"];

/// The result of one sample: percent of reclaim's time spent asking, nanoseconds of reclaim for a
/// page.
struct Found {
    asking: f64,
    a_page: f64,
}

/// Runs the experiment.
pub fn run(options: &Options) -> Result<Report, Failure> {
    let progress = Progress::new();
    let rounds = options.rounds_for_bound(ROUNDS_MIN);
    let mut report = Report::new("fork-bomb", options.scale, rounds);
    let world = World::new(options, NR_GROUPS, 1 << 30)?;
    let group = world
        .engine
        .create_group(world.engine.root(), "pressed".as_ref())
        .map_err(Failure::at("cannot create"))?;
    world.engine.set_limit(&group, LIMIT_BYTES).map_err(Failure::at("cannot set the limit"))?;
    let bytes = ((STREAM_BYTES as f64 * options.scale) as u64).max(LIMIT_BYTES) / READ_BYTES * READ_BYTES;
    // The volumes of this world come and go in the fourth side: the same work, but none of it in
    // the pool under pressure.
    let elsewhere = World::new(options, 1, 256 << 20)?;
    let nr_done = [AtomicU64::new(0), AtomicU64::new(0)];
    let mut found: [Vec<Found>; 4] = Default::default();
    for round in 0..=rounds {
        for at in 0..3 {
            let side = (round + at) % 3;
            progress.show(&format!("round {round} of {rounds}, side {}", side + 1));
            let pairs = 2 * PAIRS as u64 * WINDOW_BYTES;
            let mut stream =
                Stream::new(options, &world, &group, LIMIT_BYTES + if side == BUSY { pairs } else { bytes })?;
            stream.read(LIMIT_BYTES)?;
            if side == BUSY {
                let pairs = stream.watch_pairs(options, &elsewhere, &nr_done)?;
                for [here, there] in pairs.into_iter().filter(|_| round > 0) {
                    found[BUSY].push(here);
                    found[ELSEWHERE].push(there);
                }
                continue;
            }
            debug_assert!(side == MAP || side == NO_MAP);
            baseline::ask_every_shrinker(side == NO_MAP);
            let sample = stream.watch(bytes);
            baseline::ask_every_shrinker(false);
            if round > 0 {
                found[side].push(sample?);
            }
        }
    }
    report.sections = sections(&found);
    report.notes.push(format!(
        "the mail, time spent asking: {} % without the map and {} % with it, where then 78 % went into the lock of registration",
        MAIL_PERCENT.0, MAIL_PERCENT.1
    ));
    report.notes.push(format!(
        "processor time of the thread that reclaims; {NR_GROUPS} idle groups with a volume each beside a group of 200 MiB through which {} MiB of a file are read in a sample; \
         of the third and fourth side, {PAIRS} pairs of {} MiB a round that follow each other, and {} volumes came and went in the one, {} in the other",
        bytes >> 20,
        WINDOW_BYTES >> 20,
        nr_done[0].load(Relaxed),
        nr_done[1].load(Relaxed)
    ));
    report.notes.push(
        "asking: one visit in 61 asks 16 times in a row and is timed; what a look at the clock costs, as the same visit shows it, is taken off".into(),
    );
    Ok(report)
}

fn sections(found: &[Vec<Found>; 4]) -> Vec<Section> {
    let columns = |read: fn(&Found) -> f64| -> Vec<Samples> {
        let samples =
            |(found, name): (&Vec<Found>, &str)| Samples::new(name, found.iter().map(read).collect());
        found.iter().zip(SIDES).map(samples).collect()
    };
    let asking = columns(|found| found.asking);
    let share = Verdict::new("asking", asking[MAP].median, Target::PercentAtMost(ASKING_PERCENT_MAX));
    let a_page = columns(|found| found.a_page);
    let bound = Verdict::new(
        "with registrations, of the same in another pool, at most (95 %)",
        a_page[BUSY].ratio_bound_above(&a_page[ELSEWHERE]).unwrap_or(f64::INFINITY),
        Target::TimesAtMost(REGISTRATION_MAX),
    );
    let title = "time in reclaim spent asking shrinkers".into();
    vec![
        Section { title, unit: "%", sides: asking, verdicts: vec![share] },
        Section { title: "reclaim of a page".into(), unit: "ns", sides: a_page, verdicts: vec![bound] },
    ]
}

/// The stream of a group.
struct Stream<'w> {
    world: &'w World,
    group: &'w Arc<Group>,
    file: Arc<umemcg::files::File>,
    readahead: Readahead,
    at: u64,
}

impl<'w> Stream<'w> {
    /// Creates a stream of this many bytes, in an empty group.
    fn new(options: &Options, world: &'w World, group: &'w Arc<Group>, bytes: u64) -> Result<Self, Failure> {
        let store = tempfile::tempfile_in(options.directory()).map_err(Failure::at("cannot make a file"))?;
        store.set_len(bytes).map_err(Failure::at("cannot make a file"))?;
        let file = world.engine.open_file(Arc::new(HostFile(store)), bytes);
        let file = file.map_err(Failure::at("cannot open a file"))?;
        Ok(Self { world, group, file, readahead: Readahead::new(), at: 0 })
    }

    /// Reads on.
    fn read(&mut self, bytes: u64) -> Result<(), Failure> {
        for _ in 0..bytes / READ_BYTES {
            let pages = self.file.read(self.group, self.at, READ_BYTES as usize, &self.readahead);
            let pages = pages.map_err(Failure::at("cannot read"))?;
            if pages.len() as u64 != READ_BYTES || first_word(&self.world.engine, &pages) != 0 {
                return Err(Failure::Wrong(format!("{} bytes of a hole at {}", pages.len(), self.at)));
            }
            self.at += READ_BYTES;
        }
        Ok(())
    }

    /// Reads on in a full group, and measures the time of reclaim.
    fn watch(&mut self, bytes: u64) -> Result<Found, Failure> {
        let group = self.group;
        let stolen = || group.stat_total(umemcg::StatItem::PgStealDirect);
        let before = stolen();
        Spent::start();
        self.read(bytes)?;
        let spent = Spent::take();
        let pages = (stolen() - before) as f64;
        let expected = bytes / PAGE_SIZE_U64 * 9 / 10;
        if (pages as u64) < expected {
            return Err(Failure::Wrong(format!("{pages} pages reclaimed of {expected}")));
        }
        let reclaim = spent.reclaim.as_nanos() as f64;
        Ok(Found { asking: spent.asking_ns as f64 * 100.0 / reclaim, a_page: reclaim / pages })
    }

    /// As [`watch`](Self::watch), in turns while shrinkers come and go in the group's pool, and
    /// while they do so elsewhere.
    fn watch_pairs(
        &mut self,
        options: &Options,
        elsewhere: &World,
        nr_done: &[AtomicU64; 2],
    ) -> Result<Vec<[Found; 2]>, Failure> {
        let directory =
            tempfile::tempdir_in(options.directory()).map_err(Failure::at("cannot make a directory"))?;
        let (side, done) = (AtomicUsize::new(0), AtomicBool::new(false));
        let worlds = [self.world, elsewhere];
        std::thread::scope(|scope| {
            let churn = scope.spawn(|| -> Result<(), Failure> {
                while !done.load(Relaxed) {
                    let now = side.load(Relaxed);
                    let result = come_and_go(worlds[now], directory.path());
                    // The waiting parent must not wait for ever.
                    nr_done[now].fetch_add(1, Relaxed);
                    result?;
                }
                Ok(())
            });
            let mut take = || -> Result<Vec<[Found; 2]>, Failure> {
                let mut pairs = Vec::new();
                for pair in 0..PAIRS {
                    let mut found = [None, None];
                    for turn in [pair % 2, 1 - pair % 2] {
                        side.store(turn, Relaxed);
                        // The second window began after the change.
                        let before = nr_done[turn].load(Relaxed);
                        while nr_done[turn].load(Relaxed) < before + 2 && !churn.is_finished() {
                            std::thread::yield_now();
                        }
                        found[turn] = Some(self.watch(WINDOW_BYTES)?);
                    }
                    pairs.push(found.map(|found| found.expect("each has had its turn")));
                }
                Ok(pairs)
            };
            let pairs = take();
            done.store(true, Relaxed);
            churn.join().expect("no panic")?;
            pairs
        })
    }
}

/// Adds and removes a volume; its shrinkers register with its first name.
fn come_and_go(world: &World, directory: &Path) -> Result<(), Failure> {
    let volume = HostVolume::new(&world.engine, VolumeConfig::one_of_many(directory))
        .map_err(Failure::at("cannot make a volume"))?;
    let group = Arc::clone(&world.groups[0]);
    let caller = Caller { uid: 0, gid: 0, supplementary_gid: None, group, umask: 0, thread: 0 };
    let (entry, file) = volume
        .create(&caller, NodeId::ROOT, "f".as_ref(), 0o600, OFlags::WRONLY)
        .map_err(Failure::at("cannot create a file"))?;
    drop(file);
    volume.unlink(&caller, NodeId::ROOT, "f".as_ref()).map_err(Failure::at("cannot remove a file"))?;
    volume.forget(entry.node, 1);
    Ok(())
}
