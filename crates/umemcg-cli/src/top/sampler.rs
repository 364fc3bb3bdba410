//! Reads control files for the live view, on a thread of its own.
//!
//! A request lists the reads, the most important first. Groups off the screen are read for a
//! bounded time only; later requests read the rest.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::client::DaemonAddress;
use crate::endpoint::{Reply, Request, VolumeRow};
use crate::group_sample::{GroupSample, list_groups, open_directory, open_group, read_text, read_usage};

use super::detail::Detail;

/// A group to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Its inode; returned with the answer.
    pub group: u64,
    /// The names on the way to it from the root.
    pub names: Vec<OsString>,
}

/// The figures to read of each group off the screen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Round {
    /// Its usage: one file.
    #[default]
    Usage,
    /// All its figures: six files.
    Figures,
}

/// A request to the sampler.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Groups to sample in any case.
    pub samples: Vec<Asked>,
    /// Groups to list the children of, in any case.
    pub listings: Vec<Asked>,
    /// The group of the current page.
    pub detail: Option<Asked>,
    /// Whether to list the volumes.
    pub volumes: bool,
    /// Groups off the screen, to read within `round_time`.
    pub round: Vec<Asked>,
    /// The figures to read of these groups.
    pub round_reads: Round,
    /// The time limit of reading these groups.
    pub round_time: Duration,
}

/// The answer to a request.
#[derive(Debug, Default)]
pub struct Taken {
    /// The number of groups of the tree, the root included.
    pub nr_groups: u64,
    /// Samples: the group, the time, the figures, and whether it has children.
    pub samples: Vec<(u64, Instant, GroupSample, bool)>,
    /// The usage of groups.
    pub usages: Vec<(u64, u64)>,
    /// The children of groups.
    pub listings: Vec<(u64, Vec<(u64, OsString)>)>,
    /// Groups that no longer exist.
    pub gone: Vec<u64>,
    /// The group of the current page.
    pub detail: Option<(u64, Detail)>,
    /// The volumes, or the reason why they cannot be listed.
    pub volumes: Option<(Instant, Result<Vec<VolumeRow>, String>)>,
}

/// The reading thread.
#[derive(Debug)]
pub struct Sampler {
    requests: mpsc::Sender<Wanted>,
    thread: JoinHandle<()>,
}

impl Sampler {
    /// Starts the thread. It passes each answer to `forward`, and ends when `forward` returns
    /// `false` or the sampler is dropped.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        control: PathBuf,
        forward: impl Fn(io::Result<Taken>) -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, requests) = mpsc::channel::<Wanted>();
        let thread = std::thread::Builder::new().name("umemcg-top".into()).spawn(move || {
            let mut reader = Reader { control, daemon: None };
            while let Ok(wanted) = requests.recv() {
                if !forward(reader.read(&wanted)) {
                    return;
                }
            }
        })?;
        Ok(Self { requests: sender, thread })
    }

    /// Sends a request. The thread answers each request once, unless it ends.
    pub fn ask(&self, wanted: Wanted) {
        let _ = self.requests.send(wanted);
    }

    /// Returns whether the thread has ended: no answer will follow.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }
}

struct Reader {
    control: PathBuf,
    /// The daemon, after its first answer.
    daemon: Option<DaemonAddress>,
}

impl Reader {
    /// Carries out a request.
    ///
    /// # Errors
    /// When the root cannot be read: no daemon serves it.
    fn read(&mut self, wanted: &Wanted) -> io::Result<Taken> {
        // Opened anew each time: an open directory would keep the mount busy.
        let root = open_directory(rustix::fs::CWD, &self.control)?;
        // After an unmount of the control tree, its path is an empty directory.
        read_text(&root, "umemcg.stat")?;
        let mut taken = Taken { nr_groups: nr_groups(&root), ..Taken::default() };
        for asked in &wanted.samples {
            taken.sample(&root, asked)?;
        }
        for asked in &wanted.listings {
            let listed = open_group(&root, &asked.names).and_then(|directory| list_groups(&directory));
            if let Some(listed) = taken.unless_gone(asked, listed)? {
                taken.listings.push((asked.group, listed));
            }
        }
        if let Some(asked) = &wanted.detail
            && let Some(detail) = taken.unless_gone(asked, read_detail(&root, asked))?
        {
            taken.detail = Some((asked.group, detail));
        }
        if wanted.volumes {
            taken.volumes = Some((Instant::now(), self.read_volumes()));
        }
        taken.read_round(&root, wanted)?;
        Ok(taken)
    }

    fn read_volumes(&mut self) -> Result<Vec<VolumeRow>, String> {
        let daemon = self.daemon.take().map_or_else(|| DaemonAddress::of(None, Some(&self.control)), Ok);
        let daemon = daemon.map_err(|failure| failure.to_string())?;
        match daemon.last_reply(&Request::VolumeList).map_err(|failure| failure.to_string())? {
            Reply::Volumes { volumes } => {
                self.daemon = Some(daemon);
                Ok(volumes)
            }
            _ => Err("the daemon's answer is not understood; is it of another version?".into()),
        }
    }
}

