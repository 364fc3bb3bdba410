//! `umemcg demo --background`: repeats the steps of the mail per-memcg-background-reclaim on a real
//! mount, with a shell, `dd` and `cat`, and prints its two tables next to our figures.
//!
//! The limit and the watermark distances are as in the mail: 500 MiB, 50 MiB and 40 MiB. The file
//! is smaller unless `--scale 1` is given.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;

use super::check::{self, Check, end_with};
use super::stage::{Daemon, Group, Places, run_in};
use crate::args::DemoArguments;
use crate::exit::Failure;
use crate::output;
use crate::table::{TextTable, human_bytes};

const MIB: u64 = 1 << 20;
const POOL_BYTES: u64 = 768 * MIB;
const LIMIT_BYTES: u64 = 500 * MIB;
/// The size of the file at scale 1.
const FILE_BYTES: u64 = 20 << 30;
/// With its own pages, the daemon counts each page like the kernel of the mail.
const OPTIONS: [&str; 2] = ["--page-cache", "own"];
/// The watermarks for the distances of the mail.
const MARKS: &str = "low_wmark 482344960\nhigh_wmark 471859200\n";

/// The rows of the mail's tables, by their names in `memory.stat`.
const COUNTERS: [&str; 9] = [
    "pgpgin",
    "pgpgout",
    "kswapd_steal",
    "pg_pgsteal",
    "kswapd_pgscan",
    "pg_scan",
    "pgrefill",
    "pgoutrun",
    "allocstall",
];

/// A table of the mail: the counters in the order of [`COUNTERS`], then elapsed time and system
/// time in seconds. Each pair is without and with background reclaim.
struct MailTable {
    counters: [[u64; 2]; 9],
    real: [f64; 2],
    sys: [f64; 2],
    throughput: [&'static str; 2],
}

const MAIL_WRITE: MailTable = MailTable {
    counters: [
        [5_243_222, 5_243_267],
        [5_115_252, 5_127_978],
        [0, 2_699_807],
        [5_115_229, 2_428_102],
        [0, 10_527_319],
        [5_918_875, 15_533_740],
        [264_761, 294_801],
        [0, 81_097],
        [158_406, 73_799],
    ],
    real: [295.684, 301.123],
    sys: [67.793, 66.647],
    throughput: ["67.37 MB/s", "68.04 MB/s"],
};

const MAIL_READ: MailTable = MailTable {
    counters: [
        [5_242_937, 5_242_935],
        [5_114_971, 5_125_504],
        [0, 5_125_470],
        [5_114_941, 0],
        [0, 5_125_472],
        [5_114_944, 0],
        [0, 0],
        [0, 160_184],
        [159_840, 0],
    ],
    real: [260.649, 260.632],
    sys: [32.266, 24.580],
    throughput: ["-", "-"],
};

/// One run of `dd` or `cat`.
#[derive(Debug, Clone, Serialize)]
struct Run {
    /// In the order of [`COUNTERS`].
    counters: [u64; 9],
    real_s: f64,
    /// Processor time of the daemon without its workers; corresponds to `sys` in the mail.
    serving_s: f64,
    workers_s: f64,
}

/// The results of the demo.
#[derive(Debug, Serialize)]
struct BackgroundResult {
    file_bytes: u64,
    counters: [&'static str; 9],
    /// Without and with background reclaim.
    write: [Run; 2],
    read: [Run; 2],
    checks: Vec<Check>,
}

/// Runs the demo.
///
/// # Errors
/// [`Failure`] if a step or a check fails.
pub(super) fn demo(arguments: &DemoArguments) -> Result<(), Failure> {
    let directory = tempfile::Builder::new()
        .prefix("umemcg-demo-")
        .tempdir()
        .map_err(|error| Failure::Failed(format!("cannot make a temporary directory: {error}")))?;
    let say = |text: &str| {
        if !arguments.json {
            output::show(&format!("{text}\n"));
        }
    };
    let file_bytes = (FILE_BYTES as f64 * arguments.scale) as u64 / MIB * MIB;
    let result = run(&Places::below(directory.path())?, file_bytes, &say)?;
    let text = if arguments.json {
        let json = serde_json::to_string_pretty(&result);
        json.map_err(|error| Failure::Failed(error.to_string()))? + "\n"
    } else {
        let size = human_bytes(file_bytes);
        let [write, read] =
            ["Step 3: dd writes", "Step 5: cat reads"].map(|step| format!("{step} {size} (mail: 20 GiB)"));
        table(&write, &MAIL_WRITE, &result.write, file_bytes)
            + &table(&read, &MAIL_READ, &result.read, file_bytes)
            + &check::shown(&result.checks)
    };
    output::print(&text)?;
    end_with(&result.checks)
}

fn run(places: &Places, file_bytes: u64, say: &dyn Fn(&str)) -> Result<BackgroundResult, Failure> {
    say(&format!("mounting {} on {}", places.data.display(), places.mountpoint.display()));
    let mut daemon = Daemon::start(places, POOL_BYTES, &OPTIONS)?;
    let stand = Stand { places, file: places.mountpoint.join("tf0"), pid: daemon.pid(), file_bytes };
    stand.touch_memory(say)?;
    let direct = stand.steps(false, say)?;
    let background = stand.steps(true, say)?;
    let ended_well = daemon.umount(places)?;
    let is_whole = fs::metadata(places.data.join("tf0")).is_ok_and(|data| data.len() == file_bytes);
    let (write, read) = ([direct.0, background.0], [direct.1, background.1]);
    let checks = checks_of(&write, &read, file_bytes, ended_well && is_whole);
    Ok(BackgroundResult { file_bytes, counters: COUNTERS, write, read, checks })
}

/// The mount on which the steps are run.
struct Stand<'a> {
    places: &'a Places,
    file: PathBuf,
    pid: u32,
    file_bytes: u64,
}

impl Stand<'_> {
    /// Fills the group once, so that neither run pays for the first touch of the memory.
    fn touch_memory(&self, say: &dyn Fn(&str)) -> Result<(), Failure> {
        let group = self.make_group(false, say)?;
        let output = format!("of={}", self.file.display());
        let count = format!("count={}", LIMIT_BYTES / MIB);
        self.run(&group, &["dd", "if=/dev/zero", &output, "bs=1M", &count], say)?;
        self.clean_up(&group)
    }

