//! The classifier: finds the paying group of a request.
//!
//! It is called once for each request, on the reader ([`Classifier::payer`]), and its answer is
//! kept with the request. Later the requesting thread may have ended, and another thread may have
//! its id. [`ProcessClassifier`] does this for the processes of this machine.

mod ancestry;
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

pub use pod_rules::AddPodError;
pub use proc_files::credentials_of;
pub(crate) use process_classifier::since_boot_ns;
pub use process_classifier::{ProcessClassifier, Tracking};
pub use rule_groups::RULE_GROUPS_MAX;
pub use rules::{Rule, RuleError, RuleKind};

/// The known facts about a request when it arrives.
#[derive(Clone, Copy)]
pub struct Requester<'a> {
    /// The requesting thread; 0 if there is none, or if it is not visible from here.
    pub tid: u32,
    /// Its user id.
    pub uid: u32,
    /// Its group id.
    pub gid: u32,
    /// The kernel queued the request after this time, in nanoseconds since boot. If the thread with
    /// this id started earlier, it made the request.
    pub queued_after_ns: u64,
    /// The group that opened the file of the request, if it names an open file.
    pub opener: Option<&'a Arc<Group>>,
    /// Returns the path of the object inside the volume. Does not sleep; called only if a rule
    /// needs it.
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
    /// This group, or its nearest living ancestor if it has been removed.
    Group(Arc<Group>),
    /// A group named by a rule, not yet in existence. [`Classifier::make_group`] creates it.
    Unmade {
        /// The names of the group, from the root down.
        names: Vec<OsString>,
        /// The deepest existing group on the path.
        above: Arc<Group>,
    },
}

impl Payer {
    /// Returns the group charged for the request until it is served.
    pub fn group_for_now(&self) -> &Arc<Group> {
        match self {
            Self::Group(group) | Self::Unmade { above: group, .. } => group,
        }
    }
}

/// Finds the group of a thread. Never touches our own mounts, and never fails: the root group is
/// the fallback.
pub trait Classifier: Send + Sync + fmt::Debug {
    /// Returns the paying group for the present work of thread `tid` with these ids; `tid` is 0 if
    /// the thread is not visible from here. May read `/proc` and create groups for a new thread;
    /// nearly free afterwards.
    fn classify(&self, tid: u32, uid: u32, gid: u32) -> Arc<Group>;

    /// Returns the paying group of a newly received request. Does not sleep, because it runs on a
    /// reader, which keeps other requests waiting.
    fn payer(&self, requester: &Requester<'_>) -> Payer {
        match requester.opener {
            Some(opener) if requester.tid == 0 => Payer::Group(Arc::clone(opener)),
            _ => Payer::Group(self.classify(requester.tid, requester.uid, requester.gid)),
        }
    }

    /// Creates the group with these names, or returns its nearest existing ancestor. May sleep.
    fn make_group(&self, names: &[OsString], above: &Arc<Group>) -> Arc<Group> {
        let _ = names;
        Arc::clone(above)
    }

    /// Returns whether answers depend on the user of a request.
    fn goes_by_user(&self) -> bool {
        false
    }

    /// Notes that only requests that make an inode name a user from now on, and a mapped one. The
    /// others have [`UNKNOWN_ID`](crate::wire::UNKNOWN_ID).
    fn lose_users(&self) {}

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

/// A classifier with all processes in one group.
#[derive(Debug)]
pub struct RootOnly(pub Arc<Group>);

impl Classifier for RootOnly {
    fn classify(&self, _tid: u32, _uid: u32, _gid: u32) -> Arc<Group> {
        Arc::clone(&self.0)
    }
}