impl Taken {
    fn sample(&mut self, root: &OwnedFd, asked: &Asked) -> io::Result<()> {
        let read = || {
            let directory = open_group(root, &asked.names)?;
            let has_children = rustix::fs::fstat(&directory)?.st_nlink > 2;
            Ok((GroupSample::read(&directory)?, has_children))
        };
        if let Some((sample, has_children)) = self.unless_gone(asked, read())? {
            self.samples.push((asked.group, Instant::now(), sample, has_children));
        }
        Ok(())
    }

    fn read_round(&mut self, root: &OwnedFd, wanted: &Wanted) -> io::Result<()> {
        let until = Instant::now() + wanted.round_time;
        // Read at least one group, so that every group has its turn however slow the daemon is.
        for (place, asked) in wanted.round.iter().enumerate() {
            if place > 0 && Instant::now() >= until {
                break;
            }
            match wanted.round_reads {
                Round::Figures => self.sample(root, asked)?,
                Round::Usage => {
                    let usage = open_group(root, &asked.names).and_then(|directory| read_usage(&directory));
                    if let Some(usage) = self.unless_gone(asked, usage)? {
                        self.usages.push((asked.group, usage));
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the result of a read; `None` if the group is gone. Notes such a group in `gone`.
    ///
    /// # Errors
    /// When no daemon serves the tree any more.
    fn unless_gone<T>(&mut self, asked: &Asked, read: io::Result<T>) -> io::Result<Option<T>> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(error) if asked.names.is_empty() || is_not_connected(&error) => Err(error),
            Err(_) => {
                self.gone.push(asked.group);
                Ok(None)
            }
        }
    }
}

fn is_not_connected(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::NOTCONN)
}

fn nr_groups(root: &OwnedFd) -> u64 {
    let text = read_text(root, "cgroup.stat").unwrap_or_default();
    let below =
        text.lines().find_map(|line| line.strip_prefix("nr_descendants ")?.trim().parse::<u64>().ok());
    1 + below.unwrap_or(0)
}

fn read_detail(root: &OwnedFd, asked: &Asked) -> io::Result<Detail> {
    let directory = open_group(root, &asked.names)?;
    let sample = GroupSample::read(&directory)?;
    // The root has no events, and a style may lack a file.
    let text = |name: &str| read_text(&directory, name).unwrap_or_default();
    let [events, pressure] = ["memory.events", "memory.pressure"].map(text);
    Ok(Detail::parse(sample, &events, &pressure, &text("memory.kmem.slabinfo")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn asked(group: u64, name: &str) -> Asked {
        Asked { group, names: vec![name.into()] }
    }

    /// A directory with the files of a control tree with the groups `a` and `b`.
    fn tree() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for group in ["", "a", "b"] {
            let at = directory.path().join(group);
            fs::create_dir_all(&at).unwrap();
            for (file, text) in [
                ("umemcg.stat", "total_dirty 3\n"),
                ("memory.reclaim_wmarks", ""),
                ("memory.current", "4096\n"),
                ("memory.events", "max 2\n"),
                ("cgroup.stat", "nr_descendants 2\n"),
            ] {
                fs::write(at.join(file), text).unwrap();
            }
        }
        directory
    }

    #[test]
    fn what_is_wanted_is_read_and_what_is_gone_is_said() {
        let tree = tree();
        let mut reader = Reader { control: tree.path().into(), daemon: None };
        let wanted = Wanted {
            samples: vec![Asked { group: 1, names: Vec::new() }, asked(2, "a"), asked(9, "gone")],
            listings: vec![Asked { group: 1, names: Vec::new() }],
            detail: Some(asked(2, "a")),
            volumes: true,
            ..Wanted::default()
        };
        let taken = reader.read(&wanted).unwrap();
        assert_eq!(taken.nr_groups, 3);
        assert_eq!(taken.samples.iter().map(|sample| sample.0).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(taken.gone, [9]);
        let mut names: Vec<_> = taken.listings[0].1.iter().map(|(_, name)| name.clone()).collect();
        names.sort();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(taken.detail.unwrap().1.events, [("max".to_owned(), 2)]);
        let refused = taken.volumes.unwrap().1.unwrap_err();
        assert!(refused.contains("not a mount point"), "{refused}");
    }

    #[test]
    fn groups_off_the_screen_have_turns_however_short_time_is() {
        let tree = tree();
        let mut reader = Reader { control: tree.path().into(), daemon: None };
        let mut wanted = Wanted { round: vec![asked(2, "a"), asked(3, "b")], ..Wanted::default() };
        assert_eq!(reader.read(&wanted).unwrap().usages, [(2, 4096)]);
        wanted.round_time = Duration::from_secs(3600);
        assert_eq!(reader.read(&wanted).unwrap().usages, [(2, 4096), (3, 4096)]);
        wanted.round_reads = Round::Figures;
        assert_eq!(reader.read(&wanted).unwrap().samples.len(), 2);
    }

    #[test]
    fn a_tree_that_is_served_no_more_is_an_error() {
        let tree = tree();
        let mut reader = Reader { control: tree.path().into(), daemon: None };
        fs::remove_file(tree.path().join("umemcg.stat")).unwrap();
        assert!(reader.read(&Wanted::default()).is_err());
        drop(tree);
        assert!(reader.read(&Wanted::default()).is_err());
    }
}
