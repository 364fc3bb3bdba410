//! `umemcg top`: the groups of a control tree and their activity, refreshed at an interval.
//!
//! It uses only the control files, so every user that may read them can run it. Rates are
//! differences between two samples.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use rustix::termios::tcgetwinsize;
use serde::Serialize;
use umemcg_fuse::mountinfo;

use crate::args::{TopArguments, TopSort};
use crate::exit::Failure;
use crate::group_sample::{GroupSample, SampledGroup, TreeSample};
use crate::signals::forward_signals;
use crate::table::{TextTable, human_bytes};

/// Lines of a screen that show no group: the title, two lines of headings, the cursor.
const OTHER_LINES: usize = 4;

/// The assumed height of a terminal that does not report its size.
const LINES_UNKNOWN: usize = 24;
/// The shortest interval between two tables.
const INTERVAL_MIN: Duration = Duration::from_millis(50);

/// One group between two samples.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Row {
    group: String,
    usage_bytes: u64,
    limit_bytes: Option<u64>,
    high_bytes: Option<u64>,
    low_wmark_bytes: Option<u64>,
    /// The part of the usage that reclaim of the pool spares, and the part that it takes last.
    min_bytes: u64,
    low_bytes: u64,
    /// Bytes above the soft limit, which are reclaimed first.
    excess_bytes: u64,
    dirty_bytes: u64,
    /// The share of pages read that were cached; `None` if none were read.
    hit_percent: Option<f64>,
    /// Pages read that were not cached.
    misses_per_second: f64,
    /// Pages brought into the cache.
    pages_in_per_second: f64,
    /// Pages brought in soon after they were evicted.
    refaults_per_second: f64,
    stalled_percent: f64,
    background_reclaim_per_second: f64,
    direct_reclaim_per_second: f64,
}

impl Row {
    /// Returns the row between two samples, without the group's path.
    fn between(before: &GroupSample, now: &GroupSample, passed: Duration) -> Self {
        let seconds = passed.as_secs_f64().max(1e-6);
        // A re-created group counts from zero again.
        let rate = |name: &str| now.stat(name).saturating_sub(before.stat(name)) as f64 / seconds;
        let (hits, misses) = (rate("total_cache_hit"), rate("total_cache_miss"));
        let stalled = now.stalled_us.saturating_sub(before.stalled_us) as f64 / 1e6;
        Self {
            group: String::new(),
            usage_bytes: now.usage_bytes,
            limit_bytes: now.limit_bytes,
            high_bytes: now.high_bytes,
            low_wmark_bytes: now.low_wmark_bytes,
            min_bytes: now.stat("min_effective").min(now.usage_bytes),
            low_bytes: now.stat("low_effective").min(now.usage_bytes),
            excess_bytes: now.stat("soft_limit_excess"),
            dirty_bytes: now.stat("total_dirty"),
            hit_percent: (hits + misses > 0.0).then(|| 100.0 * hits / (hits + misses)),
            misses_per_second: misses,
            pages_in_per_second: rate("total_pgpgin"),
            refaults_per_second: rate("total_workingset_refault_file"),
            stalled_percent: (100.0 * stalled / seconds).min(100.0),
            background_reclaim_per_second: rate("pgsteal_kswapd"),
            direct_reclaim_per_second: rate("pgsteal_direct"),
        }
    }

    fn cells(&self) -> Vec<String> {
        let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), human_bytes);
        let some = |some: u64| bytes((some > 0).then_some(some));
        let rate = |rate: f64| format!("{rate:.0}");
        vec![
            self.group.clone(),
            human_bytes(self.usage_bytes),
            bytes(self.limit_bytes),
            bytes(self.high_bytes),
            bytes(self.low_wmark_bytes),
            some(self.min_bytes),
            some(self.low_bytes),
            some(self.excess_bytes),
            human_bytes(self.dirty_bytes),
            self.hit_percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1}%")),
            rate(self.pages_in_per_second),
            rate(self.refaults_per_second),
            format!("{:.1}%", self.stalled_percent),
            rate(self.background_reclaim_per_second),
            rate(self.direct_reclaim_per_second),
        ]
    }

    /// Returns the sort key; the greatest comes first.
    fn weight(&self, sort: TopSort) -> f64 {
        match sort {
            TopSort::Usage => self.usage_bytes as f64,
            TopSort::Limit => self.limit_bytes.map_or(f64::MAX, |bytes| bytes as f64),
            TopSort::Dirty => self.dirty_bytes as f64,
            TopSort::Misses => self.misses_per_second,
            TopSort::Refaults => self.refaults_per_second,
            TopSort::Stalls => self.stalled_percent,
            TopSort::Reclaim => self.background_reclaim_per_second + self.direct_reclaim_per_second,
            TopSort::Excess => self.excess_bytes as f64,
            TopSort::Name => 0.0,
        }
    }
}

