//! POSIX access lists in the kernel's format (`system.posix_acl_access`,
//! `system.posix_acl_default`), kept consistent with the permission bits. The kernel uses them to
//! check permissions.

use rustix::io::Errno;

/// The attribute with the access list of an inode.
pub(super) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute with a directory's default list, inherited by new objects.
pub(super) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AclEntry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// An access list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Acl(Vec<AclEntry>);

impl Acl {
    /// Parses an attribute's value; `None` for an empty list: setting it removes the attribute.
    ///
    /// # Errors
    /// `EINVAL`, `EOPNOTSUPP` for another version.
    pub(super) fn parse(value: &[u8]) -> Result<Option<Self>, Errno> {
        let (header, rest) = value.split_first_chunk::<HEADER_BYTES>().ok_or(Errno::INVAL)?;
        if u32::from_le_bytes(*header) != VERSION {
            return Err(Errno::OPNOTSUPP);
        }
        let (entries, rest) = rest.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() {
            return Err(Errno::INVAL);
        }
        let entry = |e: &[u8; ENTRY_BYTES]| AclEntry {
            tag: u16::from_le_bytes([e[0], e[1]]),
            permissions: u16::from_le_bytes([e[2], e[3]]),
            id: u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
        };
        let list = Self(entries.iter().map(entry).collect());
        if list.0.is_empty() {
            return Ok(None);
        }
        if list.is_sound() { Ok(Some(list)) } else { Err(Errno::INVAL) }
    }

    /// Returns whether every class appears once and in order, and a mask if there are named users
    /// or groups.
    fn is_sound(&self) -> bool {
        let rising = self.0.windows(2).all(|pair| {
            let is_named = matches!(pair[0].tag, USER | GROUP);
            pair[0].tag < pair[1].tag || (is_named && pair[0].tag == pair[1].tag)
        });
        let known = self.0.iter().all(|e| {
            matches!(e.tag, USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER) && e.permissions <= 7
        });
        let has = |tag| self.0.iter().any(|e| e.tag == tag);
        let is_masked = has(MASK) || !(has(USER) || has(GROUP));
        rising && known && is_masked && has(USER_OBJ) && has(GROUP_OBJ) && has(OTHER)
    }

    /// Returns the value of the attribute.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            bytes.extend(entry.tag.to_le_bytes());
            bytes.extend(entry.permissions.to_le_bytes());
            bytes.extend(entry.id.to_le_bytes());
        }
        bytes
    }

    /// Returns whether the permission bits can express the list.
    pub(super) fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    fn has_mask(&self) -> bool {
        self.0.iter().any(|e| e.tag == MASK)
    }

    /// Returns the shift of an entry's class in a mode.
    fn shift_of(tag: u16, has_mask: bool) -> Option<u32> {
        match tag {
            USER_OBJ => Some(6),
            GROUP_OBJ if !has_mask => Some(3),
            MASK => Some(3),
            OTHER => Some(0),
            _ => None,
        }
    }

    /// Returns the permission bits equivalent to the list.
    pub(super) fn permissions(&self) -> u32 {
        let has_mask = self.has_mask();
        let bits =
            |e: &AclEntry| Self::shift_of(e.tag, has_mask).map_or(0, |at| u32::from(e.permissions) << at);
        self.0.iter().map(bits).sum()
    }

    /// Updates the list after a change of the permission bits.
    pub(super) fn set_permissions(&mut self, mode: u32) {
        let has_mask = self.has_mask();
        for entry in &mut self.0 {
            if let Some(at) = Self::shift_of(entry.tag, has_mask) {
                entry.permissions = (mode >> at & 7) as u16;
            }
        }
    }

    /// Returns a directory's default list as the list of a new object, with at most these bits.
    pub(super) fn inherited(mut self, mode: u32) -> Self {
        let allowed = self.permissions() & mode;
        self.set_permissions(allowed);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16)]) -> Vec<u8> {
        let entry = |&(tag, permissions): &(u16, u16)| AclEntry { tag, permissions, id: u32::MAX };
        Acl(entries.iter().map(entry).collect()).to_bytes()
    }

    #[test]
    fn a_list_survives_both_ways_and_stands_for_permission_bits() {
        let bytes = list(&[(USER_OBJ, 7), (USER, 6), (GROUP_OBJ, 4), (MASK, 5), (OTHER, 1)]);
        let acl = Acl::parse(&bytes).unwrap().unwrap();
        assert_eq!((acl.to_bytes(), acl.permissions(), acl.is_minimal()), (bytes, 0o751, false));
        let plain = Acl::parse(&list(&[(USER_OBJ, 6), (GROUP_OBJ, 4), (OTHER, 0)])).unwrap().unwrap();
        assert_eq!((plain.permissions(), plain.is_minimal()), (0o640, true));
    }

    #[test]
    fn a_change_of_the_bits_reaches_the_mask_and_not_the_group() {
        let bytes = list(&[(USER_OBJ, 7), (GROUP_OBJ, 5), (GROUP, 7), (MASK, 7), (OTHER, 0)]);
        let mut acl = Acl::parse(&bytes).unwrap().unwrap();
        acl.set_permissions(0o604);
        assert_eq!(acl.to_bytes(), list(&[(USER_OBJ, 6), (GROUP_OBJ, 5), (GROUP, 7), (MASK, 0), (OTHER, 4)]));
    }

    #[test]
    fn an_inherited_access_list_is_bounded_by_the_creation_mode() {
        let bytes = list(&[(USER_OBJ, 7), (USER, 7), (GROUP_OBJ, 5), (MASK, 7), (OTHER, 5)]);
        let acl = Acl::parse(&bytes).unwrap().unwrap().inherited(0o640);
        assert_eq!(acl.permissions(), 0o640);
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!(Acl::parse(&list(&[])).unwrap(), None);
        for bad in [
            &b""[..],
            b"\x02\0\0",
            &list(&[(USER_OBJ, 7)]),
            &list(&[(USER_OBJ, 8), (GROUP_OBJ, 4), (OTHER, 0)]),
            &list(&[(GROUP_OBJ, 4), (USER_OBJ, 7), (OTHER, 0)]),
            &list(&[(USER_OBJ, 7), (USER, 7), (GROUP_OBJ, 4), (OTHER, 0)]),
            &list(&[(USER_OBJ, 7), (GROUP_OBJ, 4), (OTHER, 0), (0x40, 0)]),
            &list(&[(USER_OBJ, 7), (GROUP_OBJ, 4), (OTHER, 0)])[..20],
        ] {
            assert_eq!(Acl::parse(bad), Err(Errno::INVAL), "{bad:?}");
        }
        assert_eq!(Acl::parse(b"\x01\0\0\0"), Err(Errno::OPNOTSUPP));
    }
}
