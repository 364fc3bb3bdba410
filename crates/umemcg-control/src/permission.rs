//! Permissions of control files: classic mode bits, checked against the credentials of the process
//! that *opened* the file. Passing a descriptor to a more privileged writer gains nothing.

/// The identity of a process for checks of mode bits. Taken once, at open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Supplementary group ids.
    pub supplementary: Vec<u32>,
}

impl Credentials {
    /// Root: passes every check.
    pub const ROOT: Credentials = Credentials { uid: 0, gid: 0, supplementary: Vec::new() };

    /// Returns a user without supplementary groups.
    pub fn user(uid: u32, gid: u32) -> Self {
        Self { uid, gid, supplementary: Vec::new() }
    }

    /// Returns whether this identity includes the group id.
    pub fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.supplementary.contains(&gid)
    }
}

/// Permission to read.
pub const READ: u16 = 4;
/// Permission to write.
pub const WRITE: u16 = 2;
/// Permission to search a directory.
pub const SEARCH: u16 = 1;

/// Returns whether mode bits grant `wanted` (a sum of [`READ`], [`WRITE`], [`SEARCH`]). One class
/// decides: the owner's, else the group's, else the others'.
pub fn is_granted(caller: &Credentials, owner_uid: u32, owner_gid: u32, mode: u16, wanted: u16) -> bool {
    if caller.uid == 0 {
        return true;
    }
    let class = if caller.uid == owner_uid {
        mode >> 6
    } else if caller.is_in_group(owner_gid) {
        mode >> 3
    } else {
        mode
    };
    class & wanted == wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_class_of_mode_bits_decides() {
        let owner = Credentials::user(1000, 1000);
        let member = Credentials { uid: 1001, gid: 1001, supplementary: vec![27, 1000] };
        let other = Credentials::user(1002, 1002);
        for (mode, wanted, expected) in [
            (0o644, READ, [true, true, true]),
            (0o644, WRITE, [true, false, false]),
            (0o664, READ | WRITE, [true, true, false]),
            (0o066, READ, [false, true, true]),
            (0o606, WRITE, [true, false, true]),
            (0o200, READ, [false, false, false]),
            (0o755, SEARCH, [true, true, true]),
        ] {
            let got = [&owner, &member, &other].map(|caller| is_granted(caller, 1000, 1000, mode, wanted));
            assert_eq!(got, expected, "{mode:o} {wanted}");
            assert!(is_granted(&Credentials::ROOT, 1000, 1000, mode, wanted));
        }
    }
}
