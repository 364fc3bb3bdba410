//! `fork-bomb` (mail shrinker-bit-clearing): 255 groups with a volume and a file each, and one group of 200 MiB under constant
//! pressure. Which share of the time in reclaim goes into asking shrinkers, by group, with the map and without it; and what
//! becomes of reclaim when shrinkers come and go all the time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use umemcg::{Group, Readahead};
use umemcg_base::PAGE_SIZE_U64;
use umemcg_reclaim::baseline::{self, Spent};
use umemcg_vfs::{Caller, NodeId, OFlags, Vfs, Volume, VolumeConfig};

use crate::report::{Progress, Report, Section, Target, Verdict};
use crate::stats::Samples;
use crate::store::HostFile;
use crate::world::World;
use crate::{Failure, Options};

const NR_GROUPS: usize = 255;
const LIMIT_BYTES: u64 = 200 << 20;
/// Bytes that the group under pressure reads in one sample, at full size.
const STREAM_BYTES: u64 = 2 << 30;
const READ_BYTES: u64 = 128 << 10;
/// Share of the time in reclaim that may go into asking, in percent. The mail: 36.4 before, 0.46 after.
const ASKING_PERCENT_MAX: f64 = 0.5;
const MAIL_PERCENT: (f64, f64) = (36.4, 0.46);
/// With shrinkers coming and going a page's reclaim may cost this much of what it costs while they do so in another pool: what is
/// within it cannot be told from what the machine does to two runs of the same.
const REGISTRATION_MAX: f64 = 1.02;
/// Pairs that a bound needs.
const ROUNDS_MIN: usize = 15;

/// The sides, in the order of the tables: with the map; without; while shrinkers come and go in the pool under pressure; while they do
/// so in another one, which is the same work for the machine but none of it for the pool.
const MAP: usize = 0;
const NO_MAP: usize = 1;
const BUSY: usize = 2;
const ELSEWHERE: usize = 3;

/// What one sample found: percent of reclaim's time spent asking, nanoseconds of reclaim for a page.
struct Found {
    asking: f64,
    a_page: f64,
}

/// Runs the experiment.
pub fn run(options: &Options) -> Result<Report, Failure> {
    let progress = Progress::new();
    let rounds = (options.rounds as usize).max(ROUNDS_MIN);
    let mut report = Report::new("fork-bomb", options.scale, rounds);
    let world = World::new(options, NR_GROUPS, 1 << 30)?;
    let group = world
        .engine
        .create_group(world.engine.root(), "pressed".as_ref())
        .map_err(Failure::at("cannot create"))?;
    world.engine.set_limit(&group, LIMIT_BYTES, &|| false).map_err(Failure::at("cannot set the limit"))?;
    let bytes = ((STREAM_BYTES as f64 * options.scale) as u64).max(2 * LIMIT_BYTES) / READ_BYTES * READ_BYTES;
    // Whose volumes come and go in the fourth side: the same work, but none of it in the pool under pressure.
    let elsewhere = World::new(options, 1, 256 << 20)?;
    let (nr_registered, nr_elsewhere) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut found: [Vec<Found>; 4] = Default::default();
    for round in 0..=rounds {
        for at in 0..found.len() {
            let side = (round + at) % found.len();
            progress.show(&format!("round {round} of {rounds}, side {}", side + 1));
            let stream = || stream(options, &world, &group, bytes);
            let sample = match side {
                MAP => stream(),
                NO_MAP => {
                    baseline::ask_every_shrinker(true);
                    let sample = stream();
                    baseline::ask_every_shrinker(false);
                    sample
                }
                BUSY => while_shrinkers_come_and_go(options, &world, &nr_registered, stream)?,
                _ => while_shrinkers_come_and_go(options, &elsewhere, &nr_elsewhere, stream)?,
            };
            if round > 0 {
                found[side].push(sample?);
            }
        }
    }
    let [map, none, busy, other] = found;
    let column = |found: &[Found], name: &str, read: fn(&Found) -> f64| {
        Samples::new(name, found.iter().map(read).collect())
    };
    let asking = vec![
        column(&map, "umemcg", |found| found.asking),
        column(&none, "no map", |found| found.asking),
        column(&busy, "umemcg, shrinkers come and go", |found| found.asking),
        column(&other, "umemcg, they do so in another pool", |found| found.asking),
    ];
    let verdicts = vec![Verdict::new("asking", asking[0].median, Target::PercentAtMost(ASKING_PERCENT_MAX))];
    report.sections.push(Section {
        title: "time in reclaim spent asking shrinkers".into(),
        unit: "%",
        sides: asking,
        verdicts,
    });
    let a_page = vec![
        column(&map, "umemcg", |found| found.a_page),
        column(&none, "no map", |found| found.a_page),
        column(&busy, "umemcg, shrinkers come and go", |found| found.a_page),
        column(&other, "umemcg, they do so in another pool", |found| found.a_page),
    ];
    let bound = a_page[BUSY].ratio_bound_above(&a_page[ELSEWHERE]).unwrap_or(f64::INFINITY);
    let verdicts = vec![Verdict::new(
        "with registrations, of the same in another pool, at most (95 %)",
        bound,
        Target::TimesAtMost(REGISTRATION_MAX),
    )];
    report.sections.push(Section { title: "reclaim of a page".into(), unit: "ns", sides: a_page, verdicts });
    report.notes.push(format!(
        "the mail, time spent asking: {} % without the map and {} % with it, where then 78 % went into the lock of registration",
        MAIL_PERCENT.0, MAIL_PERCENT.1
    ));
    report.notes.push(format!(
        "processor time of the thread that reclaims; {NR_GROUPS} idle groups with a volume each beside a group of 200 MiB through which {} MiB of a file are read in a sample; \
         {} volumes came and went meanwhile in the third side, {} in the fourth",
        bytes >> 20,
        nr_registered.load(Relaxed),
        nr_elsewhere.load(Relaxed)
    ));
    Ok(report)
}

