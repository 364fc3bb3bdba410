//! Logging to stderr through `tracing`, together with the program's own messages, in one format.
//!
//! The filter comes from the environment (`UMEMCG_LOG`), else the command line (`-v`), else the
//! configuration (`log`); a reload may change the last. Essential messages ([`tell`]) are not
//! filtered. [`LogRate`] bounds the rate of warnings.
//!
//! stderr may be gone: a closed terminal, a pipe without a reader. This must not end a daemon, so
//! nothing here panics on a failed write.

use std::fmt::{self, Display};
use std::io::{self, Write};
use std::sync::OnceLock;

use crate::log_rate::LogRate;
use crate::plain_text::{lines, one_line};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

/// Environment variable with a filter. Overrides `-v`. For example `umemcg_fuse=trace,info`.
const FILTER_VARIABLE: &str = "UMEMCG_LOG";
/// Set by systemd: the device and inode of the journal's socket, if the output of a service goes to
/// the journal.
const JOURNAL_VARIABLE: &str = "JOURNAL_STREAM";
/// The filter without `-v`.
const DEFAULT_FILTER: &str = "warn";

/// The format of messages on stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines for people
    Text,
    /// Lines with a priority before them, as the journal of systemd takes them from a service
    Journald,
    /// A JSON object for each line
    Json,
}

impl LogFormat {
    /// Returns the default format for stderr.
    fn of_stderr() -> Self {
        let stderr = rustix::fs::fstat(io::stderr()).ok();
        let journal = std::env::var(JOURNAL_VARIABLE).ok();
        match stderr.is_some_and(|stat| is_journal(journal.as_deref(), stat.st_dev, stat.st_ino)) {
            true => Self::Journald,
            false => Self::Text,
        }
    }
}

/// Returns whether `variable` names the file of this device and inode.
fn is_journal(variable: Option<&str>, device: u64, inode: u64) -> bool {
    variable.and_then(|text| text.split_once(':')) == Some((&device.to_string(), &inode.to_string()))
}

/// Returns the priority of syslog for a level.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// The logging state of this process.
struct Logging {
    format: LogFormat,
    filter: Handle<EnvFilter, Registry>,
    /// The environment or the command line sets the filter.
    is_filter_given: bool,
}

static LOGGING: OnceLock<Logging> = OnceLock::new();

/// Starts logging. Without `-v`, only warnings and errors appear. Without a format, uses the
/// journal's format if stderr goes to the journal, else text.
pub fn start(verbose: u8, format: Option<LogFormat>) {
    let given = EnvFilter::try_from_env(FILTER_VARIABLE).ok().or(match verbose {
        0 => None,
        1 => Some(EnvFilter::new("info")),
        2 => Some(EnvFilter::new("debug")),
        _ => Some(EnvFilter::new("trace")),
    });
    let is_filter_given = given.is_some();
    let given = given.unwrap_or_else(|| EnvFilter::new(DEFAULT_FILTER));
    let (filter, handle) = reload::Layer::new(given);
    let format = format.unwrap_or_else(LogFormat::of_stderr);
    // Fails only if this was called before.
    let _ = LOGGING.set(Logging { format, filter: handle, is_filter_given });
    // Without `log_internal_errors`: it panics when stderr is gone. Without colours: control
    // sequences are escaped.
    let layer =
        tracing_subscriber::fmt::layer().log_internal_errors(false).with_writer(io::stderr).with_ansi(false);
    let layer = match format {
        LogFormat::Text => layer.event_format(OneLine::timed()).boxed(),
        LogFormat::Journald => layer.event_format(OneLine::prioritized()).boxed(),
        LogFormat::Json => layer.json().boxed(),
    };
    let rate = LogRate::new(|level, message| tell(level, message));
    // Fails only if a subscriber is already installed; that subscriber logs then.
    let _ = Registry::default().with(filter).with(layer.with_filter(rate)).try_init();
}

/// Sets the filter of the configuration, unless the environment or the command line sets one.
/// Returns whether the configuration is in force.
///
/// # Errors
/// A message for the user if the filter is invalid; then nothing has changed.
pub fn set_filter(configured: Option<&str>) -> Result<bool, String> {
    check_filter(configured)?;
    let Some(logging) = LOGGING.get() else { return Ok(configured.is_none()) };
    if logging.is_filter_given {
        return Ok(configured.is_none());
    }
    // Fails only after the subscriber is dropped, and it never is.
    let _ = logging.filter.reload(EnvFilter::new(configured.unwrap_or(DEFAULT_FILTER)));
    Ok(true)
}

/// Checks a filter of the configuration.
///
/// # Errors
/// A message for the user.
pub fn check_filter(configured: Option<&str>) -> Result<(), String> {
    let Some(text) = configured else { return Ok(()) };
    EnvFilter::try_new(text).map(drop).map_err(|_| {
        format!(
            "`{text}` is no filter; write a level (error, warn, info, debug, trace), or such as \
             `warn,umemcg_fuse=debug`"
        )
    })
}

