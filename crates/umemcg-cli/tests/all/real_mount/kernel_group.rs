//! A cgroup of the kernel, of version 1 or 2, that limits and counts the memory or the threads of
//! the processes in it.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Pid;

use crate::harness::until;

/// See the module text. Dropping it waits until its processes have ended.
pub struct KernelGroup {
    directory: PathBuf,
    /// The files of its limit and of its usage.
    files: Files,
}

type Files = [&'static str; 2];

impl KernelGroup {
    /// Makes one for memory; none where this process may not make one.
    pub fn of_memory(name: &str) -> Option<Self> {
        let version_1 = ["memory.limit_in_bytes", "memory.usage_in_bytes"];
        Self::new("memory", name, [version_1, ["memory.max", "memory.current"]])
    }

    /// Makes one for threads; none where this process may not make one.
    pub fn of_threads(name: &str) -> Option<Self> {
        Self::new("pids", name, [["pids.max", "pids.current"]; 2])
    }

    fn new(controller: &str, name: &str, versions: [Files; 2]) -> Option<Self> {
        let name = format!("umemcg-test-{}-{name}", std::process::id());
        let top = Path::new("/sys/fs/cgroup");
        [top.join(controller), top.to_owned()].iter().zip(versions).find_map(|(hierarchy, files)| {
            let directory = hierarchy.join(&name);
            fs::create_dir(&directory).ok()?;
            let group = Self { directory, files };
            // Version 2 may have the controller turned off.
            group.directory.join(files[0]).exists().then_some(group)
        })
    }

    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// Sets its limit: bytes, or threads.
    #[track_caller]
    pub fn limit(&self, most: u64) {
        fs::write(self.directory.join(self.files[0]), most.to_string()).unwrap();
    }

    /// Returns the bytes or the threads in it.
    #[track_caller]
    pub fn usage(&self) -> u64 {
        fs::read_to_string(self.directory.join(self.files[1])).unwrap().trim().parse().unwrap()
    }

    /// Moves a process into it.
    #[track_caller]
    pub fn add(&self, process: Pid) {
        fs::write(self.directory.join("cgroup.procs"), process.as_raw_nonzero().to_string()).unwrap();
    }

    /// Returns a command that moves a shell into it.
    pub fn enter(&self) -> String {
        format!("echo $$ > {}/cgroup.procs", self.directory.display())
    }
}

impl Drop for KernelGroup {
    fn drop(&mut self) {
        until("the processes of the kernel's group have ended", || fs::remove_dir(&self.directory).is_ok());
    }
}