    /// Runs steps 1 to 5. Returns the results of writing and of reading.
    fn steps(&self, with_marks: bool, say: &dyn Fn(&str)) -> Result<(Run, Run), Failure> {
        let group = self.make_group(with_marks, say)?;
        let (output, count) =
            (format!("of={}", self.file.display()), format!("count={}", self.file_bytes / MIB));
        let write = self.run(&group, &["dd", "if=/dev/zero", &output, "bs=1M", &count], say)?;
        self.clean_up(&group)?;
        let group = self.make_group(with_marks, say)?;
        let cat = r#"cat "$1" > /dev/zero"#;
        let read = self.run(&group, &["sh", "-c", cat, "sh", &self.file.to_string_lossy()], say)?;
        self.clean_up(&group)?;
        Ok((write, read))
    }

    /// Runs steps 1 and 2: creates the group and sets its watermarks.
    fn make_group(&self, with_marks: bool, say: &dyn Fn(&str)) -> Result<Group, Failure> {
        let group = Group::make(self.places, "A", LIMIT_BYTES)?;
        if with_marks {
            group.write("memory.high_wmark_distance", "50m")?;
            group.write("memory.low_wmark_distance", "40m")?;
            let shown = group.read("memory.reclaim_wmarks")?;
            say(&format!("memory.reclaim_wmarks: {}", shown.trim().replace('\n', ", ")));
            if shown != MARKS {
                return Err(Failure::Failed(format!("memory.reclaim_wmarks should be {MARKS}")));
            }
        }
        Ok(group)
    }

    /// Runs a program in the group: step 3 or 5.
    fn run(&self, group: &Group, words: &[&str], say: &dyn Fn(&str)) -> Result<Run, Failure> {
        say(&format!("in a group of {}: {}", human_bytes(LIMIT_BYTES), words.join(" ")));
        let before = self.cpu_seconds()?;
        let start = Instant::now();
        run_in(Some(group), &words.iter().map(AsRef::as_ref).collect::<Vec<_>>())?;
        let real_s = start.elapsed().as_secs_f64();
        let after = self.cpu_seconds()?;
        let mut counters = [0; 9];
        for (counter, name) in counters.iter_mut().zip(COUNTERS) {
            *counter = group.stat(name)?;
        }
        let workers_s = after.1 - before.1;
        Ok(Run { counters, real_s, serving_s: (after.0 - before.0 - workers_s).max(0.0), workers_s })
    }

    /// Runs step 4: empties and removes the group, and drops caches.
    fn clean_up(&self, group: &Group) -> Result<(), Failure> {
        group.write("memory.force_empty", "1")?;
        fs::remove_dir(&group.directory)
            .map_err(|error| Failure::at("cannot remove the group", &group.directory, &error))?;
        let file = self.places.control.join("vm.drop_caches");
        fs::write(&file, "3\n").map_err(|error| Failure::at("cannot write", &file, &error))
    }

    /// Returns the processor time of the daemon and of its workers, in seconds.
    fn cpu_seconds(&self) -> Result<(f64, f64), Failure> {
        let process = PathBuf::from(format!("/proc/{}", self.pid));
        let mut workers = 0.0;
        let tasks = process.join("task");
        let listed = fs::read_dir(&tasks).map_err(|error| Failure::at("cannot list", &tasks, &error))?;
        for task in listed.flatten().map(|entry| entry.path()) {
            if fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("kswapd/")) {
                workers += cpu_seconds_of(&task).unwrap_or(0.0);
            }
        }
        let all = cpu_seconds_of(&process);
        Ok((all.ok_or_else(|| Failure::Failed("the daemon has no processor time".into()))?, workers))
    }
}

