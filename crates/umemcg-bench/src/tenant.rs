//! A tenant of an experiment: a process of its own, placed in its group before its first access. It
//! waits for a start message.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::neighbour_load::{Done, Load, Tempo, Work};
use crate::options::Failure;

/// A tenant that has said nothing for so long hangs.
const ENDS_WITHIN: Timespec = Timespec { tv_sec: 20 * 60, tv_nsec: 0 };

/// A ready tenant.
pub struct Tenant {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Tenant {
    /// Starts one; `place` puts its process where it belongs before it touches anything.
    pub fn start(
        load: (Work, PathBuf, u64),
        time: Duration,
        tempo: Tempo,
        place: impl FnOnce(u32) -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        let program = std::env::current_exe().map_err(Failure::at("cannot find this program"))?;
        // A shell that waits until it has been placed, then becomes the tenant: same process,
        // single thread.
        let mut child = Command::new("sh")
            .args(["-c", "read placed; exec \"$@\"", "sh"])
            .arg(program)
            .args(Load::arguments(load.0, load.1, load.2, time, tempo))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Failure::at("cannot start a tenant"))?;
        let says = child.stdout.take().map(BufReader::new);
        let Some(says) = says else { return Err(Failure::Setup("a tenant without a voice".into())) };
        let mut tenant = Self { child, says };
        place(tenant.child.id())?;
        tenant.tell()?;
        let ready = tenant.hear()?;
        if ready.trim() != "ready" {
            return Err(Failure::Wrong(format!("a tenant said {ready:?}")));
        }
        Ok(tenant)
    }

    /// Sends the start message.
    pub fn tell(&mut self) -> Result<(), Failure> {
        let Some(stdin) = &mut self.child.stdin else { return Ok(()) };
        stdin.write_all(b"go\n").and_then(|()| stdin.flush()).map_err(Failure::at("cannot speak to a tenant"))
    }

    fn hear(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.says.read_line(&mut line).map_err(Failure::at("cannot hear a tenant"))?;
        Ok(line)
    }

    /// Waits for its end. Returns its result.
    pub fn done(mut self) -> Result<Done, Failure> {
        let mut said = [PollFd::new(self.says.get_ref(), PollFlags::IN)];
        if poll(&mut said, Some(&ENDS_WITHIN)).is_ok_and(|nr| nr == 0) {
            return Err(Failure::Wrong(format!("a tenant did not end within {} s", ENDS_WITHIN.tv_sec)));
        }
        let line = self.hear()?;
        let status = self.child.wait().map_err(Failure::at("cannot wait for a tenant"))?;
        if !status.success() {
            return Err(Failure::Wrong(format!("a tenant ended with {status}")));
        }
        serde_json::from_str(&line).map_err(Failure::at("a tenant makes no sense"))
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
