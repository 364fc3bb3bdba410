//! The end of a foreground mount, from the first signal to the last byte.
//!
//! ```text
//!   serving --signal or `umemcg umount`--> flushing --durable or time over--> unmounting
//!      |                                                                          |
//!      |                                    not in use: gone immediately          |
//!      |                                    in use (after a signal): detached,    |
//!      |                                    the users may finish until the time   |
//!      |                                    is over                               |
//!      +--umount from outside---------------------------------------------------> ended: flush, exit
//! ```
//!
//! One deadline covers the whole end, set by its first event. A second signal ends everything
//! immediately: data not durable by then is reported as lost. Like umount(8), `umemcg umount`
//! changes nothing if the mount is in use.
//!
//! On SIGHUP and `umemcg reload` the daemon reads its configuration again while it serves. A reload
//! and an unmount exclude each other. A reload may wait for a silent store. So after a signal, the
//! flush does not wait for a reload, and the reload skips its remaining steps. Each step is
//! reported to the service manager.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use tracing::Level;
use umemcg_base::clock::spawn_detached;
use umemcg_base::{Condvar, LeafMutex, Rank, RankedMutex};

use crate::endpoint::{Reloaded, Reply, Request, Serve};
use crate::exit::{Failure, LostFile};
use crate::log::tell;
use crate::service_manager::ServiceManager;
use crate::users::UserSearch;

/// The longest wait of the end for last replies to requests on the socket.
const LAST_REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// The time allowed for the end beyond its deadline: closing hung volumes, listing lost files,
/// sending last replies.
const AFTER_DEADLINE: Duration = Duration::from_secs(15);

/// The foreground mount's interface to its daemon.
pub trait Served: Send + Sync + 'static {
    /// Makes everything durable, and returns the files not durable by the deadline. Blocks. Calls
    /// `progress` with the bytes left.
    fn flush(&self, deadline: Instant, progress: &mut dyn FnMut(u64)) -> Vec<LostFile>;

    /// Unmounts the data mount, then the control files. With `detach`, detaches a busy data mount
    /// immediately, and lets its users finish.
    ///
    /// # Errors
    /// EBUSY when the data mount is in use; the system's errors.
    fn unmount(&self, detach: bool) -> io::Result<()>;

    /// Returns the threads that wait for an answer of the data mount.
    fn waiting_threads(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Adds, lists or removes volumes. A removal makes the volume durable by the deadline, and
    /// calls `progress` with the bytes left.
    fn volumes(&self, request: Request, deadline: Instant, progress: &mut dyn FnMut(u64)) -> Reply {
        let _ = (request, deadline, progress);
        Reply::Failed { message: "there are no volumes here".into() }
    }

    /// Reads the configuration again, and applies it. Makes removed volumes durable by the
    /// deadline. Stops adding and removing volumes once `ends` returns true: the mount ends.
    ///
    /// # Errors
    /// A message for the user; then nothing has changed.
    fn reload(&self, deadline: Instant, ends: &dyn Fn() -> bool) -> Result<Reloaded, String> {
        let _ = (deadline, ends);
        Err("there is no configuration here".into())
    }

    /// Adds or removes the rule for a pod.
    fn pods(&self, request: Request) -> Reply {
        let _ = request;
        Reply::Failed { message: "there are no pods here".into() }
    }

    /// Returns the metrics, with groups down to `depth` levels below the root.
    fn metrics(&self, depth: Option<usize>) -> String {
        let _ = depth;
        String::new()
    }

    /// Unmounts even if the mounts are in use, and flushes. Returns the files not durable by the
    /// deadline.
    fn shut_down(&self, deadline: Instant) -> Vec<LostFile>;
}

/// An event for the foreground thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// SIGINT or SIGTERM.
    Signal,
    /// SIGHUP.
    Reload,
    /// The kernel has closed the data mount; no more requests will come.
    Ended,
}

/// The state of a foreground mount.
pub struct Lifecycle {
    served: Arc<dyn Served>,
    mountpoint: PathBuf,
    flush_timeout: Duration,
    manager: Arc<ServiceManager>,
    /// The deadline of the end; `None` while serving.
    deadline: LeafMutex<Option<Instant>>,
    /// One umount or reload at a time.
    ending: RankedMutex<()>,
    /// A reload by a signal waits for its turn.
    reload_waits: LeafMutex<bool>,
    /// The number of requests on the socket without a last reply.
    nr_requests: LeafMutex<usize>,
    /// Signalled when `nr_requests` falls.
    replied: Condvar,
    users: UserSearch,
}

