//! Mode, owner and times of a file, as s3fs stores them among the metadata of its object: decimal
//! numbers, and times as seconds with a fraction.

use rustix::io::Errno;

use crate::attr::{FileKind, SetAttr, SetTime, Timestamp};

/// Linux's `PATH_MAX`: the bound of a symbolic link's target with a zero byte at its end.
pub(crate) const SYMLINK_BYTES_MAX: usize = 4096;

const SET_ID: u32 = 0o6000;
const PERMISSIONS: u32 = 0o7777;
const KIND: u32 = 0o170_000;
pub(crate) const REGULAR: u32 = 0o100_000;
pub(crate) const DIRECTORY: u32 = 0o040_000;
pub(crate) const SYMLINK: u32 = 0o120_000;

/// The names of the attributes among the metadata.
pub(crate) const NAMES: [&str; 6] = ["mode", "uid", "gid", "atime", "mtime", "ctime"];

/// Mode, owner and times of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileAttributes {
    /// Kind and permissions.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
}

impl FileAttributes {
    /// Returns the attributes of a file last changed at a time.
    pub(crate) fn new(mode: u32, (uid, gid): (u32, u32), time: Timestamp) -> Self {
        Self { mode, uid, gid, atime: time, mtime: time, ctime: time }
    }

    /// Returns the attributes in the metadata of an object; missing ones are as in `usual`. An
    /// object is a regular file or a symbolic link, and a directory stays one whatever its metadata
    /// are.
    pub(crate) fn of(metadata: &[(String, String)], usual: &Self) -> Self {
        let value = |wanted: &str| metadata.iter().find(|(name, _)| name == wanted).map(|(_, value)| value);
        let number = |name, usual| value(name).and_then(|text| text.parse().ok()).unwrap_or(usual);
        let time = |name, usual| value(name).and_then(|text| time_of(text)).unwrap_or(usual);
        let mode = value("mode").and_then(|text| mode_of(text)).unwrap_or(usual.mode);
        let kind = match mode & KIND {
            SYMLINK if usual.mode & KIND == REGULAR => SYMLINK,
            _ => usual.mode & KIND,
        };
        Self {
            mode: kind | mode & PERMISSIONS,
            uid: number("uid", usual.uid),
            gid: number("gid", usual.gid),
            atime: time("atime", usual.atime),
            mtime: time("mtime", usual.mtime),
            ctime: time("ctime", usual.ctime),
        }
    }

    /// Returns them as metadata.
    pub(crate) fn to_metadata(self) -> Vec<(String, String)> {
        let Self { mode, uid, gid, atime, mtime, ctime } = self;
        let numbers = [mode, uid, gid].map(|number| number.to_string());
        let times = [atime, mtime, ctime].map(|time| format!("{}.{:09}", time.seconds, time.nanoseconds));
        NAMES.map(str::to_owned).into_iter().zip(numbers.into_iter().chain(times)).collect()
    }

    pub(crate) fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode).unwrap_or(FileKind::Regular)
    }

    /// Applies a change, except of the length.
    pub(crate) fn change(&mut self, change: &SetAttr) {
        let now = Timestamp::now();
        let at = |time| match time {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        if let Some(mode) = change.mode {
            self.mode = self.mode & KIND | mode & PERMISSIONS;
        }
        if change.kill_set_id {
            self.kill_set_id();
        }
        self.uid = change.uid.unwrap_or(self.uid);
        self.gid = change.gid.unwrap_or(self.gid);
        self.atime = change.atime.map_or(self.atime, at);
        self.mtime = change.mtime.map_or(self.mtime, at);
        self.ctime = now;
    }

    /// Refuses a change of mode or owner, which all files share.
    ///
    /// # Errors
    /// `EPERM`.
    pub(crate) fn check_unchanged(&self, change: &SetAttr) -> Result<(), Errno> {
        let is_as_before = change.mode.is_none_or(|mode| (mode ^ self.mode) & PERMISSIONS == 0)
            && change.uid.is_none_or(|uid| uid == self.uid)
            && change.gid.is_none_or(|gid| gid == self.gid);
        if is_as_before { Ok(()) } else { Err(Errno::PERM) }
    }

    /// Clears the set-id bits: that for the group only if its members may execute the file.
    pub(crate) fn kill_set_id(&mut self) {
        let is_for_group = self.mode & 0o010 != 0;
        self.mode &= if is_for_group { !SET_ID } else { !0o4000 };
    }
}

/// Returns whether the metadata of an empty object make it a directory, as other programs store
/// them: a flag (Azure Data Lake), a content type (s3fs), or the kind in the mode.
pub(crate) fn are_of_directory(metadata: &[(String, String)]) -> bool {
    metadata.iter().any(|(name, value)| match name.as_str() {
        "hdi_isfolder" => value.eq_ignore_ascii_case("true"),
        ":content-type" => value.starts_with("application/x-directory"),
        "mode" => mode_of(value).is_some_and(|mode| mode & KIND == DIRECTORY),
        _ => false,
    })
}

