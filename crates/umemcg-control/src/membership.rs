//! The processes of each group. The control tree shows and changes membership and enforces
//! permissions; the process layer stores membership and follows forks.

use std::fmt::Debug;
use std::sync::Arc;

use thiserror::Error;
use umemcg::Group;

/// The reason why a process could not be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum MembershipError {
    /// No such process or thread, or it is a zombie.
    #[error("no such process")]
    NoSuchProcess,
    /// The group is being removed or is gone.
    #[error("the group was removed")]
    Gone,
    /// The group has living processes.
    #[error("the group has processes")]
    Populated,
    /// The system refused.
    #[error("{0}")]
    System(rustix::io::Errno),
}

/// Explicit membership of processes in groups. Ids are those of the daemon's own pid namespace. All
/// methods may read `/proc` and may wait for the kernel for some milliseconds; none waits for
/// another process. All may fail with [`MembershipError::System`].
pub trait Membership: Debug + Send + Sync {
    /// Returns the ids of the processes with at least one thread in this group itself, in ascending
    /// order.
    ///
    /// # Errors
    /// [`MembershipError`].
    fn processes(&self, group: &Arc<Group>) -> Result<Vec<u32>, MembershipError>;
    /// Returns the ids of the threads in this group itself, in ascending order.
    ///
    /// # Errors
    /// [`MembershipError`].
    fn threads(&self, group: &Arc<Group>) -> Result<Vec<u32>, MembershipError>;
    /// Moves all threads of a process; children forked from now on follow it.
    ///
    /// # Errors
    /// [`MembershipError::NoSuchProcess`], or [`MembershipError::Gone`].
    fn attach_process(&self, group: &Arc<Group>, pid: u32) -> Result<(), MembershipError>;
    /// Moves one thread.
    ///
    /// # Errors
    /// [`MembershipError::NoSuchProcess`], or [`MembershipError::Gone`].
    fn attach_thread(&self, group: &Arc<Group>, tid: u32) -> Result<(), MembershipError>;
    /// Returns the group of the last explicit move of a thread; the root if it was never moved.
    ///
    /// # Errors
    /// [`MembershipError::NoSuchProcess`].
    fn explicit_group(&self, tid: u32) -> Result<Arc<Group>, MembershipError>;
    /// Kills a process if it is in this group itself. Succeeds if the process has already ended.
    ///
    /// # Errors
    /// [`MembershipError::System`].
    fn kill(&self, group: &Arc<Group>, pid: u32) -> Result<(), MembershipError>;
    /// Returns whether a living process is in this group itself.
    fn is_populated(&self, group: &Arc<Group>) -> bool;
    /// Closes the group to new members, so that it can be removed.
    ///
    /// # Errors
    /// [`MembershipError::Populated`] when a living process is in it; then nothing has changed.
    fn close(&self, group: &Arc<Group>) -> Result<(), MembershipError>;
    /// Undoes a [`close`](Self::close), because the group could not be removed for another reason.
    fn reopen(&self, group: &Arc<Group>);

    /// Returns the id, in the daemon's pid namespace, of the process or thread with `id` in the
    /// namespace of thread `viewer`.
    ///
    /// # Errors
    /// [`MembershipError::NoSuchProcess`].
    fn id_from_viewer(&self, viewer: u32, id: u32) -> Result<u32, MembershipError>;
    /// Translates ids of processes or threads into the pid namespace of thread `viewer`; 0 for an
    /// id not visible there.
    fn ids_for_viewer(&self, viewer: u32, ids: Vec<u32>) -> Vec<u32>;
    /// Returns the process of a thread.
    ///
    /// # Errors
    /// [`MembershipError::NoSuchProcess`].
    fn process_of(&self, tid: u32) -> Result<u32, MembershipError>;
}
