//! The control tree: groups as directories, and in them files that show and set what a group has and may have. One table
//! of rows ([`ControlTree::rows`]) says which files there are; listings, permissions, dispatch and documentation come from
//! it. Knows no FUSE and no processes: requests come through [`ControlTree`], processes are behind [`Membership`].
#![forbid(unsafe_code)]

mod background_files;
mod descriptors;
mod dirty_files;
pub mod doc;
mod error;
mod event_control;
mod inert_files;
mod listeners;
mod membership;
mod memory_files;
mod metadata_files;
mod node;
mod oom_control;
mod open_file;
mod ownership;
mod peak;
mod permission;
mod pool_files;
mod populated;
mod pressure;
mod process_files;
mod protection_files;
mod row;
mod stat;
mod table;
mod tree;
pub mod value;
mod watch;

pub use descriptors::{DescriptorError, Descriptors, EventSink, NoDescriptors};
pub use error::ControlError;
pub use membership::{Membership, MembershipError};
pub use node::{Attr, DirEntry, NodeId};
pub use open_file::OpenFile;
pub use permission::Credentials;
pub use row::{Place, Row, Style, Version, is_control_file_name};
pub use tree::{Access, ControlTree, FIRST_COOKIE, NAME_BYTES_MAX, Request, SetAttr, WRITE_BYTES_MAX};
pub use value::parse_decimal;
pub use watch::{News, Waker};
