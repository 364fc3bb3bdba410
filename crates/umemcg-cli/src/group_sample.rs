//! Samples of the control files of all groups.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{FileType, Mode, OFlags};

/// The value shown by a version 1 file for "no limit".
const UNLIMITED_SHOWN: u64 = i64::MAX as u64 / 4096 * 4096;

/// The longest part of a path opened at once, in bytes; the system refuses 4096.
const PIECE_BYTES_MAX: usize = 3800;

/// The numbers of one group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupSample {
    /// Bytes charged, including the groups below.
    pub usage_bytes: u64,
    /// The hard limit, if there is one.
    pub limit_bytes: Option<u64>,
    /// `memory.high`, if it is set.
    pub high_bytes: Option<u64>,
    /// The usage at which background reclaim starts; `None` while background reclaim is off.
    pub low_wmark_bytes: Option<u64>,
    /// The total stall time of requests, in microseconds.
    pub stalled_us: u64,
    /// The lines of `memory.stat`.
    pub stat: BTreeMap<String, u64>,
}

impl GroupSample {
    /// Returns the value of a line of `memory.stat`; 0 if there is no such line.
    pub fn stat(&self, name: &str) -> u64 {
        self.stat.get(name).copied().unwrap_or(0)
    }

    /// Reads the files of the group whose directory this is.
    ///
    /// # Errors
    /// When a file common to all groups cannot be read.
    pub fn read(directory: &OwnedFd) -> io::Result<Self> {
        let read = |name: &str| read_text(directory, name);
        // Our own file exists in every style of the control files; the others may have the name of
        // either version.
        let stat = read("umemcg.stat")?;
        let either = |v1: &str, v2: &str| read(v1).or_else(|_| read(v2));
        let usage = either("memory.usage_in_bytes", "memory.current").unwrap_or_default();
        let limit = either("memory.limit_in_bytes", "memory.max").unwrap_or_default();
        // The root has no `memory.high`, and version 1 no `memory.pressure` either.
        let [high, pressure] = ["memory.high", "memory.pressure"].map(|name| read(name).unwrap_or_default());
        let mut sample =
            Self::parse(&[usage, limit, high], &read("memory.reclaim_wmarks")?, &pressure, &stat);
        if sample.usage_bytes == 0 {
            // The root of version 2 has no usage file, but shows the parts of its usage.
            sample.usage_bytes = ["anon", "file", "kernel"].map(|name| sample.stat(name)).iter().sum();
        }
        Ok(sample)
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
            // A watermark at the limit means that background reclaim is off.
            low_wmark_bytes: low.filter(|&low| low < limit_bytes.unwrap_or(UNLIMITED_SHOWN)),
            stalled_us: some.and_then(|line| number(line.rsplit_once("total=")?.1)).unwrap_or(0),
            stat: lines(stat),
        }
    }
}

/// A group of a sample.
#[derive(Debug)]
pub struct SampledGroup {
    /// Its name; empty for the root.
    pub name: String,
    /// The index of its parent.
    pub parent: Option<usize>,
    /// Distinguishes it from another group of the same name.
    pub inode: u64,
    /// Its numbers.
    pub sample: GroupSample,
}

/// All groups of a control tree at one time.
#[derive(Debug)]
pub struct TreeSample {
    /// The time of the sample.
    pub at: Instant,
    /// All groups in preorder from the root, siblings by name.
    pub groups: Vec<SampledGroup>,
}

impl TreeSample {
    /// Reads the control tree mounted at `control`. Skips groups removed meanwhile, with their
    /// descendants. Every step of the walk is relative to the current directory, so a deep tree
    /// costs no more than a wide tree, and only one descriptor is open at a time.
    ///
    /// # Errors
    /// When the root's files cannot be read: the path is not a control tree, or no daemon serves
    /// it.
    pub fn read(control: &Path) -> io::Result<Self> {
        let mut tree = Self { at: Instant::now(), groups: Vec::new() };
        let mut directory = open_directory(rustix::fs::CWD, control)?;
        tree.add(&directory, String::new(), None)?;
        // For each group on the current path, its index and the names of its unread children.
        let mut way = vec![(0, children(&directory))];
        while let Some((parent, left)) = way.last_mut() {
            let parent = *parent;
            if let Some(name) = left.pop() {
                let Ok(below) = open_directory(&directory, Path::new(&name)) else { continue };
                let name = name.to_string_lossy().into_owned();
                if let Ok(place) = tree.add(&below, name, Some(parent)) {
                    way.push((place, children(&below)));
                    directory = below;
                }
            } else {
                way.pop();
                if !way.is_empty() {
                    directory = open_directory(&directory, Path::new(".."))?;
                }
            }
        }
        Ok(tree)
    }

    fn add(&mut self, directory: &OwnedFd, name: String, parent: Option<usize>) -> io::Result<usize> {
        let sample = GroupSample::read(directory)?;
        let inode = rustix::fs::fstat(directory)?.st_ino;
        self.groups.push(SampledGroup { name, parent, inode, sample });
        Ok(self.groups.len() - 1)
    }