/// Streams a file through the group and takes the time that reclaim needed for it.
fn stream(
    options: &Options,
    world: &World,
    group: &std::sync::Arc<Group>,
    bytes: u64,
) -> Result<Found, Failure> {
    let store = tempfile::tempfile_in(options.directory()).map_err(Failure::at("cannot make a file"))?;
    store.set_len(bytes).map_err(Failure::at("cannot make a file"))?;
    let file = world
        .engine
        .open_file(std::sync::Arc::new(HostFile(store)), bytes)
        .map_err(Failure::at("cannot open a file"))?;
    let readahead = Readahead::new();
    let stolen = || group.stat_total(umemcg::StatItem::PgStealDirect);
    let before = stolen();
    Spent::start();
    for at in (0..bytes).step_by(READ_BYTES as usize) {
        drop(file.read(group, at, READ_BYTES as usize, &readahead).map_err(Failure::at("cannot read"))?);
    }
    let spent = Spent::take();
    let pages = (stolen() - before) as f64;
    let expected = (bytes - LIMIT_BYTES.min(bytes)) / PAGE_SIZE_U64;
    if (pages as u64) < expected {
        return Err(Failure::Wrong(format!("{pages} pages reclaimed of {expected}")));
    }
    let reclaim = spent.reclaim.as_nanos() as f64;
    Ok(Found { asking: spent.asking.as_nanos() as f64 * 100.0 / reclaim, a_page: reclaim / pages })
}

/// Runs `work` while another thread adds and removes volumes, whose shrinkers register with their first name.
fn while_shrinkers_come_and_go<R>(
    options: &Options,
    world: &World,
    nr: &AtomicU64,
    work: impl FnOnce() -> R,
) -> Result<R, Failure> {
    let directory =
        tempfile::tempdir_in(options.directory()).map_err(Failure::at("cannot make a directory"))?;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let churn = scope.spawn(|| -> Result<(), Failure> {
            while !done.load(Relaxed) {
                let volume = Vfs::new(&world.engine, VolumeConfig::one_of_many(directory.path()))
                    .map_err(Failure::at("cannot make a volume"))?;
                let group = std::sync::Arc::clone(&world.groups[0]);
                let caller = Caller { uid: 0, gid: 0, supplementary_gid: None, group, umask: 0 };
                let flags = OFlags::WRONLY;
                let (entry, file) =
                    Volume::create(&*volume, &caller, NodeId::ROOT, "f".as_ref(), 0o600, flags)
                        .map_err(Failure::at("cannot create a file"))?;
                drop(file);
                volume.unlink(NodeId::ROOT, "f".as_ref()).map_err(Failure::at("cannot remove a file"))?;
                volume.forget(entry.node, 1);
                nr.fetch_add(1, Relaxed);
            }
            Ok(())
        });
        let result = work();
        done.store(true, Relaxed);
        churn.join().expect("no panic")?;
        Ok(result)
    })
}
