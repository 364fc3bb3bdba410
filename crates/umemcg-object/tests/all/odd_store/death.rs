//! The death of a daemon, seen by its store: from then on the store does nothing for it. The next
//! daemon starts on a copy of the staging directory, made at the time of death.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{Asked, Oddity};

/// The answer to a dead daemon's requests.
const DEAD: Oddity = Oddity::Status(400);

/// See the module text.
#[derive(Debug)]
pub struct Death {
    /// Changes of the store before the one at which the daemon dies.
    nr_before: u64,
    /// The store makes that one, too, and the daemon does not learn of it.
    is_made: bool,
    staging: PathBuf,
    is_over: bool,
    disk: Option<TempDir>,
}

impl Death {
    pub fn new(nr_before: u64, is_made: bool, staging: &Path) -> Self {
        Self { nr_before, is_made, staging: staging.to_owned(), is_over: false, disk: None }
    }

    /// Returns the odd answer to a request; `None` while the daemon lives.
    pub fn meet(&mut self, asked: Asked) -> Option<Oddity> {
        if self.is_over {
            return Some(DEAD);
        }
        if matches!(asked, Asked::Head | Asked::Get | Asked::List) {
            return None;
        }
        if self.nr_before > 0 {
            self.nr_before -= 1;
            return None;
        }
        (self.is_over, self.disk) = (true, Some(copy_of(&self.staging)));
        Some(if self.is_made { Oddity::StatusAfter(400) } else { DEAD })
    }

    /// Kills the daemon, unless it is dead; returns what was on its disk then.
    pub fn end(&mut self) -> TempDir {
        self.is_over = true;
        self.disk.take().unwrap_or_else(|| copy_of(&self.staging))
    }
}

fn copy_of(directory: &Path) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    copy_into(copy.path(), directory);
    copy
}

fn copy_into(copy: &Path, directory: &Path) {
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let copy = copy.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir(&copy).unwrap();
            copy_into(&copy, &entry.path());
        } else {
            fs::copy(entry.path(), copy).unwrap();
        }
    }
}
