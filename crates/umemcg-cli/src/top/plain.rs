//! Tables of groups as lines of text or of JSON, for pipes, files and terminals without a cursor.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use super::row::{HEADINGS, INTERVAL_MIN, Row};
use crate::args::{TopArguments, TopSort};
use crate::exit::Failure;
use crate::group_sample::{SampledGroup, TreeSample};
use crate::signals::forward_signals;
use crate::table::TextTable;

/// Returns the rows of a table.
fn rows(before: &TreeSample, now: &TreeSample, sort: TopSort) -> Vec<Row> {
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
    rows.into_iter().map(|(place, row)| Row { group: now.path(place), ..row }).collect()
}

fn table(rows: &[Row]) -> String {
    let mut table = TextTable::new(&HEADINGS);
    rows.iter().for_each(|row| table.row(row.cells()));
    table.to_string()
}

/// Prints tables until the reader has gone or a signal arrives, or once. Blocks.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: &TopArguments, control: &Path) -> Result<(), Failure> {
    let (ended, end) = mpsc::channel();
    let told = ended.clone();
    // A signal is the normal end.
    forward_signals(move || told.send(Ok(())).is_ok())
        .map_err(|error| Failure::Failed(format!("cannot receive signals: {error}")))?;
    // On its own thread, because reading many groups or a blocked reader must not delay the end.
    let (arguments, control) = (arguments.clone(), PathBuf::from(control));
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
    let mut before = sample()?;
    loop {
        std::thread::sleep(arguments.interval.max(INTERVAL_MIN));
        let now = sample()?;
        let rows = rows(&before, &now, arguments.sort);
        before = now;
        let written = match arguments.json {
            true => write_json(&rows),
            false => write!(io::stdout().lock(), "{}", table(&rows)),
        };
        match written {
            // The reader has closed the pipe.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(Failure::Failed(format!("cannot print: {error}"))),
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
    use crate::group_sample::GroupSample;
    use crate::table::human_bytes;
    use std::time::{Duration, Instant};

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
        let rows = rows(&before, &now, TopSort::Usage);
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
        let rows = rows(&tree(start, &[]), &now, TopSort::Excess);
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
        let order = |sort| rows(&before, &now, sort).into_iter().map(|row| row.group).collect::<Vec<_>>();
        assert_eq!(order(TopSort::Usage), ["/", "/a", "/b"]);
        assert_eq!(order(TopSort::Stalls), ["/b", "/", "/a"]);
        assert_eq!(order(TopSort::Name), ["/", "/a", "/b"]);
        assert!(table(&rows(&before, &now, TopSort::Name)).starts_with("group  usage  limit"));
    }
}
