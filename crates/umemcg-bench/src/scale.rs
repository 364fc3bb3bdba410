//! `scale`: the cost of one operation with 1, 100, 10,000 and 100,000 groups: create, charge cold,
//! reclaim one, read one's `memory.stat`, remove. No cost may grow with the number of groups.

use std::ffi::OsString;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use umemcg::files::Readahead;
use umemcg::{Charge, Engine, EngineConfig, Group};
use umemcg_base::PAGE_SIZE_U64;
use umemcg_control::{Access, ControlTree, Credentials, Request};
use umemcg_group::GroupTree;
use umemcg_reclaim::Reason;

use crate::control::no_processes;
use crate::machine::resident_bytes;
use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{Report, Section, Target, Verdict};
use crate::stats::{Samples, thread_time};
use crate::store::HostFile;

const NR_GROUPS: [usize; 4] = [1, 100, 10_000, 100_000];
/// Groups to reclaim from and to read in one sample.
const NR_VISITED: usize = 1000;
/// Numbers of groups to compare.
const FEW: usize = 1;
const MANY: usize = 3;
/// The maximum cost of an operation with 100,000 groups, as a multiple of its cost with 100, if the
/// latter is a microsecond or more.
const GROWTH_MAX: f64 = 1.5;
const COLD_CHARGE_NS_MAX: f64 = 250.0;
const STAT_NS_MAX: f64 = 50_000.0;
const CREATE_NS_MAX: f64 = 1e9 / 100_000.0;
const GROUP_BYTES_MAX: f64 = 2048.0;

/// The operations, in the order of a round.
const OPERATIONS: [&str; 6] = [
    "create a group",
    "charge 4 KiB, cold",
    "give it back, cold",
    "reclaim a page of one group",
    "read memory.stat of one group",
    "remove a group",
];

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<Report, Failure> {
    let progress = Progress::new();
    let mut report = Report::new("scale", options.scale, options.rounds as usize);
    let sizes: Vec<usize> =
        NR_GROUPS.iter().map(|&nr| ((nr as f64 * options.scale.min(1.0)) as usize).max(1)).collect();
    // By operation and size: nanoseconds, in the order of the rounds.
    let mut samples = vec![vec![Vec::new(); sizes.len()]; OPERATIONS.len()];
    // First of all, while no freed memory can be used again.
    let bytes_each = vec![bytes_of_a_group(sizes[MANY])?];
    for round in 0..=options.rounds {
        for (at, &nr) in sizes.iter().enumerate() {
            progress.show(&format!("round {round} of {}: {nr} groups", options.rounds));
            let times = world(options, nr)?;
            for (of_operation, time) in samples.iter_mut().zip(times) {
                if round > 0 {
                    of_operation[at].push(time);
                }
            }
        }
    }
    for (what, by_size) in OPERATIONS.iter().zip(samples) {
        let sides: Vec<Samples> = sizes
            .iter()
            .zip(by_size)
            .map(|(nr, times)| Samples::new(format!("{nr} groups"), times))
            .collect();
        let mut verdicts = Vec::new();
        let (few, many) = (&sides[FEW], &sides[MANY]);
        if few.median >= 1000.0 {
            verdicts.push(Verdict::new(
                "of the cost with few",
                many.ratio_to(few),
                Target::TimesAtMost(GROWTH_MAX),
            ));
        }
        let bound = match *what {
            "create a group" => Some(CREATE_NS_MAX),
            "charge 4 KiB, cold" => Some(COLD_CHARGE_NS_MAX),
            "read memory.stat of one group" => Some(STAT_NS_MAX),
            _ => None,
        };
        verdicts.extend(bound.map(|ns| Verdict::new("with the most", many.median, Target::NsAtMost(ns))));
        report.sections.push(Section { title: (*what).to_owned(), unit: "ns", sides, verdicts });
    }
    let sides = vec![Samples::new("resident, each", bytes_each)];
    let verdicts =
        vec![Verdict::new("an empty group", sides[0].median, Target::BytesAtMost(GROUP_BYTES_MAX))];
    report.sections.push(Section {
        title: "memory of an empty group".into(),
        unit: "bytes",
        sides,
        verdicts,
    });
    report.notes.push(format!(
        "all groups below one parent; {NR_VISITED} of them, spread over all, are reclaimed from and read in a sample; processor time"
    ));
    Ok(report)
}

