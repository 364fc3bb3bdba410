//! Names and inodes of volumes: a file's names, attributes and times, and the cached content that
//! belongs to it. The content itself lives in the engine; the host file system below is reached
//! through descriptors that never leave the volume's directory. This crate is independent of FUSE
//! and of process ids.
//!
//! The map: [`volume`] has the operations, [`host_volume`] and [`tmpfs`] the two kinds of volume.
//! Of a host volume, `host_directory` says what the directory can do, `inode_table` which inodes
//! are referred to, `resolve` how an inode is found again on the host, `content` and `host_store`
//! its cached content and where that is stored, `shown_times` the times that it shows meanwhile.
#![forbid(unsafe_code)]

mod allowance;
pub mod attr;
mod attributes;
mod caller;
mod content;
mod create;
mod descriptor_cache;
mod descriptor_share;
mod dir_handle;
pub mod error;
mod handle_charge;
mod host;
mod host_directory;
mod host_store;
pub mod host_volume;
mod inode_names;
mod inode_table;
mod kernel_cache;
mod kernel_caching;
mod kernel_ids;
mod kernel_io;
mod kernel_page_lists;
mod kernel_pages;
mod lookup;
mod metadata_charge;
mod name;
mod name_lists;
mod name_shrinker;
mod names;
mod open;
mod open_file;
mod page_windows;
mod privileges;
mod resolve;
mod shown_times;
mod slab;
#[cfg(test)]
mod testing;
pub mod tmpfs;
mod unsynced;
pub mod volume;
mod volume_clock;
pub mod volume_config;
pub mod volume_spec;
pub mod volumes;
mod xattrs;

pub use attr::{Attr, Entry, FileKind, NodeId, SetAttr, SetTime, StatFs, Timestamp};
pub use caller::Caller;
pub use error::{VfsError, VolumeError};
pub use handle_charge::{HANDLE_BYTES, NR_HANDLES_BEYOND_MAX};
pub use host_volume::HostVolume;
pub use kernel_cache::{DropTask, IdleInode, KernelCache, PageDrop};
pub use kernel_io::{KernelCaching, KernelIo};
pub use metadata_charge::NR_NAMES_BEYOND_MAX;
pub use rustix::fs::{FallocateFlags, OFlags, RenameFlags, XattrFlags};
pub use tmpfs::{Tmpfs, TmpfsConfig};
pub use volume::{
    Attributes, Create, DirEntry, Lookup, Names, Open, Volume, VolumeDir, VolumeFile, VolumeKind, Whence,
    Xattrs,
};
pub use volume_config::{IoMode, Resolve, VolumeConfig};
pub use volume_spec::VolumeSpec;
pub use volumes::{AddError, Member, Opened, RemoveError, Volumes};