const HEADINGS: [&str; 15] = [
    "group",
    "usage",
    "limit",
    "high",
    "low mark",
    "min",
    "low",
    "excess",
    "dirty",
    "hits",
    "in/s",
    "refault/s",
    "stalled",
    "kswapd/s",
    "direct/s",
];

/// Returns the first `nr_max` rows of a table. Only those get paths, which are long in a deep tree.
fn rows(before: &TreeSample, now: &TreeSample, sort: TopSort, nr_max: usize) -> Vec<Row> {
    let (passed, known) = (now.at - before.at, before.by_inode());
    let groups = now.groups.iter().enumerate();
    let mut rows: Vec<(usize, Row)> = groups
        // A new group has no rates yet.
        .map(|(place, SampledGroup { inode, sample, .. })| {
            (place, Row::between(known.get(inode).copied().unwrap_or(sample), sample, passed))
        })
        .collect();
    // The sort is stable: groups with equal keys stay in the order of the tree.
    rows.sort_by(|(_, a), (_, b)| b.weight(sort).total_cmp(&a.weight(sort)));
    rows.truncate(nr_max);
    rows.into_iter().map(|(place, row)| Row { group: now.path(place), ..row }).collect()
}

fn table(rows: &[Row]) -> String {
    let mut table = TextTable::new(&HEADINGS);
    rows.iter().for_each(|row| table.row(row.cells()));
    table.to_string()
}

/// Returns the control tree to use: the given one, or the only one that is mounted.
pub fn control_tree(given: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(path) = given {
        return Ok(path.to_owned());
    }
    let text = std::fs::read("/proc/self/mountinfo")
        .map_err(|error| Failure::Failed(format!("cannot read the mount table: {error}")))?;
    let mut points: Vec<PathBuf> = mountinfo::parse(&text)
        .filter(|mount| mount.kind == "fuse.umemcg-control")
        .map(|mount| mount.point)
        .collect();
    match points.len() {
        0 => Err(Failure::NotServed(
            "no control files are mounted; serve a mount with `umemcg mount DIR MNT --control CG`".into(),
        )),
        1 => Ok(points.remove(0)),
        _ => {
            let names: Vec<String> = points.iter().map(|point| point.display().to_string()).collect();
            Err(Failure::Usage(format!(
                "several control trees are mounted; choose one with --control: {}",
                names.join(", ")
            )))
        }
    }
}

/// Runs `umemcg top`.
///
/// # Errors
/// [`Failure`].
pub fn top(arguments: &TopArguments) -> Result<(), Failure> {
    let control = control_tree(arguments.control.as_deref())?;
    let (ended, end) = mpsc::channel();
    let told = ended.clone();
    // A signal is the normal end.
    forward_signals(move || told.send(Ok(())).is_ok())
        .map_err(|error| Failure::Failed(format!("cannot receive signals: {error}")))?;
    // On its own thread, because reading many groups or a blocked reader must not delay the end.
    let arguments = arguments.clone();
    let work = move || {
        let _ = ended.send(show(&arguments, &control));
    };
    std::thread::Builder::new()
        .name("umemcg-top".into())
        .spawn(work)
        .map_err(|error| Failure::Failed(format!("cannot start a thread: {error}")))?;
    end.recv().unwrap_or(Ok(()))
}

