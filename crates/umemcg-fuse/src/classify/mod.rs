//! The classifier: finds the group that pays for a request.
//!
//! It is called once for each request, on the thread that has received the request
//! ([`Classifier::payer`]), and the answer is kept with the request. Later the requesting thread
//! may have ended, and another thread may have its id. [`ProcessClassifier`] does this for the
//! processes of this machine.

mod ancestry;
pub(crate) mod descriptors;
mod eventfd_writer;
mod mirror;
mod pid_namespace;
mod pod_rules;
pub(crate) mod proc_files;
mod process_classifier;
mod rule_groups;
mod rules;
#[cfg(test)]
pub(crate) mod testing;
mod thread_cache;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use umemcg::Group;

pub use descriptors::ProcessDescriptors;
pub use pod_rules::AddPodError;
pub use proc_files::credentials_of;
pub(crate) use process_classifier::since_boot_ns;
pub use process_classifier::{ProcessClassifier, Tracking};
pub use rule_groups::RULE_GROUPS_MAX;
pub use rules::{Rule, RuleError, RuleKind};

/// The known facts about a request when it arrives.
#[derive(Clone, Copy)]
pub struct Requester<'a> {
    /// The thread that made it; 0 when there is none, or none that is visible from here.
    pub tid: u32,
    /// Its user id.
    pub uid: u32,
    /// Its group id.
    pub gid: u32,
    /// The kernel queued the request after this time, in nanoseconds since boot. A thread that
    /// started earlier and has that id now is the one that made the request.
    pub queued_after_ns: u64,
    /// The group that opened the file which the request goes through, if it goes through one.
    pub opener: Option<&'a Arc<Group>>,
    /// The path of the object inside the volume. Does not sleep; asked for only when a rule wants
    /// it.
    pub path: &'a dyn Fn() -> Option<PathBuf>,
}

impl fmt::Debug for Requester<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requester").field("tid", &self.tid).field("uid", &self.uid).finish_non_exhaustive()
    }
}

/// The group that pays for a request.
#[derive(Debug, Clone)]
pub enum Payer {
    /// This group, or the nearest one above when it has been removed meanwhile.
    Group(Arc<Group>),
    /// A group that a rule names and that does not exist yet. [`Classifier::make_group`] creates
    /// it.
    Unmade {
        /// The names of the group, from the root down.
        names: Vec<OsString>,
        /// The deepest group on the path that exists.
        above: Arc<Group>,
    },
}

impl Payer {
    /// Returns the group that is charged for the request until it is served.
    pub fn group_for_now(&self) -> &Arc<Group> {
        match self {
            Self::Group(group) | Self::Unmade { above: group, .. } => group,
        }
    }
}

/// Finds the group of a thread. Never touches our own mounts, and never fails: the root group is
/// the fallback.
pub trait Classifier: Send + Sync + fmt::Debug {
    /// Returns the group that pays for what thread `tid` with these ids does now; `tid` is 0 when
    /// the thread is not visible from here. May read `/proc` and create groups when the thread was
    /// not seen before; nearly free afterwards.
    fn classify(&self, tid: u32, uid: u32, gid: u32) -> Arc<Group>;

    /// Returns the group that pays for a request that has just been received. Does not sleep,
    /// because it runs on a thread that other requests wait for.
    fn payer(&self, requester: &Requester<'_>) -> Payer {
        match requester.opener {
            Some(opener) if requester.tid == 0 => Payer::Group(Arc::clone(opener)),
            _ => Payer::Group(self.classify(requester.tid, requester.uid, requester.gid)),
        }
    }

    /// Creates the group with these names, or returns the nearest ancestor that exists. May sleep.
    fn make_group(&self, names: &[OsString], above: &Arc<Group>) -> Arc<Group> {
        let _ = names;
        Arc::clone(above)
    }

    /// Places the processes of a pod of Kubernetes into a group, if it exists. Replaces the rule
    /// for that pod.
    ///
    /// # Errors
    /// [`AddPodError`]; then nothing has changed.
    fn add_pod(&self, uid: &str, group: &str) -> Result<(), AddPodError> {
        let _ = (uid, group);
        Ok(())
    }

    /// Removes the rule for a pod, if there is one.
    fn remove_pod(&self, uid: &str) {
        let _ = uid;
    }
}

/// A classifier for which all processes are in one group.
#[derive(Debug)]
pub struct RootOnly(pub Arc<Group>);

impl Classifier for RootOnly {
    fn classify(&self, _tid: u32, _uid: u32, _gid: u32) -> Arc<Group> {
        Arc::clone(&self.0)
    }
}
