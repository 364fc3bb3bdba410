//! The processes using a mount, for messages. This is a best effort: only root sees the processes
//! of other users, and a machine may have too many processes to check all while the mount waits. It
//! reads only `/proc`, so it sends no request to the mount. A process that waits in `open` or
//! `stat` has no file of the mount there; the daemon knows its thread.
//!
//! The kernel takes the exec lock of a process for some of these links, and a process in `execve`
//! holds it while it waits for a store. So a thread for this alone reads them, and is left when the
//! time is over. One search is made at a time: further ones find no process.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use umemcg_base::clock::spawn_detached;
use umemcg_base::{Rank, assert_may_wait};

use crate::plain_text::one_line;

/// The most processes named in a message.
const MAX_NAMED: usize = 8;
/// The time limit of the search. The caller waits for it.
const LOOK_TIME_MAX: Duration = Duration::from_secs(5);

/// The search for the processes using a mount.
#[derive(Debug, Default)]
pub struct UserSearch {
    /// (A) A thread is searching. Relaxed: it guards no data.
    is_searching: Arc<AtomicBool>,
}

/// The turn of a search; given back when dropped.
struct Turn(Arc<AtomicBool>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl UserSearch {
    /// Returns the processes of the threads that wait for an answer of the mount, and those with an
    /// open file or working directory below `mountpoint`, as `name (pid)`. Waits up to five
    /// seconds.
    pub fn users_of(&self, mountpoint: &Path, waiting: Vec<u32>) -> Vec<String> {
        let (mountpoint, until) = (mountpoint.to_owned(), Instant::now() + LOOK_TIME_MAX);
        self.search(until, move |found| look(&mountpoint, &waiting, until, found))
    }

    /// Returns the processes that `look` sends until then, on a thread of its own.
    fn search(&self, until: Instant, look: impl FnOnce(&Sender<String>) + Send + 'static) -> Vec<String> {
        assert_may_wait(Rank::Peer, "the search for the users of a mount");
        if self.is_searching.swap(true, Ordering::Relaxed) {
            return Vec::new();
        }
        let (turn, (found, users)) = (Turn(Arc::clone(&self.is_searching)), channel());
        let begun = spawn_detached("umemcg-users", move || {
            // Before the sender: when the caller has heard the end, the turn is free.
            let _turn = turn;
            look(&found);
        });
        if let Err(error) = begun {
            tracing::debug!(%error, "no thread looks for the users of the mount");
        }
        let next = || users.recv_timeout(until.saturating_duration_since(Instant::now())).ok();
        std::iter::from_fn(next).take(MAX_NAMED).collect()
    }
}

fn look(mountpoint: &Path, waiting: &[u32], until: Instant, found: &Sender<String>) {
    let mut named = HashSet::new();
    for &thread in waiting.iter().take_while(|_| Instant::now() < until) {
        let Some(pid) = process_of(thread).filter(|pid| !named.contains(pid)) else { continue };
        let name = name_of(&Path::new("/proc").join(&pid));
        if found.send(format!("{name} ({pid}, waiting for an answer)")).is_err() {
            return;
        }
        named.insert(pid);
    }
    let Ok(processes) = fs::read_dir("/proc") else { return };
    for entry in processes.flatten().take_while(|_| Instant::now() < until) {
        let (process, pid) = (entry.path(), entry.file_name());
        let pid = pid.to_string_lossy();
        let is_new = pid.bytes().all(|byte| byte.is_ascii_digit()) && !named.contains(&*pid);
        if is_new
            && uses(&process, mountpoint, until)
            && found.send(format!("{} ({pid})", name_of(&process))).is_err()
        {
            return;
        }
    }
}

fn name_of(process: &Path) -> String {
    let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
    one_line(name.trim_end_matches('\n')).into_owned()
}

/// Returns the process of a thread; none when there is no such thread.
fn process_of(thread: u32) -> Option<String> {
    let status = fs::read(format!("/proc/{thread}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    status.lines().find_map(|line| line.strip_prefix("Tgid:")).map(|pid| pid.trim().to_owned())
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
        let search = |until: Instant| {
            let path = path.clone();
            UserSearch::default().search(until, move |found| look(&path, &[], until, found))
        };
        let until = Instant::now() + Duration::from_secs(3600);
        assert!(!search(until).iter().any(|user| user.ends_with(&mine)));
        let _open = fs::File::create(path.join("open")).unwrap();
        assert!(search(until).iter().any(|user| user.ends_with(&mine)));
        assert!(search(Instant::now()).is_empty(), "no time to look");
    }

    #[test]
    fn a_process_that_waits_for_an_answer_is_named_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap();
        let _open = fs::File::create(path.join("open")).unwrap();
        // The first thread of a process has its id.
        let me = std::process::id();
        let until = Instant::now() + Duration::from_secs(3600);
        let users = UserSearch::default().search(until, move |found| look(&path, &[me, me], until, found));
        let mine: Vec<_> = users.iter().filter(|user| user.contains(&format!("({me}"))).collect();
        assert_eq!(mine.len(), 1, "{users:?}");
        assert!(mine[0].ends_with(&format!("({me}, waiting for an answer)")), "{users:?}");
    }

    #[test]
    fn a_search_that_hangs_is_left_and_no_second_one_begins() {
        let users = UserSearch::default();
        let (go, gate) = channel::<()>();
        let hangs = users.search(Instant::now(), move |_| _ = gate.recv());
        assert!(hangs.is_empty());
        let search = || {
            let until = Instant::now() + Duration::from_secs(3600);
            users.search(until, |found| found.send("one (1)".into()).unwrap())
        };
        assert!(search().is_empty());
        drop(go);
        while users.is_searching.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        assert_eq!(search(), ["one (1)"]);
    }
}
