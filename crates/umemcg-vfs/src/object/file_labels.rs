//! The labels of a file, stored beside its bytes: its attributes, and further metadata of its
//! object, such as extended attributes and entries of other programs.
//!
//! Extended attributes are stored as s3fs does: as one value, `xattr`. It is JSON with each name
//! and its value in base 64, percent-encoded except for letters and digits.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::bucket::file_attributes::{FileAttributes, NAMES};
use crate::bucket::{Metadata, UNREADABLE, UPLOAD_MARK};

/// Most bytes of metadata: S3's limit.
const BYTES_MAX: usize = 2 << 10;
/// Most bytes of the mark of an upload.
const MARK_BYTES: usize = 64;
const XATTR: &str = "xattr";

/// See the module text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileLabels {
    pub(super) attributes: FileAttributes,
    others: Metadata,
}

/// A change of the labels of a file.
pub(super) type LabelChange<'a> = &'a dyn Fn(&mut FileLabels) -> Result<(), Errno>;

impl FileLabels {
    /// Returns the labels of a file with attributes only.
    pub(super) fn new(attributes: FileAttributes) -> Self {
        Self { attributes, others: Metadata::new() }
    }

    /// Returns the labels in the metadata of an object; see [`FileAttributes::of`].
    pub(super) fn of(metadata: &Metadata, usual: &FileAttributes) -> Self {
        let is_other = |name: &str| name != UPLOAD_MARK && !NAMES.contains(&name);
        let others = metadata.iter().filter(|(name, _)| is_other(name)).cloned().collect();
        Self { attributes: FileAttributes::of(metadata, usual), others }
    }

    /// As [`of`](Self::of), where all files are shown with the same owner and mode. The owner and
    /// mode stored by other programs stay, too.
    pub(super) fn of_uniform(metadata: &Metadata, shown: FileAttributes) -> Self {
        let is_other = |name: &str| name != UPLOAD_MARK && !["mtime", "ctime"].contains(&name);
        let others = metadata.iter().filter(|(name, _)| is_other(name)).cloned().collect();
        Self { attributes: shown, others }
    }

    /// Returns them as the metadata of an object.
    pub(super) fn to_metadata(&self) -> Metadata {
        let mut metadata = self.attributes.to_metadata();
        metadata.retain(|(name, _)| self.others.iter().all(|(other, _)| other != name));
        metadata.extend(self.others.iter().cloned());
        metadata
    }

