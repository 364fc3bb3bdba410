//! Whose request is it? The one question that the file system asks about a process.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use umemcg::Group;

/// Knows the group of a thread. Never touches mounts of ours, and never fails: the root group is the last answer.
pub trait Classifier: Send + Sync + fmt::Debug {
    /// The group that pays for what thread `tid` with these ids does; `tid` is 0 when the thread is not visible from here.
    /// May read `/proc` and make groups when the thread was not seen before; next to nothing afterwards.
    fn classify(&self, tid: u32, uid: u32, gid: u32) -> Arc<Group>;

    /// The same, if it is known without sleeping. Asked on threads that others' requests wait for.
    fn classify_known(&self, tid: u32, uid: u32, gid: u32) -> Option<Arc<Group>> {
        let _ = (tid, uid, gid);
        None
    }

    /// The group that pays for a request about one object: rules may look at its path inside the volume. `path` does not
    /// sleep, and is asked for only when a rule wants it.
    fn classify_at(&self, tid: u32, uid: u32, gid: u32, path: &dyn Fn() -> Option<PathBuf>) -> Arc<Group> {
        let _ = path;
        self.classify(tid, uid, gid)
    }

    /// Whether the group may depend on the object, so that only [`classify_at`](Self::classify_at) knows it.
    fn has_path_rules(&self) -> bool {
        false
    }
}

/// Everybody is in one group.
#[derive(Debug)]
pub struct RootOnly(pub Arc<Group>);

impl Classifier for RootOnly {
    fn classify(&self, _tid: u32, _uid: u32, _gid: u32) -> Arc<Group> {
        Arc::clone(&self.0)
    }
    fn classify_known(&self, _tid: u32, _uid: u32, _gid: u32) -> Option<Arc<Group>> {
        Some(Arc::clone(&self.0))
    }
}
