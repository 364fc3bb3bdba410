//! Volumes of host directories: names and attributes are the host's, content is cached in the
//! engine.
//!
//! `volume` has the operations. `directory` says what the host's directory can do, `syscalls` are
//! the calls on its descriptors. `inode_table` knows which inodes are referred to, `inodes` finds
//! them again on the host, `name_shrinker` gives them back. `content` and `store`
//! are a file's cached content and where that is stored, `shown_times` the times that it shows
//! meanwhile. `open_file` and `dir_handle` are what is open. `outside_watch` tells the kernel what
//! other programs have changed.

mod change_backlog;
mod clock;
mod content;
mod descriptor_cache;
pub(crate) mod descriptor_share;
mod dir_handle;
pub(crate) mod directory;
mod file_privileges;
mod handle_form;
mod inode_names;
mod inode_table;
mod inodes;
mod name_shrinker;
mod open_file;
mod outside_watch;
mod recent_changes;
pub(crate) mod shown_times;
pub(crate) mod store;
pub(crate) mod syscalls;
#[cfg(test)]
mod testing;
mod unsynced;
mod volume;

pub use volume::HostVolume;
