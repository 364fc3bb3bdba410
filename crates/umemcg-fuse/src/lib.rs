//! The mount: requests of the kernel turned into calls of the layers below, and the question who asks turned into a group.
//!
//! Our own loop on `/dev/fuse` instead of a library's: an interrupt must be able to end any wait, and a read is answered
//! with one `writev` straight from the frames.
#![forbid(unsafe_code)]

pub mod classify;
pub mod control_fs;
pub mod data_fs;
pub mod errno;
pub mod handles;
pub mod inflight;
mod kernel_queue;
pub mod mount;
pub mod mountinfo;
pub mod notifier;
pub mod park;
pub mod pool;
mod queue;
pub mod reply;
pub mod request;
pub mod serve;
pub mod session;
pub mod signals;
pub mod transport;
pub mod volume_admin;
pub mod waiting;
pub mod who;
pub mod wire;

pub use classify::{Asker, Classifier, Payer, RootOnly};
pub use control_fs::ControlFs;
pub use data_fs::{DataFs, Lifetimes};
pub use errno::ToErrno;
pub use inflight::Interrupts;
pub use mount::{MountError, MountOptions, Mounted, Unmount};
pub use notifier::Notifier;
pub use pool::{Census, Keys, PoolLimits};
pub use reply::{Delivery, Reply};
pub use request::Asked;
pub use serve::{Daemon, DaemonConfig, DaemonError, Lost};
pub use session::{Filesystem, Session, SessionConfig, SessionError, Step};
pub use transport::{Device, Transport};
pub use volume_admin::{AddVolumeError, RemoveVolumeError, Removed, VolumeInfo};
pub use who::{RULE_GROUPS_MAX, Rule, RuleError, Tracking, Who};
