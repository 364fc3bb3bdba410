//! Storage of extended attributes: by file and name, bounded, charged to the group.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use umemcg::internal::AccountedCharge;
use umemcg_base::LeafMutex;

use crate::error::ControlError;
use crate::file_id::FileId;

/// Most attributes of one directory or file, of `user.` and of `trusted.` each: no user may take
/// root's places.
#[doc(alias = "KERNFS_MAX_USER_XATTRS")]
pub const NR_XATTRS_MAX: usize = 128;
/// Most bytes of their values together, for each namespace.
#[doc(alias = "KERNFS_USER_XATTR_SIZE_LIMIT")]
pub const XATTR_VALUES_BYTES_MAX: usize = 128 << 10;
/// The charge of an attribute beside its name and its value.
pub const XATTR_BYTES: u64 = 256;

/// The conditions on an existing value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetXattr {
    /// An attribute of that name, or none.
    Any,
    /// None.
    Create,
    /// One.
    Replace,
}

/// The namespace of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Namespace {
    User,
    Trusted,
}

impl Namespace {
    pub(crate) fn prefix(self) -> &'static [u8] {
        match self {
            Self::User => b"user.",
            Self::Trusted => b"trusted.",
        }
    }
}

/// Returns the namespace of an attribute name.
pub(crate) fn namespace(name: &OsStr) -> Result<Namespace, ControlError> {
    for namespace in [Namespace::User, Namespace::Trusted] {
        match name.as_encoded_bytes().strip_prefix(namespace.prefix()) {
            Some([]) => return Err(ControlError::Invalid),
            Some(_) => return Ok(namespace),
            None => {}
        }
    }
    Err(ControlError::NotSupported)
}

/// Returns whether a directory or file can have an attribute of this name.
///
/// # Errors
/// `NotSupported`, or `Invalid` when nothing follows the name's first part.
pub fn check_xattr_name(name: &OsStr) -> Result<(), ControlError> {
    namespace(name).map(drop)
}

#[derive(Debug)]
pub(crate) struct Xattr {
    pub(crate) value: Box<[u8]>,
    /// Covers the value, the name and [`XATTR_BYTES`].
    pub(crate) _charge: AccountedCharge,
}

/// The attributes by file (by row; none for the directory) and by name.
pub(crate) type XattrMap = BTreeMap<(Option<u8>, Box<[u8]>), Xattr>;

/// The attributes of a group's directory and files. Charges are released without the lock held.
#[derive(Debug, Default)]
pub(crate) struct Xattrs(pub(crate) LeafMutex<XattrMap>);

pub(crate) fn of_node(names: &XattrMap, file: Option<FileId>) -> impl Iterator<Item = (&[u8], &Xattr)> {
    let number = file.map(|file| file.number);
    let behind = names.range((number, Box::default())..);
    behind.take_while(move |((of, _), _)| *of == number).map(|((_, name), xattr)| (&**name, xattr))
}

/// Returns whether a directory or file may have a value of this many bytes under this name.
pub(crate) fn admit(
    names: &XattrMap,
    file: Option<FileId>,
    name: &OsStr,
    len: usize,
    how: SetXattr,
) -> Result<(), ControlError> {
    let is_there = names.contains_key(&key(file, name));
    match how {
        SetXattr::Create if is_there => return Err(ControlError::Exists),
        SetXattr::Replace if !is_there => return Err(ControlError::NoAttribute),
        _ => {}
    }
    let (name, kind) = (name.as_encoded_bytes(), namespace(name)?);
    let others = of_node(names, file).filter(|&(other, _)| other != name && other.starts_with(kind.prefix()));
    let (nr, bytes) = others.fold((1, len), |(nr, bytes), (_, xattr)| (nr + 1, bytes + xattr.value.len()));
    if nr > NR_XATTRS_MAX || bytes > XATTR_VALUES_BYTES_MAX {
        return Err(ControlError::NoSpace);
    }
    Ok(())
}

pub(crate) fn key(file: Option<FileId>, name: &OsStr) -> (Option<u8>, Box<[u8]>) {
    (file.map(|file| file.number), name.as_encoded_bytes().into())
}

impl Xattrs {
    pub(crate) fn insert(
        &self,
        file: Option<FileId>,
        name: &OsStr,
        xattr: Xattr,
        how: SetXattr,
    ) -> Result<(), ControlError> {
        let mut names = self.0.lock();
        let admitted = admit(&names, file, name, xattr.value.len(), how);
        let left_over = match admitted {
            Ok(()) => names.insert(key(file, name), xattr),
            Err(_) => Some(xattr),
        };
        drop(names);
        drop(left_over);
        admitted
    }

    pub(crate) fn remove(&self, file: Option<FileId>, name: &OsStr) -> Result<(), ControlError> {
        let removed = self.0.lock().remove(&key(file, name));
        removed.map(drop).ok_or(ControlError::NoAttribute)
    }

    /// Drops the attributes of a removed group, with their charges.
    pub(crate) fn clear(&self) {
        let names = std::mem::take(&mut *self.0.lock());
        drop(names);
    }
}
