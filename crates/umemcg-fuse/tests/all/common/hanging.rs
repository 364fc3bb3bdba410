//! Control trees where requests about processes hang.

use std::fmt;
use std::sync::Arc;

use umemcg::Group;
use umemcg_control::{Membership, MembershipError};
use umemcg_fuse::ProcessClassifier;

/// Membership that calls something, which may take its time, when a process is to be moved or
/// threads are listed. Moves nothing.
pub struct Hanging(Arc<ProcessClassifier>, Box<dyn Fn() + Send + Sync>);

impl Hanging {
    pub fn new(classifier: &Arc<ProcessClassifier>, request: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self(Arc::clone(classifier), Box::new(request)))
    }
}

impl fmt::Debug for Hanging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hanging")
    }
}

impl Membership for Hanging {
    fn processes(&self, group: &Arc<Group>) -> Result<Vec<u32>, MembershipError> {
        self.0.processes(group)
    }
    fn threads(&self, group: &Arc<Group>) -> Result<Vec<u32>, MembershipError> {
        (self.1)();
        self.0.threads(group)
    }
    fn attach_process(&self, _: &Arc<Group>, _: u32) -> Result<(), MembershipError> {
        (self.1)();
        Ok(())
    }
    fn attach_thread(&self, group: &Arc<Group>, tid: u32) -> Result<(), MembershipError> {
        self.attach_process(group, tid)
    }
    fn explicit_group(&self, tid: u32) -> Result<Arc<Group>, MembershipError> {
        self.0.explicit_group(tid)
    }
    fn kill(&self, group: &Arc<Group>, pid: u32) -> Result<(), MembershipError> {
        self.0.kill(group, pid)
    }
    fn is_populated(&self, group: &Arc<Group>) -> bool {
        self.0.is_populated(group)
    }
    fn close(&self, group: &Arc<Group>) -> Result<(), MembershipError> {
        self.0.close(group)
    }
    fn reopen(&self, group: &Arc<Group>) {
        self.0.reopen(group);
    }
    fn id_from_viewer(&self, viewer: u32, id: u32) -> Result<u32, MembershipError> {
        self.0.id_from_viewer(viewer, id)
    }
    fn ids_for_viewer(&self, viewer: u32, ids: Vec<u32>) -> Vec<u32> {
        self.0.ids_for_viewer(viewer, ids)
    }
    fn process_of(&self, tid: u32) -> Result<u32, MembershipError> {
        self.0.process_of(tid)
    }
}