/// Returns whether anything but the length is to change.
pub(crate) fn changes_attributes(change: &SetAttr) -> bool {
    let SetAttr { size: _, mode, uid, gid, atime, mtime, kill_set_id } = *change;
    mode.is_some() || uid.is_some() || gid.is_some() || atime.is_some() || mtime.is_some() || kill_set_id
}

/// Parses a mode: decimal, as s3fs stores it, or octal, as rclone does. The type of file in the
/// number decides between the two; of links only mode 777 counts. A number without a type is octal
/// if it begins with a zero, else invalid.
fn mode_of(text: &str) -> Option<u32> {
    const ANY_LINK: u32 = SYMLINK | 0o777;
    let is_sensible = |mode: &u32| matches!(mode & !PERMISSIONS, REGULAR | DIRECTORY) || *mode == ANY_LINK;
    let octal = u32::from_str_radix(text, 8).ok();
    let bare = octal.filter(|mode| text.starts_with('0') && mode & !PERMISSIONS == 0);
    text.parse().ok().filter(is_sensible).or(octal.filter(is_sensible)).or(bare)
}

fn time_of(text: &str) -> Option<Timestamp> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = fraction.bytes().all(|byte| byte.is_ascii_digit()).then_some(fraction)?;
    let nanoseconds = format!("{digits:0<9}");
    Some(Timestamp { seconds: seconds.parse().ok()?, nanoseconds: nanoseconds[..9].parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Timestamp = Timestamp { seconds: 1_700_000_000, nanoseconds: 5_000_000 };

    fn usual() -> FileAttributes {
        FileAttributes::new(REGULAR | 0o644, (7, 8), TIME)
    }

    fn of(pairs: &[(&str, &str)]) -> FileAttributes {
        let of = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        let pairs: Vec<_> = pairs.iter().map(of).collect();
        FileAttributes::of(&pairs, &usual())
    }

    #[test]
    fn what_is_stored_is_read_again() {
        let mut attributes = usual();
        let change = SetAttr { mode: Some(0o7751), uid: Some(1), gid: Some(2), ..SetAttr::default() };
        attributes.change(&change);
        assert_eq!(attributes.mode, REGULAR | 0o7751);
        assert_eq!(FileAttributes::of(&attributes.to_metadata(), &usual()), attributes);
        let link = FileAttributes { mode: SYMLINK | 0o777, ..usual() };
        assert_eq!(FileAttributes::of(&link.to_metadata(), &usual()).kind(), FileKind::Symlink);
    }

    #[test]
    fn what_makes_no_sense_is_as_usual() {
        assert_eq!(of(&[]), usual());
        assert_eq!(of(&[("mode", "-1"), ("uid", "x"), ("mtime", "1.x"), ("ctime", "")]), usual());
        for text in ["24676", "644", "755", "0", "4294967295", "+33188x", "100844"] {
            let usual = usual().mode;
            assert!([usual, REGULAR].contains(&of(&[("mode", text)]).mode), "{text}");
        }
        assert_eq!(of(&[("mtime", "-5.5")]).mtime, Timestamp { seconds: -5, nanoseconds: 500_000_000 });
        assert_eq!(of(&[("mtime", "7.1234567899")]).mtime.nanoseconds, 123_456_789);
        let directory = FileAttributes { mode: DIRECTORY | 0o755, ..usual() };
        let link = vec![("mode".to_owned(), (SYMLINK | 0o777).to_string())];
        assert_eq!(FileAttributes::of(&link, &directory).mode, DIRECTORY | 0o777);
    }

    #[test]
    fn modes_are_read_in_the_notations_of_other_programs() {
        for (text, mode) in [
            ("33188", 0o644),
            ("33261", 0o755),
            ("35309", 0o4755),
            ("100644", 0o644),
            ("100600", 0o600),
            ("104755", 0o4755),
            ("0600", 0o600),
        ] {
            assert_eq!(of(&[("mode", text)]).mode, REGULAR | mode, "{text}");
        }
        let modes = (0..=PERMISSIONS).flat_map(|bits| [REGULAR | bits, DIRECTORY | bits]);
        for mode in modes.chain([SYMLINK | 0o777]) {
            assert_eq!(mode_of(&mode.to_string()), Some(mode));
            // The octal mode of this directory has the same digits as the decimal mode of a link.
            if mode != 0o41471 {
                assert_eq!(mode_of(&format!("{mode:o}")), Some(mode));
            }
        }
    }

    #[test]
    fn set_id_bits_go_as_they_do_elsewhere() {
        let killed = |mode| {
            let mut attributes = FileAttributes { mode, ..usual() };
            attributes.kill_set_id();
            attributes.mode
        };
        assert_eq!(killed(REGULAR | 0o6755), REGULAR | 0o755);
        assert_eq!(killed(REGULAR | 0o6745), REGULAR | 0o2745, "a mark for locks");
    }
}
