//! Names as parts of keys: the names accepted for new keys, and the listed parts usable as names.

use std::ffi::OsStr;

use rustix::io::Errno;

use crate::name::NAME_MAX;

/// Returns a name as a part of a key.
///
/// # Errors
/// `ENAMETOOLONG`, `EINVAL` as for any name; `ENOENT` if it is not UTF-8, or has control
/// characters: no such key is shown.
pub(super) fn key_part(name: &OsStr) -> Result<&str, Errno> {
    crate::name::component(name)?;
    let is_shown = |name: &&str| !name.chars().any(|c| c.is_ascii_control());
    name.to_str().filter(is_shown).ok_or(Errno::NOENT)
}

/// Returns whether a listed name can be one of a path.
pub(super) fn is_path_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_MAX && name != "." && name != ".." && !name.contains(['/', '\0'])
}
