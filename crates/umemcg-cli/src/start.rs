//! Waits during the start of a mount. A store may be silent for minutes; a signal ends the wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use rustix::process::{Pid, getpid};
use signal_hook::low_level::emulate_default_handler;
use tracing::Level;
use umemcg_base::clock::spawn_detached;

use crate::exit::Failure;
use crate::lifecycle::Event;
use crate::log::tell;
use crate::signals::{Told, forward_told};

/// The interval between checks for a signal during a wait.
const LOOK: Duration = Duration::from_millis(20);
/// The time after which a wait is reported to the user.
const TELL_AFTER: Duration = Duration::from_secs(3);

/// The signals of a mount, received from before its start.
#[derive(Debug)]
pub struct Start {
    pub events: Receiver<Event>,
    pub sender: Sender<Event>,
    /// The last signal to end the mount.
    signal: Arc<AtomicI32>,
}

impl Start {
    /// Receives signals from now on.
    ///
    /// # Errors
    /// [`Failure::Failed`].
    pub fn new() -> Result<Self, Failure> {
        let (sender, events) = mpsc::channel();
        let (signal, told) = (Arc::<AtomicI32>::default(), sender.clone());
        let noted = Arc::clone(&signal);
        let event = move |told| match told {
            Told::Reload => Event::Reload,
            Told::End(signal) => {
                noted.store(signal, Ordering::Relaxed);
                Event::Signal
            }
        };
        forward_told(move |signal| told.send(event(signal)).is_ok())
            .map_err(|error| Failure::Failed(format!("cannot receive signals: {error}")))?;
        Ok(Self { events, sender, signal })
    }

    /// Runs `open` on a thread of its own, and waits for its result; `None` when a signal came
    /// first. Then the thread is left behind.
    ///
    /// # Errors
    /// [`Failure::Failed`] when no thread can be started, or it panics.
    pub fn wait<T: Send + 'static>(
        &self,
        what: &str,
        open: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Option<T>, Failure> {
        let (said, opened) = mpsc::channel();
        spawn_detached("umemcg-open", move || drop(said.send(open())))
            .map_err(|error| Failure::Failed(format!("cannot start a thread: {error}")))?;
        let (mut tell_at, mut reloads) = (Some(Instant::now() + TELL_AFTER), false);
        let result = loop {
            match opened.recv_timeout(LOOK) {
                Ok(opened) => break Ok(Some(opened)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    break Err(Failure::Failed(format!("cannot open {what}: the thread broke off")));
                }
            }
            match self.events.try_recv() {
                Ok(Event::Signal) => break Ok(None),
                Ok(Event::Reload) => reloads = true,
                _ => {}
            }
            if tell_at.take_if(|at| *at <= Instant::now()).is_some() {
                tell(Level::INFO, format_args!("waiting for {what}"));
            }
        };
        if reloads {
            let _ = self.sender.send(Event::Reload);
        }
        result
    }

    /// Ends the process with the default action of the signal.
    pub fn end_by_signal(&self) -> Failure {
        let signal = self.signal.load(Ordering::Relaxed);
        tell(Level::INFO, format_args!("ended by a signal before the mount was ready"));
        // The first process of a pid namespace, as in a container, ignores default actions.
        if getpid() == Pid::INIT {
            std::process::exit(128 + signal);
        }
        // Returns for signals without a terminating action.
        let _ = emulate_default_handler(signal);
        Failure::Failed(format!("ended by signal {signal}"))
    }
}
