//! The loop of the live view: keys, signals, samples and the time, each an event.
//!
//! Separate threads wait for keys, for signals and for the daemon. The loop waits for events only,
//! so a silent daemon delays neither keys nor signals.

use std::io;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event as TerminalEvent};

use crate::args::TopArguments;
use crate::exit::Failure;
use crate::signals::forward_signals;

use super::model::{Model, Outcome};
use super::requests;
use super::row::INTERVAL_MIN;
use super::sampler::{Sampler, Taken, Wanted};
use super::screen::Screen;

/// The time without an answer after which the daemon is shown as silent.
const SILENCE_MIN: Duration = Duration::from_secs(3);
/// The interval of updates of the shown silence.
const SILENCE_STEP: Duration = Duration::from_secs(1);

/// An event of the loop.
enum Event {
    Terminal(TerminalEvent),
    Taken(io::Result<Box<Taken>>),
    /// A signal, or the end of the terminal.
    Ended,
}

/// Runs the live view until the user or a signal ends it.
///
/// # Errors
/// [`Failure::NotServed`] if the daemon is not there or ends; [`Failure::Failed`] for the terminal.
pub fn run(arguments: &TopArguments, control: &Path) -> Result<(), Failure> {
    let (sender, events) = mpsc::channel();
    let told = sender.clone();
    forward_signals(move || told.send(Event::Ended).is_ok())
        .map_err(|error| Failure::Failed(format!("cannot receive signals: {error}")))?;
    let told = sender.clone();
    let sampler =
        Sampler::start(control.to_owned(), move |taken| told.send(Event::Taken(taken.map(Box::new))).is_ok())
            .map_err(|error| Failure::Failed(format!("cannot start a thread: {error}")))?;
    let interval = arguments.interval.max(INTERVAL_MIN);
    let model = Model::new(control.display().to_string(), arguments.sort, interval);
    let mut live = Live { model, sampler, asked: None, due: Instant::now() };
    // Report a path without a control tree before taking the screen.
    live.ask_when_due()?;
    match events.recv() {
        Ok(Event::Taken(taken)) => live.take(taken.map_err(|error| {
            Failure::NotServed(format!("{} is not a control tree that is served: {error}", control.display()))
        })?),
        Ok(Event::Ended | Event::Terminal(_)) | Err(_) => return Ok(()),
    }
    let mut screen = Screen::take().map_err(|error| terminal_failure(&error))?;
    read_terminal(sender).map_err(|error| Failure::Failed(format!("cannot start a thread: {error}")))?;
    // The screen is dropped, and the terminal restored, before a failure is printed.
    live.run(&mut screen, &events, control)
}

fn terminal_failure(error: &io::Error) -> Failure {
    Failure::Failed(format!("cannot use the terminal: {error}; with `--once` it is not needed"))
}

/// Starts the thread for keys and for changes of the terminal's size.
fn read_terminal(events: Sender<Event>) -> io::Result<()> {
    std::thread::Builder::new().name("umemcg-keys".into()).spawn(move || {
        loop {
            let event = event::read().map_or(Event::Ended, Event::Terminal);
            let is_end = matches!(event, Event::Ended);
            if events.send(event).is_err() || is_end {
                return;
            }
        }
    })?;
    Ok(())
}

struct Live {
    model: Model,
    sampler: Sampler,
    /// The time of the unanswered request.
    asked: Option<Instant>,
    /// The beginning of the next interval.
    due: Instant,
}

impl Live {
    fn run(&mut self, screen: &mut Screen, events: &Receiver<Event>, control: &Path) -> Result<(), Failure> {
        loop {
            screen.draw(&mut self.model).map_err(|error| terminal_failure(&error))?;
            // A new size may show groups not read yet.
            self.ask_for_missing();
            let first = match events.recv_timeout(self.patience()) {
                Ok(event) => Some(event),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            // Draw once for all pending events, such as repeated keys.
            for event in first.into_iter().chain(std::iter::from_fn(|| events.try_recv().ok())) {
                match event {
                    Event::Ended => return Ok(()),
                    Event::Taken(taken) => self.take(taken.map_err(|error| ended(control, &error))?),
                    Event::Terminal(TerminalEvent::Key(key)) => match self.model.key(key) {
                        Outcome::Quit => return Ok(()),
                        Outcome::Show => {}
                        Outcome::Redraw => screen.clear().map_err(|error| terminal_failure(&error))?,
                        Outcome::Suspend => suspend(screen).map_err(|error| terminal_failure(&error))?,
                    },
                    Event::Terminal(_) => {}
                }
            }
            self.ask_when_due()?;
        }
    }

    /// Returns the timeout of the wait for an event.
    fn patience(&self) -> Duration {
        match self.asked {
            Some(_) => SILENCE_STEP,
            None => self.due.saturating_duration_since(Instant::now()),
        }
    }

    fn take(&mut self, taken: Box<Taken>) {
        self.asked = None;
        self.model.silence = None;
        self.model.take(*taken);
        self.ask_for_missing();
    }

    /// Requests the figures of the next interval, unless a request is unanswered.
    fn ask_when_due(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        if let Some(asked) = self.asked {
            // The thread has panicked.
            if self.sampler.has_ended() {
                return Err(Failure::Failed("the thread that reads the control files has ended".into()));
            }
            let silence = now.saturating_duration_since(asked);
            self.model.silence = (silence >= SILENCE_MIN).then_some(silence);
            return Ok(());
        }
        if now < self.due {
            return Ok(());
        }
        self.due = now + self.model.interval;
        self.model.begin_tick();
        let wanted = requests::for_interval(&self.model);
        self.ask(wanted);
        Ok(())
    }

    fn ask_for_missing(&mut self) {
        if self.asked.is_none()
            && let Some(wanted) = requests::for_screen(&self.model)
        {
            self.ask(wanted);
        }
    }

    fn ask(&mut self, wanted: Wanted) {
        self.asked = Some(Instant::now());
        self.sampler.ask(wanted);
    }
}

fn ended(control: &Path, error: &io::Error) -> Failure {
    Failure::NotServed(format!(
        "{} is served no more: {error}; its daemon has ended or was unmounted",
        control.display()
    ))
}

/// Restores the terminal and stops, for the shell's job control; takes the terminal again when the
/// program continues.
fn suspend(screen: &mut Screen) -> io::Result<()> {
    screen.give_back();
    // Raised for this thread, so it does not go on before the stop.
    signal_hook::low_level::raise(signal_hook::consts::SIGTSTP)?;
    screen.take_again()
}
