//! Checks one component of a path before the host sees it. This check keeps an operation on a name
//! inside its directory.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;

/// The longest name of one component, in bytes.
pub(crate) const NAME_MAX: usize = 255;

/// Returns the name in the host's form. Any bytes but zero and slash are a name.
///
/// # Errors
/// `ENAMETOOLONG` for more than 255 bytes; `EINVAL` for "", ".", "..", a slash or a zero byte.
pub(crate) fn component(name: &OsStr) -> Result<CString, Errno> {
    let bytes = name.as_bytes();
    if bytes.len() > NAME_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.contains(&b'/') {
        return Err(Errno::INVAL);
    }
    CString::new(bytes).map_err(|_| Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_single_component_is_a_name() {
        for good in [&b"a"[..], b"...", b" ", b"\xff\xfe", &[b'x'; 255]] {
            assert!(component(OsStr::from_bytes(good)).is_ok(), "{good:?}");
        }
        for bad in [&b""[..], b".", b"..", b"/", b"a/b", b"../x", b"a\0b"] {
            assert_eq!(component(OsStr::from_bytes(bad)), Err(Errno::INVAL), "{bad:?}");
        }
        assert_eq!(component(OsStr::from_bytes(&[b'x'; 256])), Err(Errno::NAMETOOLONG));
    }
}
