//! `soft-limit`: two groups build a real C project each, with `make -j2`, on a volume of their own
//! of a real mount whose pool is small enough to hurt; without soft limits, and with soft limit 0
//! for both. As before the rework (the largest excess first, at priority 0), with its patches 1 to
//! 3 (two passes over all groups), and with all eight. This process serves the mount, so its
//! processor time is the daemon's; the builds have their own. The comparison uses processor time
//! and bytes read again; time on the clock stands beside it. Bytes read again are bytes read into
//! the cache beyond those of a cache with room for everything: pages lost to reclaim of objects
//! count as well.

use std::time::Instant;

use umemcg::{StatItem, UNLIMITED};
use umemcg_reclaim::baseline::{SoftLimits, honour_soft_limits};

use crate::c_project::ProjectSize;
use crate::options::{Failure, Options, PageCache};
use crate::progress::Progress;
use crate::report::{MailFigure, Report, Section, Target, Verdict};
use crate::served_mount::{ServedMount, bounded};
use crate::stats::Samples;
use crate::threads::process_time;

const MIB: u64 = 1 << 20;
/// The pool: the headers of both projects fit, with room for the files being compiled; files read
/// or written once do not.
const POOL_BYTES: u64 = 40 * MIB;
/// A pool with room for everything.
const AMPLE_BYTES: u64 = 512 * MIB;
const PROJECT: ProjectSize = ProjectSize {
    nr_headers: 64,
    header_bytes: 256 << 10,
    nr_included: 12,
    nr_sources: 120,
    own_bytes: 32 << 10,
};
const TENANTS: [&str; 2] = ["A", "B"];

const SAME_AS_BASE_MAX: f64 = 1.01;
const SAME_AS_UNLIMITED_MAX: f64 = 1.02;
const REFAULTS_PERCENT_MAX: f64 = 3.0;
/// With less read again before the rework, as at a small scale, there is nothing to avoid.
const BASE_READ_AGAIN_MIN_MIB: f64 = 5.0;

/// The treatment of soft limits by the reclaim under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mechanism {
    Base,
    Rework,
    Full,
}

impl Mechanism {
    const ALL: [Self; 3] = [Self::Full, Self::Rework, Self::Base];

    fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Rework => "rework (1-3)",
            Self::Full => "full (1-8)",
        }
    }

    fn choose(self) {
        honour_soft_limits(match self {
            Self::Base => SoftLimits::LargestFirst,
            Self::Rework => SoftLimits::NoSkipping,
            Self::Full => SoftLimits::TwoRounds,
        });
    }
}

/// The figures of one run of both builds.
#[derive(Debug, Clone, Copy)]
struct Run([f64; FIGURES.len()]);

/// The figures of a run; the unit of each.
const FIGURES: [(&str, &str); 8] = [
    ("processor time, builds and daemon", "s"),
    ("system time: builds in the kernel, and daemon", "s"),
    ("processor time of the daemon", "s"),
    ("elapsed", "s"),
    ("read again", "MiB"),
    ("of that, noticed as refaults", "MiB"),
    ("reclaimed", "MiB"),
    ("pages looked at for each reclaimed", "pages"),
];
const ALL_CPU: usize = 0;
const SYSTEM: usize = 1;
const ELAPSED: usize = 3;
const READ_AGAIN: usize = 4;

/// The mail's figures, averages: base, rework, full; without limits and with limit 0.
const MAIL: [(&str, [&str; 3], [&str; 3], usize); 3] = [
    ("system time", ["243.92 s", "242.82 s", "243.78 s"], ["250.19 s", "242.01 s", "244.52 s"], SYSTEM),
    ("elapsed", ["605.52 s", "596.09 s", "599.60 s"], ["784.87 s", "597.07 s", "601.08 s"], ELAPSED),
    ("major faults / MiB read again", ["–", "–", "–"], ["29962", "814", "912"], READ_AGAIN),
];

