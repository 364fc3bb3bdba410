//! What the control files of all groups say at one time.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A v1 limit that is none: from here on no memory is that large.
const UNLIMITED_SHOWN: u64 = i64::MAX as u64 / 4096 * 4096;

/// One group's numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupSample {
    /// Bytes charged, groups below included.
    pub usage_bytes: u64,
    /// The hard limit; none without one.
    pub limit_bytes: Option<u64>,
    /// `memory.high`; none without one.
    pub high_bytes: Option<u64>,
    /// Usage at which background reclaim starts; none while it is off.
    pub low_wmark_bytes: Option<u64>,
    /// Microseconds in which a request was stalled, ever.
    pub stalled_us: u64,
    /// The lines of `memory.stat`.
    pub stat: BTreeMap<String, u64>,
}

impl GroupSample {
    /// A line of `memory.stat`; 0 when there is none of this name.
    pub fn stat(&self, name: &str) -> u64 {
        self.stat.get(name).copied().unwrap_or(0)
    }

    fn read(directory: &Path) -> io::Result<Self> {
        let read = |name: &str| fs::read_to_string(directory.join(name));
        // The root has no `memory.high`.
        let high = read("memory.high").unwrap_or_default();
        Ok(Self::parse(
            &[read("memory.usage_in_bytes")?, read("memory.limit_in_bytes")?, high],
            &read("memory.reclaim_wmarks")?,
            &read("memory.pressure")?,
            &read("memory.stat")?,
        ))
    }

    fn parse([usage, limit, high]: &[String; 3], marks: &str, pressure: &str, stat: &str) -> Self {
        let number = |text: &str| text.trim().parse::<u64>().ok();
        let limited = |text: &str| number(text).filter(|&bytes| bytes < UNLIMITED_SHOWN);
        let limit_bytes = limited(limit);
        let lines = |text: &str| -> BTreeMap<String, u64> {
            let words = text.lines().filter_map(|line| line.split_once(' '));
            words.filter_map(|(name, value)| Some((name.to_owned(), number(value)?))).collect()
        };
        let low = lines(marks).get("low_wmark").copied();
        let some = pressure.lines().find(|line| line.starts_with("some "));
        Self {
            usage_bytes: number(usage).unwrap_or(0),
            limit_bytes,
            high_bytes: limited(high),
            // A mark at the limit is one that is off.
            low_wmark_bytes: low.filter(|&low| low < limit_bytes.unwrap_or(UNLIMITED_SHOWN)),
            stalled_us: some.and_then(|line| number(line.rsplit_once("total=")?.1)).unwrap_or(0),
            stat: lines(stat),
        }
    }
}

/// All groups of a control tree by path, at one time.
#[derive(Debug)]
pub struct TreeSample {
    /// When it was taken.
    pub at: Instant,
    /// `/` and everything below.
    pub groups: BTreeMap<String, GroupSample>,
}

impl TreeSample {
    /// Reads the control tree that is mounted at `control`. A group that goes meanwhile is left out.
    ///
    /// # Errors
    /// When the root's files cannot be read: it is no control tree, or nobody serves it.
    pub fn read(control: &Path) -> io::Result<Self> {
        let at = Instant::now();
        let mut groups = BTreeMap::from([("/".to_owned(), GroupSample::read(control)?)]);
        let mut left = vec![(String::new(), control.to_owned())];
        while let Some((path, directory)) = left.pop() {
            for (name, below) in children(&directory) {
                let path = format!("{path}/{name}");
                if let Ok(sample) = GroupSample::read(&below) {
                    groups.insert(path.clone(), sample);
                    left.push((path, below));
                }
            }
        }
        Ok(Self { at, groups })
    }
}

fn children(directory: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    groups.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_group_become_numbers() {
        let files = ["1000\n".to_owned(), "9223372036854771712\n".to_owned(), "max\n".to_owned()];
        let pressure = "some avg10=1.00 avg60=0.00 avg300=0.00 total=77\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n";
        let marks = "low_wmark 9223372036854771712\nhigh_wmark 9223372036854771712\n";
        let sample = GroupSample::parse(&files, marks, pressure, "dirty 3\ntotal_dirty 4\n");
        assert_eq!((sample.usage_bytes, sample.limit_bytes, sample.high_bytes), (1000, None, None));
        assert_eq!((sample.low_wmark_bytes, sample.stalled_us), (None, 77));
        assert_eq!((sample.stat("total_dirty"), sample.stat("no such line")), (4, 0));

        let files = ["1".to_owned(), "500".to_owned(), "300".to_owned()];
        let sample = GroupSample::parse(&files, "low_wmark 400\nhigh_wmark 350\n", "", "");
        assert_eq!(
            (sample.limit_bytes, sample.high_bytes, sample.low_wmark_bytes),
            (Some(500), Some(300), Some(400))
        );
        let sample = GroupSample::parse(&files, "low_wmark 500\nhigh_wmark 500\n", "", "");
        assert_eq!(sample.low_wmark_bytes, None, "a mark at the limit is off");
    }

    #[test]
    fn what_is_no_control_tree_is_an_error() {
        let empty = tempfile::tempdir().unwrap();
        assert!(TreeSample::read(empty.path()).is_err());
    }
}
