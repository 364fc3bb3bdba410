//! The processes using a mount, for messages. This is a best effort: only root sees the processes
//! of other users, and a machine may have too many processes to check all while the mount waits. It
//! reads only links in `/proc`, so it sends no request to the mount.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::plain_text::one_line;

/// The most processes named in a message.
const MAX_NAMED: usize = 8;
/// The time limit of the search. The caller waits for it.
const LOOK_TIME_MAX: Duration = Duration::from_secs(5);

/// Returns the processes with an open file or working directory below `mountpoint`, as
/// `name (pid)`.
pub fn users_of(mountpoint: &Path) -> Vec<String> {
    users_until(mountpoint, Instant::now() + LOOK_TIME_MAX)
}

fn users_until(mountpoint: &Path, until: Instant) -> Vec<String> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    processes
        .flatten()
        .take_while(|_| Instant::now() < until)
        .filter(|entry| entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()))
        .filter(|entry| uses(&entry.path(), mountpoint, until))
        .take(MAX_NAMED)
        .map(|entry| {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            format!("{} ({})", one_line(name.trim_end_matches('\n')), entry.file_name().to_string_lossy())
        })
        .collect()
}

fn uses(process: &Path, mountpoint: &Path, until: Instant) -> bool {
    let leads_there = |link: &Path| fs::read_link(link).is_ok_and(|target| target.starts_with(mountpoint));
    ["cwd", "root", "exe"].iter().any(|name| leads_there(&process.join(name)))
        || fs::read_dir(process.join("fd")).is_ok_and(|fds| {
            fds.flatten().take_while(|_| Instant::now() < until).any(|fd| leads_there(&fd.path()))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_an_open_file_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap();
        let mine = format!("({})", std::process::id());
        assert!(!users_of(&path).iter().any(|user| user.ends_with(&mine)));
        let _open = fs::File::create(path.join("open")).unwrap();
        let until = Instant::now() + Duration::from_secs(3600);
        assert!(users_until(&path, until).iter().any(|user| user.ends_with(&mine)));
        assert!(users_until(&path, Instant::now()).is_empty(), "no time to look");
    }
}