    /// Returns the length of the metadata, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.to_metadata().iter().map(|(name, value)| name.len() + value.len()).sum()
    }

    /// Returns the bytes counted by the store's limit, which leaves out headers.
    fn limited_bytes(&self) -> usize {
        let metadata = self.to_metadata();
        let limited = metadata.iter().filter(|(name, _)| !name.starts_with(':'));
        limited.map(|(name, value)| name.len() + value.len()).sum()
    }

    /// Returns the extended attributes. Unreadable ones are left out.
    pub(super) fn xattrs(&self) -> BTreeMap<String, Vec<u8>> {
        let value = self.others.iter().find(|(name, _)| name == XATTR).map(|(_, value)| value);
        let text = value.and_then(|value| percent_decode_str(value).decode_utf8().ok());
        let encoded = text.and_then(|text| serde_json::from_str::<BTreeMap<String, String>>(&text).ok());
        let decoded = |(name, value): (String, String)| Some((name, BASE64.decode(value).ok()?));
        encoded.unwrap_or_default().into_iter().filter_map(decoded).collect()
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// `EEXIST`, `ENODATA` as the flags say; `ENOSPC` if the store does not take so many bytes.
    pub(super) fn set_xattr(&mut self, name: &str, value: &[u8], flags: XattrFlags) -> Result<(), Errno> {
        let mut xattrs = self.xattrs();
        match xattrs.contains_key(name) {
            true if flags.contains(XattrFlags::CREATE) => return Err(Errno::EXIST),
            false if flags.contains(XattrFlags::REPLACE) => return Err(Errno::NODATA),
            _ => {}
        }
        xattrs.insert(name.to_owned(), value.to_vec());
        let mut changed = self.clone();
        changed.set_xattrs(xattrs);
        changed.check_room()?;
        *self = changed;
        Ok(())
    }

    /// Checks that a store takes metadata of this length.
    ///
    /// # Errors
    /// `ENOSPC`; `EOPNOTSUPP` if the object has unreadable metadata, which would be lost.
    pub(super) fn check_room(&self) -> Result<(), Errno> {
        if self.others.iter().any(|(name, _)| name == UNREADABLE) {
            return Err(Errno::OPNOTSUPP);
        }
        let bytes = self.limited_bytes() + UPLOAD_MARK.len() + MARK_BYTES;
        if bytes <= BYTES_MAX { Ok(()) } else { Err(Errno::NOSPC) }
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `ENODATA`.
    pub(super) fn remove_xattr(&mut self, name: &str) -> Result<(), Errno> {
        let mut xattrs = self.xattrs();
        xattrs.remove(name).ok_or(Errno::NODATA)?;
        self.set_xattrs(xattrs);
        Ok(())
    }

    fn set_xattrs(&mut self, xattrs: BTreeMap<String, Vec<u8>>) {
        self.others.retain(|(name, _)| name != XATTR);
        if !xattrs.is_empty() {
            let encoded: BTreeMap<_, _> =
                xattrs.iter().map(|(name, value)| (name, BASE64.encode(value))).collect();
            let text = serde_json::to_string(&encoded).unwrap_or_default();
            self.others.push((XATTR.to_owned(), utf8_percent_encode(&text, NON_ALPHANUMERIC).to_string()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::Timestamp;
    use crate::bucket::file_attributes::REGULAR;

    fn usual() -> FileAttributes {
        FileAttributes::new(REGULAR | 0o644, (7, 8), Timestamp::default())
    }

    #[test]
    fn extended_attributes_are_as_s3fs_stores_them() {
        let mut labels = FileLabels::new(usual());
        labels.set_xattr("user.a", b"b", XattrFlags::empty()).unwrap();
        assert_eq!(labels.others, [("xattr".into(), "%7B%22user%2Ea%22%3A%22Yg%3D%3D%22%7D".into())]);
        assert_eq!(labels.set_xattr("user.a", b"", XattrFlags::CREATE), Err(Errno::EXIST));
        assert_eq!(labels.set_xattr("user.b", b"", XattrFlags::REPLACE), Err(Errno::NODATA));
        labels.set_xattr("user.\"ü,:", b"\0\xff", XattrFlags::CREATE).unwrap();
        let again = FileLabels::of(&labels.to_metadata(), &usual());
        assert_eq!((again.xattrs().len(), &again.xattrs()["user.\"ü,:"][..]), (2, &b"\0\xff"[..]));
        assert_eq!(again, labels);
        labels.remove_xattr("user.a").unwrap();
        labels.remove_xattr("user.\"ü,:").unwrap();
        assert_eq!(labels.remove_xattr("user.a"), Err(Errno::NODATA));
        assert_eq!(labels, FileLabels::new(usual()));
    }

    #[test]
    fn there_is_room_for_two_kilobytes() {
        let mut labels = FileLabels::new(usual());
        assert_eq!(labels.set_xattr("user.long", &[0; 2000], XattrFlags::empty()), Err(Errno::NOSPC));
        assert_eq!(labels, FileLabels::new(usual()), "nothing has changed");
        labels.set_xattr("user.long", &[0; 1000], XattrFlags::empty()).unwrap();
    }

    #[test]
    fn what_others_stored_stays_and_what_makes_no_sense_is_none() {
        let of = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let metadata =
            vec![of("colour", "red"), of("xattr", "%7B"), of(UPLOAD_MARK, "1"), of("mode", "33188")];
        let mut labels = FileLabels::of(&metadata, &usual());
        assert_eq!(labels.others, [of("colour", "red"), of("xattr", "%7B")]);
        assert!(labels.xattrs().is_empty());
        labels.set_xattr("user.a", b"b", XattrFlags::empty()).unwrap();
        assert_eq!(labels.others[0], of("colour", "red"));
    }
}