/// Prints tables until the reader has gone, or once.
fn show(arguments: &TopArguments, control: &Path) -> Result<(), Failure> {
    let sample = || {
        TreeSample::read(control).map_err(|error| {
            Failure::NotServed(format!("{} is not a control tree that is served: {error}", control.display()))
        })
    };
    let stdout = io::stdout();
    let is_live = stdout.is_terminal() && !arguments.json && !arguments.once;
    let mut before = sample()?;
    loop {
        std::thread::sleep(arguments.interval.max(INTERVAL_MIN));
        let now = sample()?;
        // Some terminals report a height of 0.
        let nr_lines = tcgetwinsize(&stdout).map_or(0, |size| usize::from(size.ws_row));
        let nr_lines = if nr_lines == 0 { LINES_UNKNOWN } else { nr_lines };
        let nr_max = if is_live { nr_lines.saturating_sub(OTHER_LINES).max(1) } else { usize::MAX };
        let rows = rows(&before, &now, arguments.sort, nr_max);
        let nr_groups = now.groups.len();
        before = now;
        let written = if arguments.json {
            write_json(&rows)
        } else if is_live {
            let above = format!("{}: {} of {nr_groups} groups, Ctrl-C ends", control.display(), rows.len());
            write!(stdout.lock(), "\x1b[H\x1b[J{above}\n{}", table(&rows))
                .and_then(|()| stdout.lock().flush())
        } else {
            write!(stdout.lock(), "{}", table(&rows))
        };
        match written {
            // The reader has closed the pipe.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(Failure::Failed(format!("cannot write: {error}"))),
            Ok(()) if arguments.once => return Ok(()),
            Ok(()) => {}
        }
    }
}

/// Writes a table as one line.
fn write_json(rows: &[Row]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    serde_json::to_writer(&mut stdout, rows)?;
    writeln!(stdout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn tree(at: Instant, groups: &[(&'static str, u64, u64)]) -> TreeSample {
        let sample = |&(path, usage_bytes, stalled_us): &(&'static str, u64, u64)| {
            (path, GroupSample { usage_bytes, stalled_us, ..Default::default() })
        };
        TreeSample::of(at, groups.iter().map(sample))
    }

    #[test]
    fn rates_are_differences_and_new_groups_have_none() {
        let start = Instant::now();
        let before = tree(start, &[("/", 5, 0), ("/a", 3, 100_000)]);
        let now =
            tree(start + Duration::from_secs(2), &[("/", 9, 500_000), ("/a", 4, 50_000), ("/b", 5, 700_000)]);
        let rows = rows(&before, &now, TopSort::Usage, usize::MAX);
        let shown: Vec<_> = rows.iter().map(|row| (row.group.as_str(), row.stalled_percent)).collect();
        assert_eq!(shown, [("/", 25.0), ("/b", 0.0), ("/a", 0.0)]);
    }

    #[test]
    fn the_excess_over_the_soft_limit_is_shown_and_sorted_by() {
        let start = Instant::now();
        let mut now = tree(start + Duration::from_secs(1), &[("/", 9, 0), ("/b", 5, 0), ("/c", 7, 0)]);
        for (place, excess) in [(1, 4096), (2, 2 << 20)] {
            let sample = &mut now.groups[place].sample;
            sample.stat.insert("soft_limit_excess".into(), excess);
        }
        let rows = rows(&tree(start, &[]), &now, TopSort::Excess, usize::MAX);
        let order: Vec<_> = rows.iter().map(|row| (row.group.as_str(), row.excess_bytes)).collect();
        assert_eq!(order, [("/c", 2 << 20), ("/b", 4096), ("/", 0)]);
        let column = HEADINGS.iter().position(|&heading| heading == "excess").unwrap();
        let shown: Vec<_> = rows.iter().map(|row| row.cells()[column].clone()).collect();
        assert_eq!(shown, [human_bytes(2 << 20), human_bytes(4096), "-".into()]);
        assert!(serde_json::to_string(&rows[0]).unwrap().contains("\"excess_bytes\":2097152"));
    }

    #[test]
    fn a_table_is_sorted_by_what_is_asked_for_and_then_by_name() {
        let start = Instant::now();
        let before = tree(start, &[("/", 0, 0), ("/a", 0, 0), ("/b", 0, 0)]);
        let now = tree(start + Duration::from_secs(1), &[("/", 7, 0), ("/a", 1, 0), ("/b", 1, 10)]);
        let order = |sort| rows(&before, &now, sort, 3).into_iter().map(|row| row.group).collect::<Vec<_>>();
        assert_eq!(order(TopSort::Usage), ["/", "/a", "/b"]);
        assert_eq!(order(TopSort::Stalls), ["/b", "/", "/a"]);
        assert_eq!(order(TopSort::Name), ["/", "/a", "/b"]);
        assert_eq!(
            rows(&before, &now, TopSort::Stalls, 1)[0].group,
            "/b",
            "a short screen shows the first ones"
        );
        assert!(table(&rows(&before, &now, TopSort::Name, 3)).starts_with("group  usage  limit"));
    }
}
