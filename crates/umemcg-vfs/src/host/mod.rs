//! Volumes of host directories: names and attributes are the host's, content is cached in the
//! engine.
//!
//! `volume` has the operations. `directory` has the capabilities of the host's directory,
//! `syscalls` the calls on its descriptors. `inode_table` is the table of referenced inodes,
//! `inodes` finds them again on the host, `name_shrinker` gives them back. `content` is a file's
//! cached content, `store` its backing file, `shown_times` its shown times meanwhile. `open_file`
//! and `dir_handle` are open files and directories. `outside_watch` notifies the kernel of other
//! programs' changes.

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
