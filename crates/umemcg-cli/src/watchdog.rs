//! The watchdog of a foreground mount: pings the service manager as long as no reader thread is
//! stuck.
//!
//! It looks four times within the timeout of the service manager. A look finds a thread stuck if
//! the thread has the same request as at the look before, in the part without sleeps
//! ([`umemcg_fuse::ReaderWatch`]). From the second such look on, it sends no ping, and the service
//! manager restarts the daemon unless the thread comes back in time. By then the thread has been
//! stuck for the whole timeout, because the first such look still pings. An idle mount counts as
//! healthy, and so does a mount with a silent store: a restart would not bring the store back, and
//! would lose data held only by the daemon.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use umemcg_base::clock::spawn_detached;
use umemcg_fuse::{Daemon, ReaderWatch};

use crate::service_manager::ServiceManager;

/// Looks within the timeout of the service manager.
const NR_LOOKS: u32 = 4;

/// Checks the reader threads, and pings the service manager.
pub struct Watchdog<L> {
    manager: Arc<ServiceManager>,
    /// Returns the threads stuck since its last call.
    look: L,
    /// The stuck threads of the last look.
    stuck_before: Vec<u32>,
    is_in_trouble: bool,
}

impl<L: FnMut() -> Vec<u32>> Watchdog<L> {
    /// Creates a watchdog. `look` returns the stuck threads.
    pub fn new(manager: Arc<ServiceManager>, look: L) -> Self {
        Self { manager, look, stuck_before: Vec::new(), is_in_trouble: false }
    }

    /// Looks once, and pings unless a thread is stuck for the second time in a row.
    pub fn look(&mut self) {
        let found = (self.look)();
        let before = std::mem::replace(&mut self.stuck_before, found.clone());
        let stuck: Vec<u32> = found.into_iter().filter(|thread| before.contains(thread)).collect();
        let was_in_trouble = std::mem::replace(&mut self.is_in_trouble, !stuck.is_empty());
        if stuck.is_empty() {
            self.manager.is_alive();
            if was_in_trouble {
                tracing::warn!("the threads that receive requests go on");
                self.manager.status("serving");
            }
        } else if !was_in_trouble {
            // Report first, log later: the threads may be stuck in a hung log.
            self.manager.status("stuck: a thread that receives requests does not come back");
            let process = std::process::id();
            tracing::error!(
                threads = ?stuck,
                "threads that receive requests are stuck, so the service manager gets no sign of life; \
                 /proc/{process}/task/THREAD/stack shows where they are"
            );
        }
    }
}

/// Watches a daemon until the process ends, with a ping at least every `within`.
///
/// # Errors
/// When the system refuses a thread.
pub fn start(daemon: &Daemon, manager: &Arc<ServiceManager>, within: Duration) -> io::Result<()> {
    let mut watches = daemon.watch_readers();
    let look = move || watches.iter_mut().flat_map(ReaderWatch::look).collect();
    let mut watchdog = Watchdog::new(Arc::clone(manager), look);
    spawn_detached("umemcg-watchdog", move || {
        loop {
            watchdog.look();
            std::thread::sleep(within / NR_LOOKS);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn a_stuck_thread_gets_no_sign_of_life_until_it_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let manager = Arc::new(ServiceManager::at(path.as_os_str()).unwrap());
        let mut looks = [vec![], vec![7], vec![8], vec![7, 8], vec![8], vec![], vec![]].into_iter();
        let mut watchdog = Watchdog::new(manager, || looks.next().unwrap());
        let alive = ["WATCHDOG=1\n"].as_slice();
        let stuck = ["STATUS=stuck: a thread that receives requests does not come back\n"].as_slice();
        let well_again = ["WATCHDOG=1\n", "STATUS=serving\n"].as_slice();
        for expected in [alive, alive, alive, stuck, &[], well_again, alive] {
            watchdog.look();
            let mut buffer = [0; 4096];
            let messages: Vec<String> =
                std::iter::from_fn(|| socket.recv(&mut buffer).ok().map(|len| buffer[..len].to_vec()))
                    .map(|bytes| String::from_utf8(bytes).unwrap())
                    .collect();
            assert_eq!(messages, expected);
        }
    }
}
