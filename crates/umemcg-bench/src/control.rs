//! A control tree without processes: the benchmarks need only its files.

use std::sync::Arc;

use umemcg::Group;
use umemcg_control::{Membership, MembershipError};

#[derive(Debug)]
struct NoProcesses;

/// Returns an empty membership.
pub fn no_processes() -> Arc<dyn Membership> {
    Arc::new(NoProcesses)
}

impl Membership for NoProcesses {
    fn processes(&self, _group: &Arc<Group>) -> Result<Vec<u32>, MembershipError> {
        Ok(Vec::new())
    }
    fn threads(&self, _group: &Arc<Group>) -> Result<Vec<u32>, MembershipError> {
        Ok(Vec::new())
    }
    fn attach_process(&self, _group: &Arc<Group>, _pid: u32) -> Result<(), MembershipError> {
        Err(MembershipError::NoSuchProcess)
    }
    fn attach_thread(&self, _group: &Arc<Group>, _tid: u32) -> Result<(), MembershipError> {
        Err(MembershipError::NoSuchProcess)
    }
    fn explicit_group(&self, _tid: u32) -> Result<Arc<Group>, MembershipError> {
        Err(MembershipError::NoSuchProcess)
    }
    fn kill(&self, _group: &Arc<Group>, _pid: u32) -> Result<(), MembershipError> {
        Ok(())
    }
    fn is_populated(&self, _group: &Arc<Group>) -> bool {
        false
    }
    fn close(&self, _group: &Arc<Group>) -> Result<(), MembershipError> {
        Ok(())
    }
    fn reopen(&self, _group: &Arc<Group>) {}
    fn id_from_viewer(&self, _viewer: u32, _id: u32) -> Result<u32, MembershipError> {
        Err(MembershipError::NoSuchProcess)
    }
    fn ids_for_viewer(&self, _viewer: u32, _ids: Vec<u32>) -> Vec<u32> {
        Vec::new()
    }
    fn process_of(&self, _tid: u32) -> Result<u32, MembershipError> {
        Err(MembershipError::NoSuchProcess)
    }
}
