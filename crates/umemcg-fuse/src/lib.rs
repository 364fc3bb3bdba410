//! The mount: turns requests of the kernel into calls of the layers below, and maps the requesting
//! process to its group.
//!
//! The loop on `/dev/fuse` is our own and not a library's: an interrupt must be able to end any
//! wait, and a read is answered with one `writev` straight from the frames.
#![forbid(unsafe_code)]

pub mod classify;
mod computing;
pub mod control_fs;
pub mod daemon;
pub mod data_fs;
pub mod delayed_replies;
pub mod errno;
#[doc(hidden)]
pub mod fuzzing;
pub mod handles;
mod heartbeat;
pub mod inflight;
mod job;
mod kernel_queue;
pub mod mount;
mod mount_flag;
pub mod mountinfo;
pub mod notifier;
pub mod orphan_guard;
mod page_watch;
pub mod parking;
mod pool_limits;
mod queue;
pub mod reply;
pub mod request;
pub mod session;
pub mod signals;
mod store_messages;
#[cfg(test)]
mod testing;
pub mod thread_pool;
pub mod transport;
pub mod wait_charge;
pub mod wire;

pub use classify::{
    AddPodError, Classifier, Payer, ProcessClassifier, RULE_GROUPS_MAX, Requester, RootOnly, Rule, RuleError,
    Tracking,
};
pub use control_fs::ControlFs;
pub use daemon::{
    AddVolumeError, Daemon, DaemonConfig, DaemonError, Lost, RemoveVolumeError, Removed, VolumeInfo,
};
pub use data_fs::{DataFs, Lifetimes};
pub use errno::ToErrno;
pub use heartbeat::ReaderWatch;
pub use inflight::Interrupts;
pub use mount::{MountError, MountOptions, Mounted, Unmount};
pub use mount_flag::MountFlag;
pub use notifier::Notifier;
pub use orphan_guard::GuardProgram;
pub use parking::Parking;
pub use reply::{Delivery, Reply};
pub use request::Request;
pub use session::{Filesystem, QuickOutcome, Session, SessionConfig, SessionError};
pub use thread_pool::{Keys, PoolCounts, PoolLimits};
pub use transport::{Device, Transport};
