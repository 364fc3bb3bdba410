//! `drop-caches` (mail shrinker-bit-clearing): 4,000 groups with a volume each, one file created in
//! each volume by its group, then five drops of all caches; also with a tenth and with ten times as
//! many. With the map of shrinkers, and without it, when every (group, shrinker) pair is asked.

use umemcg::DropCaches;
use umemcg_reclaim::baseline;

use crate::many_volumes::World;
use crate::options::{Failure, Options};
use crate::progress::Progress;
use crate::report::{Report, Section, Target, Verdict};
use crate::stats::{Samples, thread_time};

const NR_GROUPS: [usize; 3] = [400, 4000, 40_000];
/// Index of the mail's number.
const MAILS: usize = 1;
const NR_PASSES: usize = 5;
/// Seconds of the mail's five passes: without the map, and with it.
const MAIL_WITHOUT: [f64; NR_PASSES] = [13.78, 5.59, 5.48, 8.35, 8.34];
const MAIL_WITH: [f64; NR_PASSES] = [1.10, 0.00, 0.01, 0.00, 0.01];
/// Repeated passes must be this many times faster than without the map…
const GAIN_MIN: f64 = 548.0;
/// … with a baseline no slower than this for each pair, in nanoseconds.
const PAIR_NS_MAX: f64 = 50.0;
/// The most nanoseconds of an empty pass with 4,000 groups.
const EMPTY_PASS_NS_MAX: f64 = 200_000.0;
/// The maximum cost of an empty pass with 40,000 groups, as a multiple of its cost with 400.
const GROWTH_MAX: f64 = 2.0;

/// Runs the experiment.
pub fn run(options: &Options) -> Result<Report, Failure> {
    let progress = Progress::new();
    let rounds = options.rounds as usize;
    let mut report = Report::new("drop-caches", options.scale, rounds);
    let sizes: Vec<usize> =
        NR_GROUPS.iter().map(|&nr| ((nr as f64 * options.scale.min(1.0)) as usize).max(10)).collect();
    let mut empty_by_size = Vec::new();
    for (at, &nr) in sizes.iter().enumerate() {
        progress.show(&format!("{nr} groups and volumes"));
        let world = World::new(options, nr, ((nr as u64 * 16) << 10).max(256 << 20))?;
        if world.volumes.len() < nr {
            report.notes.push(format!(
                "{nr} groups share {} volumes, each with a file of its own there: a volume takes a descriptor, and this machine allows \
                 no more",
                world.volumes.len()
            ));
        }
        let has_baseline = at <= MAILS;
        let (with, without) = measure(&world, rounds, has_baseline, &progress)?;
        report.sections.extend(section(&world, nr, at == MAILS, &with, has_baseline.then_some(&without)));
        empty_by_size.push(Samples::new(format!("{nr} groups"), with.repeated()));
    }
    report.sections.push(growth_section(empty_by_size));
    report.notes.push(format!(
        "the mail, seconds of the five passes: without the map {MAIL_WITHOUT:?}, with it {MAIL_WITH:?}; its shrinkers belonged to \
         4,000 tmpfs mounts"
    ));
    report.notes.push(
        "volumes are directories of the host, each with a shrinker of names and one of inodes; what the kernel above is asked to \
         forget it forgets at once; processor time"
            .into(),
    );
    Ok(report)
}

/// Takes the rounds, with the map and without it in turns.
fn measure(
    world: &World,
    rounds: usize,
    has_baseline: bool,
    progress: &Progress,
) -> Result<(Passes, Passes), Failure> {
    let (mut with, mut without) = (Passes::default(), Passes::default());
    for round in 0..rounds {
        for is_baseline in [round % 2 == 0, round % 2 != 0] {
            if is_baseline && !has_baseline {
                continue;
            }
            progress.show(&format!("{} groups, round {round} of {rounds}", world.groups.len()));
            if world.nr_remembered() == 0 {
                world.look_everything_up()?;
            }
            baseline::ask_every_shrinker(is_baseline);
            let passes = five_passes(world);
            baseline::ask_every_shrinker(false);
            let side = if is_baseline { &mut without } else { &mut with };
            side.note(passes?);
        }
    }
    Ok((with, without))
}

/// Returns how an empty pass grows with the number of groups.
fn growth_section(empty_by_size: Vec<Samples>) -> Section {
    let growth = empty_by_size[NR_GROUPS.len() - 1].median / empty_by_size[0].median;
    Section {
        title: "an empty pass, by the number of groups that exist".into(),
        unit: "ns",
        verdicts: vec![
            Verdict::new(
                "the middle number (the mail's at scale 1)",
                empty_by_size[MAILS].median,
                Target::NsAtMost(EMPTY_PASS_NS_MAX),
            ),
            Verdict::new("the largest number, of the smallest", growth, Target::TimesAtMost(GROWTH_MAX)),
        ],
        sides: empty_by_size,
    }
}

/// Nanoseconds of the passes, by their place among the five.
#[derive(Debug, Default)]
struct Passes([Vec<f64>; NR_PASSES]);

impl Passes {
    fn note(&mut self, passes: [f64; NR_PASSES]) {
        self.0.iter_mut().zip(passes).for_each(|(all, one)| all.push(one));
    }

    /// Returns the repeated passes of each round, averaged: the third to the fifth, when bits are
    /// cleared.
    fn repeated(&self) -> Vec<f64> {
        let [.., third, fourth, fifth] = &self.0;
        third.iter().zip(fourth).zip(fifth).map(|((a, b), c)| (a + b + c) / 3.0).collect()
    }
}

fn five_passes(world: &World) -> Result<[f64; NR_PASSES], Failure> {
    if world.nr_remembered() < world.groups.len() {
        return Err(Failure::Wrong("a name is missing before the drop".into()));
    }
    let mut passes = [0.0; NR_PASSES];
    for pass in &mut passes {
        let start = thread_time();
        world.engine.drop_caches(DropCaches::Both);
        *pass = (thread_time() - start).as_secs_f64() * 1e9;
    }
    match world.nr_remembered() {
        0 => Ok(passes),
        left => Err(Failure::Wrong(format!("{left} names are left after five drops"))),
    }
}

fn section(
    world: &World,
    nr: usize,
    is_mails: bool,
    with: &Passes,
    without: Option<&Passes>,
) -> Vec<Section> {
    let mut sections = Vec::new();
    for pass in 0..NR_PASSES {
        let mut sides = vec![Samples::new("umemcg", with.0[pass].clone())];
        sides.extend(without.map(|without| Samples::new("no map", without.0[pass].clone())));
        let title = format!("{nr} groups, pass {} of {NR_PASSES}", pass + 1);
        sections.push(Section { title, unit: "ns", sides, verdicts: Vec::new() });
    }
    if let Some(without) = without {
        let (ours, theirs) =
            (Samples::new("umemcg", with.repeated()), Samples::new("no map", without.repeated()));
        let mut verdicts = Vec::new();
        if is_mails {
            let nr_pairs = nr as f64 * world.engine.reclaimer().nr_shrinkers() as f64;
            let a_pair = theirs.median / nr_pairs;
            verdicts.push(Verdict::new(
                "faster than without the map",
                theirs.median / ours.median,
                Target::TimesAtLeast(GAIN_MIN),
            ));
            verdicts.push(Verdict::new(
                "the baseline, a (group, shrinker) pair",
                a_pair,
                Target::NsAtMost(PAIR_NS_MAX),
            ));
        }
        let title = format!("{nr} groups, a repeated pass");
        sections.push(Section { title, unit: "ns", sides: vec![ours, theirs], verdicts });
    }
    sections
}
