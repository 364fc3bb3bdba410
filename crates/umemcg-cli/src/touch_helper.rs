//! The helper process for reporting changes of control files to inotify, and the daemon's end of
//! it.
//!
//! Setting a modification time causes the inotify event `IN_MODIFY`, but the daemon must not wait
//! for its own mounts. So at the first event of a file known to the kernel, it starts this program
//! a second time. The daemon writes paths below the mount point to the helper, each terminated by a
//! NUL, and waits for one byte after each. The helper has a file open only while touching it, so it
//! does not keep the mount busy. It ends when its standard input is closed, and so with the daemon,
//! even if the daemon is killed.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use umemcg_fuse::{Mounted, Touch};

use crate::args::TouchControlArguments;
use crate::exit::Failure;

/// The running program, even if its file has been replaced.
const PROGRAM: &str = "/proc/self/exe";
/// The terminator of a path, and the reply to it.
const END: u8 = 0;

/// The daemon's end.
pub struct TouchHelper {
    point: PathBuf,
    device: String,
    running: Option<Running>,
}

struct Running {
    child: Child,
    paths: ChildStdin,
    answers: ChildStdout,
}

impl TouchHelper {
    /// Creates the daemon's end. The process is started when first needed.
    pub fn new(mounted: &Mounted) -> Self {
        Self { point: mounted.point().to_owned(), device: mounted.device_number().to_owned(), running: None }
    }

    fn start(&self) -> io::Result<Running> {
        let mut command = Command::new(PROGRAM);
        command.arg0("umemcg").arg("__touch-control").arg(&self.point).arg(&self.device);
        // In its own process group, so that a Ctrl-C for the daemon does not end the helper first.
        command.current_dir("/").process_group(0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let (Some(paths), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        Ok(Running { child, paths, answers })
    }
}

impl Touch for TouchHelper {
    fn touch(&mut self, path: &Path) -> io::Result<()> {
        let mut running = match self.running.take() {
            Some(running) => running,
            None => self.start()?,
        };
        running.ask(path)?;
        self.running = Some(running);
        Ok(())
    }
}

impl Running {
    fn ask(&mut self, path: &Path) -> io::Result<()> {
        let mut line = path.as_os_str().as_bytes().to_vec();
        line.push(END);
        self.paths.write_all(&line)?;
        self.answers.read_exact(&mut [END])
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the helper until its standard input is closed.
///
/// # Errors
/// When the daemon ended in the middle of a path.
pub fn run(arguments: &TouchControlArguments) -> Result<(), Failure> {
    serve(arguments).map_err(|error| Failure::Failed(format!("the daemon does not answer: {error}")))
}

fn serve(arguments: &TouchControlArguments) -> io::Result<()> {
    let (mut paths, mut answers) = (BufReader::new(io::stdin().lock()), io::stdout().lock());
    let mut path = Vec::new();
    while paths.read_until(END, &mut path)? > 0 {
        path.pop();
        let file = arguments.point.join(std::ffi::OsStr::from_bytes(&path));
        // Ignore errors: the file has been removed, or cannot be reached from here.
        let _ = touch(&file, &arguments.device);
        answers.write_all(&[END])?;
        answers.flush()?;
        path.clear();
    }
    Ok(())
}

/// Touches a file, unless another file system has been mounted there.
fn touch(file: &Path, device: &str) -> rustix::io::Result<()> {
    let file =
        rustix::fs::openat(CWD, file, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    // Without a request to the daemon.
    let stat =
        rustix::fs::statx(&file, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE)?;
    if format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor) != device {
        return Err(rustix::io::Errno::XDEV);
    }
    let time = |nanoseconds| Timespec { tv_sec: 0, tv_nsec: nanoseconds };
    // Only the modification time: both times together would be `IN_ATTRIB`.
    let times = Timestamps { last_access: time(UTIME_OMIT), last_modification: time(UTIME_NOW) };
    rustix::fs::utimensat(&file, c"", &times, AtFlags::EMPTY_PATH)
}
