//! Names and inodes of volumes: a file's names, attributes and times, and its cached content. The
//! content itself lives in the engine. The host file system below is reached through descriptors
//! and never outside the volume's directory. This crate is independent of FUSE and of process ids.
//!
//! The map: [`volume`] has the operations, `host`, [`tmpfs`] and [`object`] the kinds of volume,
//! [`volumes`] the volumes of one mount. [`bucket`] is the interface to a store of objects.
//! `kernel_cache` has a volume's requests to the kernel: to forget names, and to drop cached pages
//! (`kernel_pages`).
#![forbid(unsafe_code)]

mod allowance;
pub mod attr;
pub mod bucket;
mod caller;
pub mod error;
mod handle_charge;
mod host;
mod kernel_cache;
mod kernel_ids;
mod kernel_io;
mod kernel_listing;
mod kernel_page_lists;
mod kernel_pages;
mod metadata_charge;
mod name;
mod name_lists;
mod name_reclaim;
pub mod object;
mod page_windows;
mod privileges;
mod slab;
mod streams;
mod tenant;
pub mod tmpfs;
pub mod volume;
pub mod volume_config;
pub mod volume_spec;
pub mod volumes;

pub use attr::{Attr, Entry, FileKind, NodeId, SetAttr, SetTime, StatFs, Timestamp};
pub use caller::Caller;
pub use error::{VfsError, VolumeError};
pub use handle_charge::{HANDLE_BYTES, NR_HANDLES_BEYOND_MAX};
pub use host::HostVolume;
pub use kernel_cache::{DropTask, IdleInode, KeptPages, KeptWindow, KernelCache, PageDrop, WindowHolder};
pub use kernel_ids::slot_of;
pub use kernel_io::{KernelCaching, KernelIo};
pub use kernel_listing::ListedPart;
pub use metadata_charge::NR_NAMES_BEYOND_MAX;
pub use object::{ObjectConfig, ObjectVolume};
pub use rustix::fs::{FallocateFlags, OFlags, RenameFlags, XattrFlags};
pub use tmpfs::{Tmpfs, TmpfsConfig};
pub use volume::{
    Attributes, Create, DirEntry, Lookup, Names, Open, Volume, VolumeDir, VolumeFile, VolumeKind, Whence,
    Xattrs,
};
pub use volume_config::{IoMode, Resolve, VolumeConfig};
pub use volume_spec::VolumeSpec;
pub use volumes::{AddError, Member, Opened, RemoveError, Volumes};