/// Returns the user and system time of a process or thread in seconds, from its `stat` file, with a
/// unit of 1/100 s.
fn cpu_seconds_of(task: &Path) -> Option<f64> {
    let stat = fs::read_to_string(task.join("stat")).ok()?;
    // The name in parentheses may contain any character; utime and stime are the 12th and 13th
    // fields after it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((user + system) as f64 / 100.0)
}

fn counter(run: &Run, name: &str) -> u64 {
    COUNTERS.iter().position(|counter| *counter == name).map_or(0, |at| run.counters[at])
}

fn checks_of(write: &[Run; 2], read: &[Run; 2], file_bytes: u64, ended_well: bool) -> Vec<Check> {
    let check = |what: &str, holds| Check { what: what.to_owned(), holds };
    let pages = file_bytes / 4096;
    let passed = |run: &Run| counter(run, "pgpgin") >= pages;
    let is_direct = |run: &Run| counter(run, "kswapd_steal") == 0 && counter(run, "allocstall") > 0;
    vec![
        check(
            "the whole file went through the group, each time",
            [write, read].into_iter().flatten().all(passed),
        ),
        check("without marks only readers and writers reclaim", is_direct(&write[0]) && is_direct(&read[0])),
        check("with marks the workers reclaim while dd writes", counter(&write[1], "kswapd_steal") > 0),
        check(
            "with marks cat reclaims nothing: allocstall is 0, pg_pgsteal is 0",
            counter(&read[1], "allocstall") == 0 && counter(&read[1], "pg_pgsteal") == 0,
        ),
        check("the daemon ended well, and the directory holds the file", ended_well),
    ]
}

fn table(title: &str, mail: &MailTable, ours: &[Run; 2], file_bytes: u64) -> String {
    let mut table = TextTable::new(&[title, "direct: mail", "here", "background: mail", "here"]);
    let mut row = |name: &str, mail: [String; 2], ours: [String; 2]| {
        let ([mail_direct, mail_background], [direct, background]) = (mail, ours);
        table.row([name.to_owned(), mail_direct, direct, mail_background, background]);
    };
    for (at, name) in COUNTERS.iter().enumerate() {
        row(
            name,
            mail.counters[at].map(|n| n.to_string()),
            [0, 1].map(|side| ours[side].counters[at].to_string()),
        );
    }
    let seconds = |s: f64| format!("{s:.2} s");
    let of = |figure: fn(&Run) -> f64| [figure(&ours[0]), figure(&ours[1])];
    row("real", mail.real.map(seconds), of(|run| run.real_s).map(seconds));
    row(
        "sys (here: the daemon without its workers)",
        mail.sys.map(seconds),
        of(|run| run.serving_s).map(seconds),
    );
    row("workers", [String::from("-"), String::from("-")], of(|run| run.workers_s).map(seconds));
    let rate = |s: f64| format!("{:.1} MB/s", file_bytes as f64 / 1e6 / s);
    row("throughput", mail.throughput.map(str::to_owned), of(|run| run.real_s).map(rate));
    format!("{table}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writing and reading, without marks and with them.
    type Runs = ([Run; 2], [Run; 2]);

    fn run_with(pages: u64, by_worker: u64, stalls: u64) -> Run {
        let by_program = if stalls > 0 { pages - by_worker } else { 0 };
        let counters =
            [pages, pages, by_worker, by_program, by_worker, by_program, 0, by_worker / 32, stalls];
        Run { counters, real_s: 1.0, serving_s: 0.5, workers_s: 0.1 }
    }

    #[test]
    fn a_good_run_passes_every_check_and_each_fault_fails_one() {
        let (pages, bytes) = (1000, 4_096_000);
        let good = || {
            let direct = run_with(pages, 0, 30);
            ([direct.clone(), run_with(pages, 600, 9)], [direct, run_with(pages, 900, 0)])
        };
        let nr_broken = |(write, read): &Runs, ended_well| {
            checks_of(write, read, bytes, ended_well).iter().filter(|check| !check.holds).count()
        };
        assert_eq!(nr_broken(&good(), true), 0);
        assert_eq!(nr_broken(&good(), false), 1);
        let faults: [fn(&mut Runs); 5] = [
            |runs| runs.0[0].counters[0] -= 1,
            |runs| runs.1[0].counters[2] = 1,
            |runs| runs.0[1].counters[2] = 0,
            |runs| runs.1[1].counters[8] = 1,
            |runs| runs.1[1].counters[3] = 1,
        ];
        for fault in faults {
            let mut runs = good();
            fault(&mut runs);
            assert_eq!(nr_broken(&runs, true), 1, "{runs:?}");
        }
    }

    #[test]
    fn the_mails_rows_add_up() {
        // Nearly all reclaimed pages were taken by the worker or by the program.
        for mail in [&MAIL_WRITE, &MAIL_READ] {
            for side in [0, 1] {
                let [out, by_worker, by_program] = [1, 2, 3].map(|row| mail.counters[row][side]);
                assert!(out.abs_diff(by_worker + by_program) < 100, "{out} {by_worker} {by_program}");
            }
        }
    }
}
