//! The start of a mount, as far as it waits for stores: they may be silent for minutes, and a
//! signal ends the wait.

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

/// How often a start looks for a signal while it waits.
const LOOK: Duration = Duration::from_millis(20);
/// When a start that waits says so.
const TELL_AFTER: Duration = Duration::from_secs(3);

/// The signals of a mount, from before its start on.
#[derive(Debug)]
pub struct Start {
    pub events: Receiver<Event>,
    pub sender: Sender<Event>,
    /// The last signal to end.
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

    /// Opens something on a thread of its own, and waits for that; `None` when a signal came first.
    /// Then the thread is left behind.
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

    /// Ends the process as the signal does to a program that takes no notice of it.
    pub fn end_by_signal(&self) -> Failure {
        let signal = self.signal.load(Ordering::Relaxed);
        tell(Level::INFO, format_args!("ended by a signal before the mount was ready"));
        // The first process of a namespace, as in a container, cannot be ended so.
        if getpid() == Pid::INIT {
            std::process::exit(128 + signal);
        }
        // Returns for signals that end nothing.
        let _ = emulate_default_handler(signal);
        Failure::Failed(format!("ended by signal {signal}"))
    }
}
