//! The attributes shown for the files of a volume: stored with each object, or the same for all
//! files.

use super::file_labels::FileLabels;
use super::node::Facts;
use crate::attr::{Attr, SetAttr, Timestamp};
use crate::bucket::file_attributes::{DIRECTORY, FileAttributes, REGULAR, changes_attributes};
use crate::bucket::{Metadata, ObjectInfo};

/// Preferred size of a request, in bytes.
const BLOCK_BYTES: u32 = 128 << 10;

/// See the module text.
#[derive(Debug)]
pub(super) struct ShownAttributes {
    /// Attributes are stored with the objects, and requested: a listing does not include them.
    pub(super) are_stored: bool,
    /// The user and the group of a file without stored ones.
    pub(super) owner: (u32, u32),
    /// The time of a directory without a stored one.
    pub(super) since: Timestamp,
}

impl ShownAttributes {
    /// Returns the attributes of a file last changed at a time.
    pub(super) fn of_file(&self, time: Timestamp) -> FileAttributes {
        FileAttributes::new(REGULAR | 0o644, self.owner, time)
    }

    /// Returns the attributes of a directory.
    pub(super) fn of_directory(&self) -> FileAttributes {
        FileAttributes::new(DIRECTORY | 0o755, self.owner, self.since)
    }

    /// Returns the attributes of a directory whose object has these metadata.
    pub(super) fn in_directory(&self, metadata: &Metadata) -> FileAttributes {
        FileAttributes::of(metadata, &self.of_directory())
    }

    /// Returns whether a change of a file changes anything but its length.
    pub(super) fn is_changed_by(&self, change: &SetAttr) -> bool {
        if self.are_stored { changes_attributes(change) } else { change.mtime.is_some() }
    }

    /// Returns the labels of an object.
    pub(super) fn labels(&self, info: &ObjectInfo) -> FileLabels {
        let (none, usual) = (Metadata::new(), self.of_file(info.modified));
        let metadata = info.metadata.as_deref().unwrap_or(&none);
        match self.are_stored {
            true => FileLabels::of(metadata, &usual),
            false => FileLabels::of_uniform(metadata, usual),
        }
    }

    /// Returns the facts to keep about an object: with its own attributes, if it has any.
    pub(super) fn kept(&self, info: &ObjectInfo) -> ObjectInfo {
        let usual = self.of_file(info.modified);
        let told = info.metadata.as_deref().filter(|_| self.are_stored);
        let attributes = told.map(|metadata| FileAttributes::of(metadata, &usual)).or(info.attributes);
        ObjectInfo { attributes, ..info.without_metadata() }
    }

    /// Returns the attributes of a name.
    pub(super) fn attr(&self, ino: u64, facts: &Facts) -> Attr {
        match facts {
            Facts::Object(info) => self.attr_of(ino, info),
            Facts::Directory(told) => attr_with(ino, &told.unwrap_or(self.of_directory()), 0),
        }
    }

    /// Returns the attributes of an object.
    pub(super) fn attr_of(&self, ino: u64, info: &ObjectInfo) -> Attr {
        attr_with(ino, &info.attributes.unwrap_or(self.of_file(info.modified)), info.size)
    }
}

fn attr_with(ino: u64, shown: &FileAttributes, size: u64) -> Attr {
    let FileAttributes { mode, uid, gid, atime, mtime, ctime } = *shown;
    Attr {
        ino,
        size,
        blocks: size.div_ceil(512),
        mode,
        nlink: 1,
        uid,
        gid,
        rdev: 0,
        atime,
        mtime,
        ctime,
        btime: None,
        blksize: BLOCK_BYTES,
    }
}
