//! Notifications to a service manager by systemd's protocol (`sd_notify(3)`): ready, reloading,
//! stopping, status, and watchdog.
//!
//! A message is a datagram of lines `NAME=VALUE` to the socket in `NOTIFY_SOCKET`: a path, or,
//! after an `@`, an abstract address. The crate for it (`sd-notify` 0.5) supports only paths, hence
//! this implementation. Without that variable nothing is sent.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The variable with the socket of the service manager.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";
/// The variable with the watchdog timeout, in microseconds.
const WATCHDOG_VARIABLE: &str = "WATCHDOG_USEC";
/// The variable with the process to watch.
const WATCHDOG_PROCESS_VARIABLE: &str = "WATCHDOG_PID";
/// The longest wait of a message for room in the socket of the service manager.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// The service manager of the daemon, if there is one.
#[derive(Debug, Default)]
pub struct ServiceManager {
    socket: Option<(UnixDatagram, SocketAddr)>,
}

impl ServiceManager {
    /// Returns the service manager from the environment. If its socket cannot be used, logs that
    /// and sends nothing.
    pub fn from_environment() -> Self {
        let Some(address) = std::env::var_os(SOCKET_VARIABLE) else { return Self::default() };
        Self::at(&address).unwrap_or_else(|error| {
            tracing::warn!(%error, ?address, "cannot use the socket in NOTIFY_SOCKET; the service manager is told nothing");
            Self::default()
        })
    }

    /// Returns the service manager listening at an address.
    ///
    /// # Errors
    /// `InvalidInput` if it is neither an absolute path nor a name with an `@` before it.
    pub fn at(address: &OsStr) -> io::Result<Self> {
        let address = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(address)?,
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(SEND_TIMEOUT))?;
        Ok(Self { socket: Some((socket, address)) })
    }

    /// Reports that the daemon serves.
    pub fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\n{}", status_line(status)));
    }

    /// Reports the start of a reload; [`ready`](Self::ready) reports its end.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let microseconds = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={microseconds}\n{}", status_line("reloading")));
    }

    /// Reports that the daemon ends, and asks for this much time.
    pub fn stopping(&self, within: Duration) {
        self.tell(&format!(
            "STOPPING=1\nEXTEND_TIMEOUT_USEC={}\n{}",
            within.as_micros(),
            status_line("writing everything back")
        ));
    }

    /// Reports the state of the daemon, in a human-readable line.
    pub fn status(&self, status: &str) {
        self.tell(&status_line(status));
    }

    /// Pings the watchdog.
    pub fn is_alive(&self) {
        self.tell("WATCHDOG=1\n");
    }

    /// Sends a message. A failure is logged: the daemon serves without a service manager, too.
    fn tell(&self, message: &str) {
        let Some((socket, address)) = &self.socket else { return };
        if let Err(error) = socket.send_to_addr(message.as_bytes(), address) {
            tracing::warn!(%error, message = message.trim_end(), "cannot tell the service manager");
        }
    }
}

/// Returns the line of a status, with line breaks replaced.
fn status_line(status: &str) -> String {
    format!("STATUS={}\n", status.trim_end().replace(['\n', '\r'], "; "))
}

/// Returns the watchdog timeout, if the watchdog is for this process.
pub fn watchdog_time() -> Option<Duration> {
    let variable = |name| std::env::var(name).ok();
    time_for(std::process::id(), variable(WATCHDOG_PROCESS_VARIABLE), variable(WATCHDOG_VARIABLE))
}

fn time_for(me: u32, process: Option<String>, microseconds: Option<String>) -> Option<Duration> {
    if process.is_some_and(|process| process.parse() != Ok(me)) {
        return None;
    }
    let microseconds = microseconds?.parse().ok().filter(|&time: &u64| time > 0)?;
    Some(Duration::from_micros(microseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 4096];
        let len = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    }

    #[test]
    fn messages_reach_a_path_and_a_name_without_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("umemcg-notify-test-{}", std::process::id());
        let by_path = (path.clone().into_os_string(), UnixDatagram::bind(&path).unwrap());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let by_name = (format!("@{name}").into(), UnixDatagram::bind_addr(&address).unwrap());
        for (address, socket) in [by_path, by_name] {
            let manager = ServiceManager::at(&address).unwrap();
            manager.ready("serving\nwell\n");
            assert_eq!(received(&socket), "READY=1\nSTATUS=serving; well\n");
            manager.reloading();
            let text = received(&socket);
            let time = text.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC=")).unwrap();
            assert!(text.starts_with("RELOADING=1\n") && time.parse::<u64>().unwrap() > 0, "{text}");
            manager.stopping(Duration::from_secs(30));
            let expected = "STOPPING=1\nEXTEND_TIMEOUT_USEC=30000000\nSTATUS=writing everything back\n";
            assert_eq!(received(&socket), expected);
            manager.is_alive();
            assert_eq!(received(&socket), "WATCHDOG=1\n");
        }
    }

    #[test]
    fn an_address_that_is_none_is_refused_and_a_gone_one_survived() {
        for address in ["", "relative", "vsock:2:1"] {
            assert!(ServiceManager::at(address.as_ref()).is_err(), "{address}");
        }
        ServiceManager::at("/nowhere/notify".as_ref()).unwrap().ready("serving");
        ServiceManager::default().ready("serving");
    }

    #[test]
    fn the_watchdog_is_for_the_process_that_it_names() {
        let time = |process: Option<&str>, time: Option<&str>| {
            time_for(7, process.map(str::to_owned), time.map(str::to_owned))
        };
        assert_eq!(time(Some("7"), Some("2000000")), Some(Duration::from_secs(2)));
        assert_eq!(time(None, Some("1")), Some(Duration::from_micros(1)));
        for (process, text) in [
            (Some("8"), Some("1")),
            (Some("x"), Some("1")),
            (None, None),
            (None, Some("0")),
            (None, Some("-1")),
        ] {
            assert_eq!(time(process, text), None, "{process:?} {text:?}");
        }
    }
}