/// Nanoseconds of each operation in a fresh engine with `nr` groups.
fn world(options: &Options, nr: usize) -> Result<[f64; 6], Failure> {
    let pool_bytes = (nr as u64 * 2 * (PAGE_SIZE_U64 + 2048)).max(256 << 20);
    let engine = Engine::new(EngineConfig::new(pool_bytes)).map_err(Failure::at("cannot make an engine"))?;
    let control = ControlTree::new(Arc::clone(&engine), no_processes());
    let parent =
        engine.create_group(engine.root(), "parent".as_ref()).map_err(Failure::at("cannot create"))?;
    let names: Vec<OsString> = (0..nr).map(|at| OsString::from(format!("g{at}"))).collect();

    let mut groups = Vec::with_capacity(nr);
    let start = thread_time();
    for name in &names {
        groups.push(engine.create_group(&parent, name).map_err(Failure::at("cannot create a group"))?);
    }
    let create = each(start, nr);

    // A stride without a common factor with the number spreads the visits over all groups.
    let order: Vec<usize> = (0..nr).map(|at| at * 7919 % nr).collect();
    // The room for the charges is touched before: the measurement is about the groups.
    let mut charges: Vec<Option<Charge>> = Vec::new();
    charges.resize_with(nr, || None);
    charges.clear();
    let start = thread_time();
    for &at in &order {
        charges.push(Some(groups[at].try_charge(PAGE_SIZE_U64).map_err(Failure::at("cannot charge"))?));
    }
    let charge = each(start, nr);
    let start = thread_time();
    charges.drain(..).for_each(drop);
    let give_back = each(start, nr);
    check_charges(&parent, &groups)?;

    let visited: Vec<&Arc<Group>> = order.iter().take(NR_VISITED).map(|&at| &groups[at]).collect();
    let (reclaim, stat) = visit(options, &engine, &control, &visited)?;

    let start = thread_time();
    for group in &groups {
        engine.remove_group(group).map_err(Failure::at("cannot remove a group"))?;
    }
    let remove = each(start, nr);
    if parent.nr_children() != 0 {
        return Err(Failure::Wrong("a group is left".into()));
    }
    Ok([create, charge, give_back, reclaim, stat, remove])
}

/// Checks that charges of groups count above them as long as they are held.
fn check_charges(parent: &Group, groups: &[Arc<Group>]) -> Result<(), Failure> {
    let before = parent.usage_exact();
    let charges: Result<Vec<_>, _> = groups.iter().map(|group| group.try_charge(PAGE_SIZE_U64)).collect();
    let charges = charges.map_err(Failure::at("cannot charge"))?;
    let while_held = parent.usage_exact();
    drop(charges);
    let (after, bytes) = (parent.usage_exact(), groups.len() as u64 * PAGE_SIZE_U64);
    if (while_held, after) != (before + bytes, before) {
        return Err(Failure::Wrong(format!(
            "{bytes} bytes charged and given back: {before}, {while_held}, {after} above"
        )));
    }
    Ok(())
}

/// Returns the growth of this process's resident memory for each of `nr` empty groups.
fn bytes_of_a_group(nr: usize) -> Result<f64, Failure> {
    let tree = GroupTree::new(u64::MAX >> 1);
    let before = resident_bytes();
    for at in 0..nr {
        tree.create(tree.root(), &OsString::from(format!("g{at}")))
            .map_err(Failure::at("cannot create a group"))?;
    }
    Ok(resident_bytes().saturating_sub(before) as f64 / nr as f64)
}

/// Nanoseconds of a reclaim from each group, with one cached page of a file, and of reading its
/// numbers.
fn visit(
    options: &Options,
    engine: &Arc<Engine>,
    control: &ControlTree,
    groups: &[&Arc<Group>],
) -> Result<(f64, f64), Failure> {
    // Pages far from each other, so that no group reads ahead for another.
    let place = |page: usize| (page as u64 + 1) * 64 * PAGE_SIZE_U64;
    let len = place(groups.len());
    let store = tempfile::tempfile_in(options.directory()).map_err(Failure::at("cannot make a file"))?;
    store.set_len(len).map_err(Failure::at("cannot make a file"))?;
    let file = engine.open_file(Arc::new(HostFile(store)), len).map_err(Failure::at("cannot open a file"))?;
    for (page, group) in groups.iter().enumerate() {
        drop(file.read(group, place(page), 8, &Readahead::new()).map_err(Failure::at("cannot read"))?);
    }
    let request = Request { tid: 1, nonblocking: false, cancelled: &|| false, accepted: &|| () };
    let start = thread_time();
    for group in groups {
        let path = format!("parent/{}/memory.stat", group.name().to_string_lossy());
        let node = path.split('/').try_fold(umemcg_control::NodeId::ROOT, |at, name| {
            control.lookup(at, name.as_ref()).map(|entry| entry.node)
        });
        let read = node.and_then(|node| {
            let file = control.open(node, Access { read: true, write: false }, Credentials::ROOT)?;
            control.read(&file, 0, 1 << 16, &request)
        });
        let text = black_box(read.map_err(|error| Failure::Wrong(format!("memory.stat: {error:?}")))?);
        if !text.starts_with(b"cache 4096\n") {
            return Err(Failure::Wrong("memory.stat of another group".into()));
        }
    }
    let stat = each(start, groups.len());
    let mut pages = 0;
    let start = thread_time();
    for group in groups {
        pages += engine.reclaimer().reclaim(group, 1, Reason::Proactive).reclaimed;
    }
    let reclaim = each(start, groups.len());
    if pages != groups.len() as u64 {
        return Err(Failure::Wrong(format!("{pages} pages reclaimed of {}", groups.len())));
    }
    Ok((reclaim, stat))
}

fn each(start: Duration, nr: usize) -> f64 {
    (thread_time() - start).as_secs_f64() * 1e9 / nr as f64
}