/// Prints a message for the user to stderr, regardless of the filter.
pub fn tell(level: Level, message: impl Display) {
    let format = LOGGING.get().map_or(LogFormat::Text, |logging| logging.format);
    let text = told(format, level, &lines(&message.to_string()));
    // A closed terminal ends no daemon.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Formats a message.
fn told(format: LogFormat, level: Level, message: &str) -> String {
    match format {
        LogFormat::Text => format!("umemcg: {message}\n"),
        LogFormat::Journald => prefixed(level, message),
        LogFormat::Json => {
            let mut time = String::new();
            // Writing to a string does not fail.
            let _ = SystemTime.format_time(&mut Writer::new(&mut time));
            let line = serde_json::json!({
                "timestamp": time,
                "level": level.as_str(),
                "fields": { "message": message },
                "target": "umemcg",
            });
            format!("{line}\n")
        }
    }
}

/// Returns a text with a priority before each line.
fn prefixed(level: Level, text: &str) -> String {
    let priority = priority(level);
    text.lines().map(|line| format!("<{priority}>{line}\n")).collect()
}

/// Writes each event in one line. Escapes control sequences: file names may contain them.
enum OneLine {
    /// With its time and level.
    Timed(Format<Full, SystemTime>),
    /// For the journal: it adds the time itself, and takes the level as a priority.
    Prioritized(Format<Full, ()>),
}

impl OneLine {
    fn timed() -> Self {
        Self::Timed(Format::default().with_ansi(false))
    }

    fn prioritized() -> Self {
        Self::Prioritized(Format::default().without_time().with_level(false).with_ansi(false))
    }
}

impl<S, N> FormatEvent<S, N> for OneLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = String::new();
        match self {
            Self::Timed(format) => format.format_event(context, Writer::new(&mut text), event)?,
            Self::Prioritized(format) => format.format_event(context, Writer::new(&mut text), event)?,
        }
        let text = one_line(text.trim_end_matches('\n'));
        match self {
            Self::Timed(_) => writeln!(writer, "{text}"),
            Self::Prioritized(_) => writer.write_str(&prefixed(*event.metadata().level(), &text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn the_journal_is_known_by_device_and_inode() {
        assert!(is_journal(Some("9:77"), 9, 77));
        for variable in [None, Some(""), Some("9"), Some("9:78"), Some("8:77"), Some("9:77:1")] {
            assert!(!is_journal(variable, 9, 77), "{variable:?}");
        }
    }

    #[test]
    fn messages_have_the_form_of_the_log() {
        let told = |format| told(format, Level::ERROR, "no room\nfor 7 files");
        assert_eq!(told(LogFormat::Text), "umemcg: no room\nfor 7 files\n");
        assert_eq!(told(LogFormat::Journald), "<3>no room\n<3>for 7 files\n");
        let json: serde_json::Value = serde_json::from_str(&told(LogFormat::Json)).unwrap();
        assert_eq!(
            (&json["level"], &json["fields"]["message"]),
            (&"ERROR".into(), &"no room\nfor 7 files".into())
        );
    }

    #[test]
    fn filters_of_the_configuration_are_checked() {
        for good in ["warn", "off", "warn,umemcg_fuse=debug"] {
            check_filter(Some(good)).unwrap();
        }
        assert!(check_filter(Some("umemcg_fuse=loud")).unwrap_err().contains("umemcg_fuse=loud"));
        check_filter(None).unwrap();
    }

    /// Collects written bytes.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the output for three events.
    fn written(format: OneLine) -> String {
        let written = Written::default();
        let writer = written.clone();
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .event_format(format);
        tracing::subscriber::with_default(Registry::default().with(layer), || {
            tracing::error!(error = %"a\r\u{1b}[2J", "first\nsecond");
            tracing::warn!(volume = "a", "slow");
            tracing::debug!("detail");
        });
        String::from_utf8(written.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn each_event_is_a_line_that_a_terminal_shows() {
        for format in [OneLine::timed(), OneLine::prioritized()] {
            let text = written(format);
            assert_eq!(text.lines().count(), 3, "{text}");
            assert!(text.contains(r"first\nsecond") && text.contains(r"a\r\u{1b}[2J"), "{text}");
            assert!(text.contains("slow volume=\"a\""), "{text}");
            assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        }
    }

    #[test]
    fn each_event_in_the_journal_has_its_priority() {
        let text = written(OneLine::prioritized());
        let starts: Vec<&str> = text.lines().map(|line| &line[..3]).collect();
        assert_eq!(starts, ["<3>", "<4>", "<7>"], "{text}");
        assert!(written(OneLine::timed()).contains(" WARN "));
    }
}
