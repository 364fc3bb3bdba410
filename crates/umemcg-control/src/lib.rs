//! The control tree: groups as directories, with files to show usage and set limits. One table of
//! rows ([`ControlTree::rows`]) defines the files; listings, permissions, dispatch and
//! documentation come from it. This crate is independent of FUSE and of processes: requests come
//! through [`ControlTree`], processes are behind [`Membership`].
#![forbid(unsafe_code)]

mod background_files;
mod context;
mod dirty_files;
pub mod doc;
mod error;
mod file_id;
mod group_control;
mod holder_share;
mod inert;
mod inert_files;
mod membership;
mod membership_watchers;
mod memory_files;
mod metadata_files;
mod node;
pub mod numbers;
mod oom_control;
mod open_file;
mod peak;
mod permission;
mod poll_watch;
mod pool_files;
mod populated;
mod pressure;
mod process_files;
mod protection_files;
mod request;
mod row;
mod stat;
mod state;
mod style;
mod table;
mod tree;
mod trigger;
mod waiters;
mod xattrs;

pub use error::ControlError;
pub use holder_share::{Holder, HolderShare};
pub use membership::{Membership, MembershipError};
pub use node::{Attr, DirEntry, NodeId};
pub use numbers::parse_decimal;
pub use open_file::{KEPT_BYTES, OpenFile};
pub use permission::Credentials;
pub use poll_watch::PollResult;
pub use request::{Access, Request};
pub use row::{Row, Scope};
pub use style::{Style, Version};
pub use table::is_control_file_name;
pub use tree::{ControlTree, FIRST_COOKIE, NAME_BYTES_MAX, SetAttr, WRITE_BYTES_MAX};
pub use waiters::Waker;
pub use xattrs::{NR_XATTRS_MAX, SetXattr, XATTR_BYTES, XATTR_VALUES_BYTES_MAX, check_xattr_name};
