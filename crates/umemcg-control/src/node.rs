//! Node numbers of directories and files of the tree: the group's serial and the row.

use std::time::SystemTime;

use umemcg::Group;

/// A directory or file. A number is never reused: serials of groups are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(u64);

/// Bits for the row.
const ROW_BITS: u32 = 8;
/// The row bits of a directory.
const DIRECTORY: u64 = 1;
/// The number of the first row.
const FIRST_ROW: u64 = 2;

impl NodeId {
    /// The top directory. Its number is 1, the required inode number of a FUSE root.
    pub const ROOT: NodeId = NodeId(DIRECTORY);

    /// Returns a group's directory. `serial` 0 stands for the root group, regardless of its own
    /// serial.
    pub(crate) fn directory(serial: u64) -> Self {
        NodeId(serial << ROW_BITS | DIRECTORY)
    }

    /// Returns a group's control file.
    pub(crate) fn file(serial: u64, row: u8) -> Self {
        NodeId(serial << ROW_BITS | (u64::from(row) + FIRST_ROW))
    }

    /// Returns the serial, and the row if it is a file.
    pub(crate) fn parts(self) -> Option<(u64, Option<u8>)> {
        let row = match self.0 & ((1 << ROW_BITS) - 1) {
            DIRECTORY => None,
            slot => Some(slot.checked_sub(FIRST_ROW)? as u8),
        };
        Some((self.0 >> ROW_BITS, row))
    }

    /// Returns the serial of the node's group; 0 for the root group.
    pub fn group_serial(self) -> u64 {
        self.0 >> ROW_BITS
    }

    /// Returns the inode number.
    pub fn into_raw(self) -> u64 {
        self.0
    }

    /// Returns the node of an inode number from the kernel. It may name no existing file.
    pub fn from_raw(raw: u64) -> Self {
        NodeId(raw)
    }
}

/// The attributes shown by `stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// The node.
    pub node: NodeId,
    /// True if it is a group's directory.
    pub is_directory: bool,
    /// Permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Owning user group.
    pub gid: u32,
    /// 1 for files; for directories 2 plus the number of child groups, as `find` expects.
    pub nlink: u32,
    /// The size shown for a file; larger than its content, as in sysfs, because the content is
    /// generated on read. 0 for a file that cannot be read.
    pub size: u64,
    /// The creation time of the group.
    pub created: SystemTime,
    /// The time of the last creation, removal or renaming of a group in the directory.
    pub modified: SystemTime,
    /// The time of the last change of the entries, the owner or the mode bits.
    pub changed: SystemTime,
}

/// One name of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name.
    pub name: std::ffi::OsString,
    /// The named node.
    pub node: NodeId,
    /// True if it is a group.
    pub is_directory: bool,
    /// The position from which a listing continues after this entry.
    pub cookie: u64,
}

/// Returns a group's serial in node numbers.
pub(crate) fn serial_of(group: &Group) -> u64 {
    if group.is_root() { 0 } else { group.id() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_nodes_are_the_same_thing() {
        for serial in [0, 1, 77, 1 << 40] {
            assert_eq!(NodeId::directory(serial).parts(), Some((serial, None)));
            for row in [0, 1, 200] {
                let node = NodeId::file(serial, row);
                assert_eq!(NodeId::from_raw(node.into_raw()).parts(), Some((serial, Some(row))));
            }
        }
        assert_eq!(NodeId::ROOT, NodeId::directory(0));
        assert_eq!(NodeId::from_raw(0).parts(), None);
    }
}
