//! Volumes of host directories: names and attributes are the host's, content is cached in the
//! engine.
//!
//! `volume` has the operations. `directory` has the capabilities of the host's directory,
//! `syscalls` the calls on its descriptors. `inode_table` is the table of referenced inodes,
//! `inodes` finds them again on the host, `name_shrinker` gives them back. `content` is a file's
//! cached content, `store` its backing file, `shown_times` its shown times meanwhile. `open_file`
//! and `dir_handle` are open files and directories. `outside_watch` notifies the kernel of other
//! programs' changes.

mod change_backlog;
mod clock;
mod content;
mod descriptor_cache;
pub(crate) mod descriptor_share;
mod dir_handle;
mod dir_position;
pub(crate) mod directory;
mod file_privileges;
mod handle_form;
mod inode_names;
mod inode_table;
mod inodes;
mod name_shrinker;
mod open_file;
mod outside_watch;
mod recent_changes;
pub(crate) mod shown_times;
pub(crate) mod store;
pub(crate) mod syscalls;
mod unsynced;
mod volume;

pub use volume::HostVolume;

/// Support of the tests of these modules: a volume in a temporary directory, and threads seen from
/// outside.
#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::path::PathBuf;
    use std::sync::Arc;

    use rustix::fs::OFlags;
    use rustix::process::Pid;

    use crate::attr::NodeId;
    use crate::caller::Caller;
    use crate::host::content::Content;
    use crate::host::volume::HostVolume;
    use crate::volume::{Create, VolumeFile};
    use crate::volume_config::VolumeConfig;
    use umemcg::{Engine, EngineConfig, Group};

    /// A volume with its directory.
    pub(crate) struct Fixture {
        pub(crate) vfs: Arc<HostVolume>,
        pub(crate) group: Arc<Group>,
        dir: tempfile::TempDir,
    }

    impl Fixture {
        pub(crate) fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let engine = Engine::new(EngineConfig::new(64 << 20)).unwrap();
            let vfs = HostVolume::new(&engine, VolumeConfig::new(dir.path())).unwrap();
            Self { vfs, group: Arc::clone(engine.root()), dir }
        }

        /// Returns the superuser.
        pub(crate) fn caller(&self) -> Caller {
            Caller {
                uid: 0,
                gid: 0,
                supplementary_gid: None,
                group: Arc::clone(&self.group),
                umask: 0o022,
                thread: 0,
            }
        }

        /// Creates and opens a file, and returns it with its path on the host.
        pub(crate) fn create(&self, name: &str) -> (PathBuf, Arc<dyn VolumeFile>) {
            let flags = OFlags::RDWR | OFlags::EXCL;
            let made = self.vfs.create(&self.caller(), NodeId::ROOT, OsStr::new(name), 0o644, flags);
            (self.dir.path().join(name), made.unwrap().1)
        }

        /// Returns the cached content of an open file.
        pub(crate) fn content(&self, file: &Arc<dyn VolumeFile>) -> Arc<Content> {
            self.vfs.inodes.find(file.node()).unwrap().content.unwrap()
        }
    }

    /// Waits until a thread of this process sleeps or has ended.
    pub(crate) fn until_asleep(thread: Pid) {
        let path = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
        loop {
            let Ok(stat) = std::fs::read_to_string(&path) else { return };
            if stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S')) {
                return;
            }
            std::thread::yield_now();
        }
    }

    thread_local! {
        static HERE: std::cell::RefCell<Option<Box<dyn FnOnce()>>> = const { std::cell::RefCell::new(None) };
    }

    /// Has this thread call `run` in the middle of its next change of attributes, removal of a name
    /// or write to the host.
    pub(crate) fn at_pause(run: impl FnOnce() + 'static) {
        HERE.with(|here| *here.borrow_mut() = Some(Box::new(run)));
    }

    /// Runs the function of [`at_pause`], if this thread has one.
    pub(crate) fn pause_here() {
        if let Some(run) = HERE.with(|here| here.borrow_mut().take()) {
            run();
        }
    }
}