impl std::fmt::Debug for Lifecycle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Lifecycle").field("mountpoint", &self.mountpoint).finish_non_exhaustive()
    }
}

impl Lifecycle {
    /// Creates the state of a served mount.
    pub fn new(
        served: Arc<dyn Served>,
        mountpoint: &Path,
        flush_timeout: Duration,
        manager: Arc<ServiceManager>,
    ) -> Arc<Self> {
        Arc::new(Self {
            served,
            mountpoint: mountpoint.to_owned(),
            flush_timeout,
            manager,
            deadline: LeafMutex::new(None),
            ending: RankedMutex::new(Rank::Ending, ()),
            reload_waits: LeafMutex::new(false),
            nr_requests: LeafMutex::new(0),
            replied: Condvar::default(),
            users: UserSearch::default(),
        })
    }

    /// Serves until the mount has ended, and notifies the service manager. Blocks. Calls `ready`
    /// once the mount is sure to be served.
    ///
    /// # Errors
    /// [`Failure::Lost`] with the files not made durable; when no thread can be started.
    pub fn run(
        self: &Arc<Self>,
        events: &Receiver<Event>,
        sender: &Sender<Event>,
        ready: impl FnOnce(),
    ) -> Result<(), Failure> {
        let end = match self.prepare_end(sender) {
            Ok(end) => end,
            Err(error) => {
                let refused = format!("cannot start a thread: {error}");
                let lost = self.served.shut_down(self.begin_end());
                if lost.is_empty() {
                    return Err(Failure::Failed(refused));
                }
                tell(Level::ERROR, refused);
                return Err(Failure::Lost(lost));
            }
        };
        ready();
        let mut end_by = None;
        let mut insisted = false;
        self.manager.ready(&self.status());
        loop {
            match Self::next_event(events, end_by) {
                Ok(Event::Ended) => break,
                Ok(Event::Signal) if end_by.is_none() => {
                    let deadline = self.begin_end();
                    end_by = Some(deadline);
                    let _ = end.send(deadline);
                }
                Ok(Event::Signal) => {
                    insisted = true;
                    break;
                }
                Ok(Event::Reload) => self.begin_reload(),
                Err(RecvTimeoutError::Timeout) => {
                    let point = self.mountpoint.display();
                    tell(Level::WARN, format_args!("{point} is still in use; ending nevertheless"));
                    break;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let deadline = if insisted { Instant::now() } else { self.begin_end() };
        let mut lost = self.served.shut_down(deadline);
        if insisted {
            // The end did not wait for the host. Data accepted by the host may still become
            // durable; only data in this process is lost.
            lost.retain(|file| file.bytes > 0);
        }
        self.await_last_replies();
        if lost.is_empty() { Ok(()) } else { Err(Failure::Lost(lost)) }
    }

    /// Starts the thread for an end by a signal. It begins when its deadline is sent to it.
    /// Flushing may take as long as the timeout, and a second signal must be received meanwhile:
    /// hence a thread of its own. It starts with the mount, because the system may refuse a thread
    /// at the end.
    fn prepare_end(self: &Arc<Self>, sender: &Sender<Event>) -> io::Result<Sender<Instant>> {
        let (end, ends) = mpsc::channel();
        let (ending, sender) = (Arc::downgrade(self), sender.clone());
        spawn_detached("umemcg-end", move || {
            let deadline = ends.recv();
            if let (Ok(deadline), Some(ending)) = (deadline, ending.upgrade()) {
                ending.end_on_signal(deadline, &sender);
            }
        })?;
        Ok(end)
    }

    /// Waits for the next event until the deadline, if there is one.
    fn next_event(events: &Receiver<Event>, deadline: Option<Instant>) -> Result<Event, RecvTimeoutError> {
        match deadline {
            None => events.recv().map_err(RecvTimeoutError::from),
            Some(deadline) => events.recv_timeout(deadline.saturating_duration_since(Instant::now())),
        }
    }

    /// Sets the deadline unless it is set, notifies the service manager, and returns the deadline.
    fn begin_end(&self) -> Instant {
        let deadline = *self.deadline.lock().get_or_insert_with(|| Instant::now() + self.flush_timeout);
        self.manager.stopping(deadline.saturating_duration_since(Instant::now()) + AFTER_DEADLINE);
        deadline
    }

    fn status(&self) -> String {
        format!("serving {}", self.mountpoint.display())
    }

    /// Reloads on a thread of its own. Does nothing if a reload is already waiting for its turn: it
    /// will read the newest file.
    fn begin_reload(self: &Arc<Self>) {
        if std::mem::replace(&mut *self.reload_waits.lock(), true) {
            return;
        }
        let reloading = Arc::clone(self);
        let begun = spawn_detached("umemcg-reload", move || drop(reloading.reload()));
        if let Err(error) = begun {
            *self.reload_waits.lock() = false;
            tell(Level::ERROR, format_args!("nothing is reloaded: no thread can be started: {error}"));
        }
    }

    /// Reads the configuration again. Logs the result, and reports it to the service manager.
    fn reload(&self) -> Reply {
        let _one_at_a_time = self.ending.lock();
        // Before the file is read: a signal from now on may mean a newer one.
        *self.reload_waits.lock() = false;
        let ends = || self.deadline.lock().is_some();
        if ends() {
            return Reply::Failed { message: "the mount ends; nothing is reloaded".into() };
        }
        self.manager.reloading();
        let reloaded = self.served.reload(Instant::now() + self.flush_timeout, &ends);
        let (status, reply) = match reloaded {
            Ok(reloaded) => {
                let Reloaded { changed, left } = &reloaded;
                for change in changed {
                    tell(Level::INFO, format_args!("reloaded: {change}"));
                }
                for what in left {
                    tell(Level::WARN, format_args!("not changed by the reload: {what}"));
                }
                let nr_left = match left.len() {
                    0 => String::new(),
                    nr => format!("; {nr} settings of the configuration are not in force, see the log"),
                };
                (format!("{}{nr_left}", self.status()), Reply::Reloaded(reloaded))
            }
            Err(message) => {
                tell(Level::ERROR, format_args!("nothing is reloaded: {message}"));
                (format!("{}; nothing is reloaded: {message}", self.status()), Reply::Failed { message })
            }
        };
        if !ends() {
            self.manager.ready(&status);
        }
        reply
    }

    fn end_on_signal(&self, deadline: Instant, sender: &Sender<Event>) {
        // Flush before taking the lock: a reload may wait for a silent store until the deadline,
        // and the data of the other volumes can be made durable meanwhile. The rest is flushed
        // again, and reported, when the mount has ended.
        let _ = self.served.flush(deadline, &mut |_| {});
        let _one_at_a_time = self.ending.lock();
        match self.served.unmount(false) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {
                let users = self.users.users_of(&self.mountpoint, self.served.waiting_threads());
                let message = format!(
                    "{} is in use{}; it is detached, and served to them for up to {:.0} s more \
                     (a second signal ends it now)",
                    self.mountpoint.display(),
                    by(&users),
                    deadline.saturating_duration_since(Instant::now()).as_secs_f64()
                );
                tell(Level::WARN, message);
                if let Err(error) = self.served.unmount(true) {
                    let point = self.mountpoint.display();
                    tell(Level::ERROR, format_args!("cannot detach {point}: {error}"));
                }
            }
            Err(error) => {
                let point = self.mountpoint.display();
                tell(Level::ERROR, format_args!("cannot unmount {point}: {error}"));
                // Nothing else will end the mount: go on to the last flush.
                let _ = sender.send(Event::Ended);
            }
        }
    }

    fn umount_on_request(&self, timeout: Option<Duration>, progress: &mut dyn FnMut(u64)) -> Reply {
        let _one_at_a_time = self.ending.lock();
        let deadline = Instant::now() + timeout.unwrap_or(self.flush_timeout);
        let _ = self.served.flush(deadline, progress);
        match self.served.unmount(false) {
            Ok(()) => {
                // No writer is left. The foreground ends by the same deadline.
                self.deadline.lock().get_or_insert(deadline);
                lost_or_done(self.served.flush(deadline, progress))
            }
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {
                Reply::Busy { users: self.users.users_of(&self.mountpoint, self.served.waiting_threads()) }
            }
            Err(error) => {
                Reply::Failed { message: format!("cannot unmount {}: {error}", self.mountpoint.display()) }
            }
        }
    }

    fn await_last_replies(&self) {
        let until = Instant::now() + LAST_REPLY_TIMEOUT;
        let mut nr_requests = self.nr_requests.lock();
        while *nr_requests > 0 && !self.replied.wait_until(&mut nr_requests, until).timed_out() {}
    }
}

impl Serve for Lifecycle {
    fn serve(&self, request: Request, progress: &mut dyn FnMut(Reply)) -> Reply {
        let mut progress = |dirty_bytes| progress(Reply::Progress { dirty_bytes });
        match request {
            Request::Sync { flush_timeout_ms } => {
                let timeout = flush_timeout_ms.map_or(self.flush_timeout, Duration::from_millis);
                lost_or_done(self.served.flush(Instant::now() + timeout, &mut progress))
            }
            request @ (Request::VolumeAdd { .. } | Request::VolumeList | Request::VolumeRemove { .. }) => {
                let timeout = match request {
                    Request::VolumeRemove { flush_timeout_ms, .. } => flush_timeout_ms,
                    _ => None,
                };
                let timeout = timeout.map_or(self.flush_timeout, Duration::from_millis);
                self.served.volumes(request, Instant::now() + timeout, &mut progress)
            }
            Request::Reload => self.reload(),
            request @ (Request::PodAdd { .. } | Request::PodRemove { .. }) => self.served.pods(request),
            Request::Metrics { depth } => Reply::Metrics { text: self.served.metrics(depth) },
            Request::Umount { flush_timeout_ms } => {
                self.umount_on_request(flush_timeout_ms.map(Duration::from_millis), &mut progress)
            }
        }
    }

    fn begin(&self) {
        *self.nr_requests.lock() += 1;
    }

    fn end(&self) {
        *self.nr_requests.lock() -= 1;
        self.replied.notify_all();
    }
}

fn lost_or_done(lost: Vec<LostFile>) -> Reply {
    if lost.is_empty() { Reply::Done } else { Reply::Lost { files: lost } }
}

fn by(users: &[String]) -> String {
    if users.is_empty() { String::new() } else { format!(" by {}", users.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// A daemon: its mount may be busy until detached, and its store may never accept its data.
    #[derive(Default)]
    struct Fake {
        busy: bool,
        undurable: bool,
        calls: LeafMutex<Vec<&'static str>>,
        called: Condvar,
        on_gone: LeafMutex<Option<Sender<Event>>>,
        signal_in_reload: LeafMutex<Option<Sender<Event>>>,
    }

    impl Served for Fake {
        fn flush(&self, _deadline: Instant, progress: &mut dyn FnMut(u64)) -> Vec<LostFile> {
            self.calls.lock().push("flush");
            self.called.notify_all();
            progress(7);
            let file = LostFile { path: "a".into(), bytes: 7, error: "no space".into() };
            if self.undurable { vec![file] } else { Vec::new() }
        }

        fn unmount(&self, detach: bool) -> io::Result<()> {
            self.calls.lock().push(if detach { "detach" } else { "unmount" });
            self.called.notify_all();
            if self.busy && !detach {
                return Err(rustix::io::Errno::BUSY.into());
            }
            if !self.busy
                && let Some(sender) = self.on_gone.lock().take()
            {
                sender.send(Event::Ended).unwrap();
            }
            Ok(())
        }

        /// Still running when the signal comes; waits for a store until the other volumes are
        /// flushed.
        fn reload(&self, _: Instant, ends: &dyn Fn() -> bool) -> Result<Reloaded, String> {
            let Some(sender) = self.signal_in_reload.lock().take() else {
                return Err("there is no configuration here".into());
            };
            sender.send(Event::Signal).unwrap();
            let mut calls = self.calls.lock();
            while !calls.contains(&"flush") {
                self.called.wait(&mut calls);
            }
            drop(calls);
            let what = if ends() { "reload ends" } else { "reload goes on" };
            self.calls.lock().push(what);
            Ok(Reloaded::default())
        }

        fn shut_down(&self, deadline: Instant) -> Vec<LostFile> {
            // The detaching thread is running, whatever ends the wait for users. Wait without a
            // timeout: a busy processor may delay that thread.
            let mut calls = self.calls.lock();
            while self.busy && !calls.contains(&"detach") {
                self.called.wait(&mut calls);
            }
            calls.push("shut down");
            drop(calls);
            self.flush(deadline, &mut |_| {})
        }
    }

    fn check(fake: Fake, timeout: Duration, events: &[Event]) -> (Result<(), Failure>, Vec<&'static str>) {
        check_on(fake, timeout, events, channel())
    }

    fn check_on(
        fake: Fake,
        timeout: Duration,
        events: &[Event],
        (sender, receiver): (Sender<Event>, Receiver<Event>),
    ) -> (Result<(), Failure>, Vec<&'static str>) {
        *fake.on_gone.lock() = Some(sender.clone());
        let fake = Arc::new(fake);
        let lifecycle = Lifecycle::new(
            Arc::clone(&fake) as Arc<dyn Served>,
            Path::new("/nowhere"),
            timeout,
            Arc::default(),
        );
        for event in events {
            sender.send(*event).unwrap();
        }
        let result = lifecycle.run(&receiver, &sender, || {});
        let calls = fake.calls.lock().clone();
        (result, calls)
    }

    #[test]
    fn a_signal_flushes_before_it_unmounts_and_after() {
        let (result, calls) = check(Fake::default(), Duration::from_secs(30), &[Event::Signal]);
        result.unwrap();
        assert_eq!(calls, ["flush", "unmount", "shut down", "flush"]);
    }

    #[test]
    fn the_flush_of_an_end_does_not_wait_for_a_reload() {
        let (sender, receiver) = channel();
        let fake = Fake { signal_in_reload: LeafMutex::new(Some(sender.clone())), ..Fake::default() };
        let timeout = Duration::from_secs(60);
        let (result, calls) = check_on(fake, timeout, &[Event::Reload], (sender, receiver));
        result.unwrap();
        assert_eq!(calls, ["flush", "reload ends", "unmount", "shut down", "flush"]);
    }

    #[test]
    fn an_umount_from_outside_flushes_the_rest() {
        let (result, calls) = check(Fake::default(), Duration::from_secs(30), &[Event::Ended]);
        result.unwrap();
        assert_eq!(calls, ["shut down", "flush"]);
    }

    #[test]
    fn what_the_store_does_not_take_is_reported_as_lost() {
        let fake = Fake { undurable: true, ..Fake::default() };
        let (result, _) = check(fake, Duration::from_secs(30), &[Event::Signal]);
        assert!(matches!(result, Err(Failure::Lost(files)) if files.len() == 1));
    }

    #[test]
    fn a_mount_in_use_is_detached_and_given_until_the_deadline() {
        let fake = Fake { busy: true, ..Fake::default() };
        let (result, calls) = check(fake, Duration::from_millis(50), &[Event::Signal]);
        result.unwrap();
        assert_eq!(calls, ["flush", "unmount", "detach", "shut down", "flush"]);
    }

    #[test]
    fn a_second_signal_does_not_wait() {
        let fake = Fake { busy: true, ..Fake::default() };
        let (result, calls) = check(fake, Duration::from_secs(3600), &[Event::Signal, Event::Signal]);
        result.unwrap();
        assert!(calls.contains(&"shut down"));
    }

    #[test]
    fn a_mount_that_ends_is_not_reloaded() {
        let fake: Arc<dyn Served> = Arc::new(Fake::default());
        let timeout = Duration::from_secs(30);
        let lifecycle = Lifecycle::new(fake, Path::new("/nowhere"), timeout, Arc::default());
        let reply = || match lifecycle.serve(Request::Reload, &mut |_| {}) {
            Reply::Failed { message } => message,
            other => panic!("{other:?}"),
        };
        assert!(reply().contains("no configuration"));
        lifecycle.begin_end();
        assert!(reply().contains("ends"));
    }

    #[test]
    fn a_mount_without_a_thread_for_its_end_is_not_ready() {
        let (sender, receiver) = channel();
        let fake = Arc::new(Fake::default());
        let served = Arc::clone(&fake) as Arc<dyn Served>;
        let lifecycle =
            Lifecycle::new(served, Path::new("/nowhere"), Duration::from_secs(30), Arc::default());
        umemcg_base::clock::refuse_threads(1);
        let result = lifecycle.run(&receiver, &sender, || panic!("it ends instead"));
        assert!(matches!(result, Err(Failure::Failed(_))), "{result:?}");
        assert_eq!(*fake.calls.lock(), ["shut down", "flush"]);
    }

    #[test]
    fn a_request_to_umount_a_mount_in_use_changes_nothing() {
        let fake = Arc::new(Fake { busy: true, ..Fake::default() });
        let lifecycle = Lifecycle::new(
            Arc::clone(&fake) as Arc<dyn Served>,
            Path::new("/nowhere"),
            Duration::from_secs(30),
            Arc::default(),
        );
        let mut progress = Vec::new();
        let reply =
            lifecycle.serve(Request::Umount { flush_timeout_ms: None }, &mut |reply| progress.push(reply));
        assert_eq!(reply, Reply::Busy { users: Vec::new() });
        assert_eq!(progress, [Reply::Progress { dirty_bytes: 7 }]);
        assert_eq!(*fake.calls.lock(), ["flush", "unmount"]);
        assert_eq!(*lifecycle.deadline.lock(), None);
    }
}
