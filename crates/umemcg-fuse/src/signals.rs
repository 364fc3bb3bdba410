//! Determines from `/proc/<tid>/status` whether a thread is being killed.
//!
//! Few files about a process can be read without its mmap lock, and `status` is one of them. The
//! thread may hold that lock while it waits for us (a fault on a mapped page). A fatal signal
//! without a core dump becomes SIGKILL for each thread of the process as soon as it is sent, so one
//! bit is enough for nearly all signals. Signals with a core dump are not converted; the masks of
//! blocked, ignored and caught signals show whether they will be fatal.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

/// The state of a thread: running or being killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// A fatal signal is pending, or the thread is gone.
    Dying,
    /// No fatal signal is pending.
    Living,
    /// It cannot be inspected.
    Unknown,
}

/// Returns a bit in the masks of `/proc`.
const fn bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

const SIGKILL: u64 = bit(9);
/// Signals whose default is to end the process with a core dump.
const CORE_DUMPING: u64 =
    bit(3) | bit(4) | bit(5) | bit(6) | bit(7) | bit(8) | bit(11) | bit(24) | bit(25) | bit(31);
/// The file is about 1.5 KiB.
const STATUS_BYTES_MAX: u64 = 16 << 10;
/// `f_type` of procfs in `struct statfs`.
const PROC_SUPER_MAGIC: i64 = 0x9fa0;

/// Reads the state of threads from a verified `/proc`.
#[derive(Debug)]
pub struct SignalReader {
    proc: Option<OwnedFd>,
}

impl SignalReader {
    /// Opens `/proc`. Unless it shows the same ids as the kernel's requests, every thread is
    /// [`Liveness::Unknown`].
    pub fn new() -> Self {
        let proc =
            rustix::fs::open("/proc", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let proc = proc.ok().filter(|proc| {
            let is_proc = rustix::fs::fstatfs(proc).is_ok_and(|fs| fs.f_type == PROC_SUPER_MAGIC);
            // A `/proc` of another pid namespace shows this process under another id.
            let me = rustix::fs::readlinkat(proc, "self", Vec::new());
            is_proc && me.is_ok_and(|me| me.to_bytes() == std::process::id().to_string().as_bytes())
        });
        Self { proc }
    }

    /// Returns whether thread `tid` is being killed.
    pub fn liveness(&self, tid: u32) -> Liveness {
        let Some(proc) = self.proc.as_ref().filter(|_| tid != 0) else { return Liveness::Unknown };
        let file = rustix::fs::openat(
            proc.as_fd(),
            format!("{tid}/status"),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        // A thread waiting for an answer exists. If it is not listed, it is hidden from the daemon.
        let Ok(file) = file else { return Liveness::Unknown };
        // Not text: a process may have any bytes in its name.
        let mut text = Vec::new();
        match File::from(file).take(STATUS_BYTES_MAX).read_to_end(&mut text) {
            Ok(_) => parse_liveness(&text),
            Err(_) => Liveness::Unknown,
        }
    }
}

impl Default for SignalReader {
    fn default() -> Self {
        Self::new()
    }
}

/// Parses a `status` file; [`Liveness::Unknown`] if it does not show the pending signals.
pub(crate) fn parse_liveness(status: &[u8]) -> Liveness {
    let mask = |key: &[u8]| {
        let mut lines = status.split(|&byte| byte == b'\n');
        let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(b":"))?;
        u64::from_str_radix(std::str::from_utf8(value).ok()?.trim(), 16).ok()
    };
    let (Some(thread), Some(process)) = (mask(b"SigPnd"), mask(b"ShdPnd")) else { return Liveness::Unknown };
    let pending = thread | process;
    let survived = mask(b"SigBlk").unwrap_or(0) | mask(b"SigIgn").unwrap_or(0) | mask(b"SigCgt").unwrap_or(0);
    if pending & SIGKILL != 0 || pending & CORE_DUMPING & !survived != 0 {
        Liveness::Dying
    } else {
        Liveness::Living
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(pending: u64, shared: u64, caught: u64) -> String {
        format!(
            "Name:\tx\nSigQ:\t0/1\nSigPnd:\t{pending:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{:016x}\nSigIgn:\t{:016x}\nSigCgt:\t{caught:016x}\n",
            0, 0
        )
    }

    #[test]
    fn only_what_kills_dooms() {
        for (pending, shared, caught, doom) in [
            (0, 0, 0, Liveness::Living),
            (SIGKILL, 0, 0, Liveness::Dying),
            (0, SIGKILL, 0, Liveness::Dying),
            (bit(14), 0, bit(14), Liveness::Living),
            (bit(3), 0, 0, Liveness::Dying),
            (bit(3), 0, bit(3), Liveness::Living),
        ] {
            assert_eq!(
                parse_liveness(status(pending, shared, caught).as_bytes()),
                doom,
                "{pending:x} {shared:x} {caught:x}"
            );
        }
        assert_eq!(parse_liveness(b"Name:\tx\n"), Liveness::Unknown);
    }

    #[test]
    fn this_thread_lives() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert_eq!(SignalReader::new().liveness(tid), Liveness::Living);
        assert_eq!(SignalReader::new().liveness(0), Liveness::Unknown);
    }

    /// The kernel shows the bytes of a name as they are, but for white space and backslashes.
    #[test]
    fn a_thread_with_a_name_that_is_no_text_lives() {
        let named = std::thread::spawn(|| {
            rustix::thread::set_name(c"\xff\xfe").unwrap();
            let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            SignalReader::new().liveness(tid)
        });
        assert_eq!(named.join().unwrap(), Liveness::Living);
    }
}