    /// Returns the path of the group at an index, from the root: `/a/b`.
    pub fn path(&self, place: usize) -> String {
        let mut names = Vec::new();
        let mut at = &self.groups[place];
        while let Some(parent) = at.parent {
            names.push(at.name.as_str());
            at = &self.groups[parent];
        }
        names.reverse();
        format!("/{}", names.join("/"))
    }

    /// Returns the groups by inode.
    pub fn by_inode(&self) -> HashMap<u64, &GroupSample> {
        self.groups.iter().map(|group| (group.inode, &group.sample)).collect()
    }

    /// Creates a sample of groups by path, parents first, for tests.
    #[cfg(test)]
    pub fn of(at: Instant, paths: impl IntoIterator<Item = (&'static str, GroupSample)>) -> Self {
        let mut tree = Self { at, groups: Vec::new() };
        for (path, sample) in paths {
            let (above, name) = path.rsplit_once('/').unwrap();
            let above = if above.is_empty() { "/" } else { above };
            let parent = (0..tree.groups.len()).find(|&place| tree.path(place) == above);
            let mut hasher = std::hash::DefaultHasher::new();
            std::hash::Hash::hash(path, &mut hasher);
            let inode = std::hash::Hasher::finish(&hasher);
            tree.groups.push(SampledGroup { name: name.into(), parent, inode, sample });
        }
        tree
    }
}

/// Returns the text of a file of a group.
///
/// # Errors
/// The system's.
pub fn read_text(directory: &OwnedFd, name: &str) -> io::Result<String> {
    let file = rustix::fs::openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = String::new();
    std::fs::File::from(file).read_to_string(&mut text)?;
    Ok(text)
}

/// Returns the usage of a group, in bytes, by reading one file. The root of version 2 has none.
///
/// # Errors
/// The system's; `InvalidData` if the file holds no number.
pub fn read_usage(directory: &OwnedFd) -> io::Result<u64> {
    let text =
        read_text(directory, "memory.current").or_else(|_| read_text(directory, "memory.usage_in_bytes"))?;
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Opens the directory of a group, given the names on the way to it. The path may be longer than
/// `PATH_MAX`.
///
/// # Errors
/// The system's.
pub fn open_group(control: &OwnedFd, names: &[OsString]) -> io::Result<OwnedFd> {
    let mut directory = open_directory(control, Path::new("."))?;
    let mut piece = PathBuf::new();
    for name in names {
        if piece.as_os_str().len() + name.len() > PIECE_BYTES_MAX {
            directory = open_directory(&directory, &piece)?;
            piece.clear();
        }
        piece.push(name);
    }
    if !piece.as_os_str().is_empty() {
        directory = open_directory(&directory, &piece)?;
    }
    Ok(directory)
}

/// Opens a directory.
///
/// # Errors
/// The system's.
pub fn open_directory(from: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(from, path, flags, Mode::empty())?)
}

/// Returns the inodes and names of the groups in a directory.
///
/// # Errors
/// The system's.
pub fn list_groups(directory: &OwnedFd) -> io::Result<Vec<(u64, OsString)>> {
    let entries = rustix::fs::Dir::read_from(directory)?;
    let groups = entries.flatten().filter(|entry| entry.file_type() == FileType::Directory);
    let named = groups.map(|entry| (entry.ino(), OsString::from_vec(entry.file_name().to_bytes().to_vec())));
    Ok(named.filter(|(_, name)| name != "." && name != "..").collect())
}

/// Returns the names of the groups in a directory in descending order.
fn children(directory: &OwnedFd) -> Vec<OsString> {
    let listed = list_groups(directory).unwrap_or_default();
    let mut names: Vec<_> = listed.into_iter().map(|(_, name)| name).collect();
    names.sort_unstable_by(|a, b| b.cmp(a));
    names
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
    fn a_group_is_opened_however_long_its_path_is() {
        let directory = tempfile::tempdir().unwrap();
        let control = open_directory(rustix::fs::CWD, directory.path()).unwrap();
        let names = vec![OsString::from("n".repeat(200)); 30];
        let mut below = open_group(&control, &[]).unwrap();
        for name in &names {
            rustix::fs::mkdirat(&below, name, Mode::RWXU).unwrap();
            below = open_directory(&below, Path::new(name)).unwrap();
        }
        let inode = |directory: &OwnedFd| rustix::fs::fstat(directory).unwrap().st_ino;
        assert_eq!(inode(&open_group(&control, &names).unwrap()), inode(&below));
        let listed = list_groups(&open_group(&control, &names[1..]).unwrap()).unwrap();
        assert_eq!(listed, [(inode(&below), names[0].clone())]);
        assert!(open_group(&control, &["missing".into()]).is_err());
    }

    #[test]
    fn what_is_no_control_tree_is_an_error() {
        let empty = tempfile::tempdir().unwrap();
        assert!(TreeSample::read(empty.path()).is_err());
    }
}