/// Runs the experiment.
pub fn run(options: &Options, page_cache: PageCache) -> Result<Report, Failure> {
    let progress = Progress::new();
    let nr_sources = ((PROJECT.nr_sources as f64 * options.scale) as usize).max(4);
    let project = ProjectSize { nr_sources, ..PROJECT };
    let directory =
        tempfile::tempdir_in(options.directory()).map_err(Failure::at("cannot make a directory"))?;
    for name in TENANTS {
        let data = directory.path().join(name);
        std::fs::create_dir(&data).map_err(Failure::at("cannot make a directory"))?;
        project.write(&data)?;
    }
    // The data that both have to read.
    let compulsory =
        build_both(&project, directory.path(), page_cache, AMPLE_BYTES, UNLIMITED)?.0[READ_AGAIN];
    let sides: Vec<(Mechanism, u64)> = [UNLIMITED, 0]
        .into_iter()
        .flat_map(|limit| Mechanism::ALL.map(|mechanism| (mechanism, limit)))
        .collect();
    let mut runs: Vec<Vec<Run>> = vec![Vec::new(); sides.len()];
    for round in 0..=options.rounds as usize {
        for at in 0..sides.len() {
            let side = (round + at) % sides.len();
            let (mechanism, limit) = sides[side];
            let limits = if limit == 0 { "soft limit 0" } else { "no limit" };
            progress.show(&format!("round {round} of {}: {}, {limits}", options.rounds, mechanism.name()));
            mechanism.choose();
            let run = build_both(&project, directory.path(), page_cache, POOL_BYTES, limit);
            Mechanism::Full.choose();
            let mut run = run?;
            run.0[READ_AGAIN] = (run.0[READ_AGAIN] - compulsory).max(0.0);
            if round > 0 {
                runs[side].push(run);
            }
        }
    }
    let mut report = report(options, &project, compulsory, &runs);
    if page_cache == PageCache::Kernel {
        report.benchmark = "kernel-soft-limit";
    }
    Ok(report)
}

/// Runs both builds at the same time, on a mount of their own, from an empty cache to two programs
/// with the right output. All bytes read into the cache count as read again.
fn build_both(
    project: &ProjectSize,
    directory: &std::path::Path,
    page_cache: PageCache,
    pool_bytes: u64,
    soft_limit: u64,
) -> Result<Run, Failure> {
    let mount = ServedMount::start(pool_bytes, page_cache)?;
    for name in TENANTS {
        mount.add_tenant(name, &directory.join(name))?.set_soft_limit(soft_limit);
    }
    let start = (Instant::now(), process_time(), ChildTime::now());
    let builds: Vec<_> =
        TENANTS.into_iter().map(|name| mount.run_in(name, "make -s -j2")).collect::<Result<_, _>>()?;
    bounded(&mount.daemon, || {
        for mut build in builds {
            let status = build.wait().map_err(Failure::at("cannot wait for a build"))?;
            if !status.success() {
                return Err(Failure::Wrong(format!("a build failed: {status}")));
            }
        }
        Ok(())
    })?;
    let elapsed = start.0.elapsed().as_secs_f64();
    let daemon = (process_time() - start.1).as_secs_f64();
    let builds = ChildTime::now();
    let (user, system) = (builds.user - start.2.user, builds.system - start.2.system);
    let stat = |items: &[StatItem]| -> f64 {
        items.iter().map(|&item| mount.engine.root().stat_total(item) as f64).sum()
    };
    let in_mib = |pages: f64| pages * 4096.0 / MIB as f64;
    let stolen = stat(&[StatItem::PgStealDirect, StatItem::PgStealKswapd]);
    let scanned = stat(&[StatItem::PgScanDirect, StatItem::PgScanKswapd]);
    let run = Run([
        user + system + daemon,
        system + daemon,
        daemon,
        elapsed,
        in_mib(stat(&[StatItem::PgPgIn])),
        in_mib(stat(&[StatItem::WorkingsetRefault])),
        in_mib(stolen),
        scanned / stolen.max(1.0),
    ]);
    mount.end()?;
    for data in TENANTS.map(|name| directory.join(name)) {
        let said = std::process::Command::new(data.join("prog")).output();
        let said = said.map_err(Failure::at("cannot run what was built"))?;
        if said.stdout != project.expected_output().as_bytes() {
            return Err(Failure::Wrong(format!(
                "what was built says {:?}",
                String::from_utf8_lossy(&said.stdout)
            )));
        }
        project.clean(&data)?;
    }
    Ok(run)
}

/// Processor time of reaped children, in seconds.
struct ChildTime {
    user: f64,
    system: f64,
}

impl ChildTime {
    fn now() -> Self {
        let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The text before may contain anything; fields are counted from the state, the third.
        let fields: Vec<&str> =
            text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
        let ticks =
            |field: usize| fields.get(field - 3).and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
        let each_second = rustix::param::clock_ticks_per_second() as f64;
        Self { user: ticks(16) / each_second, system: ticks(17) / each_second }
    }
}

fn verdicts(figure: usize, sides: &[Samples]) -> Vec<Verdict> {
    let nr = Mechanism::ALL.len();
    let (full, full_0) = (&sides[0], &sides[nr]);
    let (base, base_0) = (&sides[nr - 1], &sides[2 * nr - 1]);
    let times = |what: &str, ratio, bound| Verdict::new(what, ratio, Target::TimesAtMost(bound));
    match figure {
        ALL_CPU => vec![
            times("no limit: full, of base", full.ratio_to(base), SAME_AS_BASE_MAX),
            times("limit 0: full, of full without", full_0.ratio_to(full), SAME_AS_UNLIMITED_MAX),
        ],
        READ_AGAIN if base_0.median >= BASE_READ_AGAIN_MIN_MIB => {
            let target = Target::PercentAtMost(REFAULTS_PERCENT_MAX);
            vec![Verdict::new("limit 0: full, of base", 100.0 * full_0.median / base_0.median, target)]
        }
        _ => Vec::new(),
    }
}

/// Returns a note if the base reads too little again, in MiB, to judge the rework.
fn no_fault_note(read_again: f64) -> Option<String> {
    (read_again < BASE_READ_AGAIN_MIN_MIB).then(|| {
        format!(
            "the fault that the rework cures does not show here: with limit 0 the base reads {read_again:.1} MiB again, and at least \
             {BASE_READ_AGAIN_MIN_MIB} MiB are needed for a comparison"
        )
    })
}

fn report(options: &Options, project: &ProjectSize, compulsory_mib: f64, runs: &[Vec<Run>]) -> Report {
    let mut report = Report::new("soft-limit", options.scale, options.rounds as usize);
    let nr = Mechanism::ALL.len();
    let samples = |side: usize, figure: usize| {
        let name =
            format!("{}{}", Mechanism::ALL[side % nr].name(), if side < nr { "" } else { ", limit 0" });
        Samples::new(name, runs[side].iter().map(|run| run.0[figure]).collect())
    };
    for (figure, &(what, unit)) in FIGURES.iter().enumerate() {
        let sides: Vec<Samples> = (0..runs.len()).map(|side| samples(side, figure)).collect();
        let verdicts = verdicts(figure, &sides);
        report.sections.push(Section { title: what.into(), unit, sides, verdicts });
    }
    for (what, no_limit, limit_0, figure) in MAIL {
        let (_, unit) = FIGURES[figure];
        for (limits, mail, first) in [("no limit", no_limit, 0), ("limit 0", limit_0, nr)] {
            // The mail's order: base, rework, full.
            let ours: Vec<String> =
                (0..nr).rev().map(|side| format!("{:.1}", samples(first + side, figure).median)).collect();
            report.mail.push(MailFigure {
                what: format!("{what}, {limits}: base, rework, full"),
                mail: mail.join(", "),
                ours: format!("{} {unit}", ours.join(", ")),
            });
        }
    }
    report.notes.push(format!(
        "two projects of {} C files each, {} MiB of headers that are read again and again and {} MiB read or written once; pool {} MiB; \
         make -j2 in each group; every run checks what the programs print",
        project.nr_sources,
        project.shared_bytes() as u64 / MIB,
        (project.nr_sources * project.own_bytes) as u64 / MIB,
        POOL_BYTES / MIB
    ));
    report.notes.push(format!(
        "of what came into the cache, {compulsory_mib:.1} MiB are what a pool in which everything fits reads as well; read again is what is beyond that"
    ));
    report.notes.extend(no_fault_note(samples(2 * nr - 1, READ_AGAIN).median));
    let of_full = &samples(0, ALL_CPU);
    let of_base = &samples(nr - 1, ALL_CPU);
    if let (Some(above), Some(below)) =
        (of_full.ratio_bound_above(of_base), of_base.ratio_bound_above(of_full))
    {
        report.notes.push(format!(
            "no limit: with 95 % confidence each, the ratio of full to base is at most {above:.3} and at least {:.3}", 1.0 / below
        ));
    }
    report.notes.push(
        "the mail's base lost anonymous memory to swap at priority 0, which nothing here has. The headers stand for it: in use, and gone \
         when a quarter of a group is taken at once"
            .into(),
    );
    report.notes.push(
        "the mail's machine had 8 processors and 1 GiB, and built Linux with make -j4; its major faults are what a refault is here".into(),
    );
    report
}
