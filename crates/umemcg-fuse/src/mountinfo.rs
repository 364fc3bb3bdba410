//! The mounts of this process, as `/proc/self/mountinfo` lists them. Reading it sends no request to
//! any file system, so it is safe even if mounts are dead or hang.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Its number, unique among the present mounts.
    pub id: u64,
    /// `major:minor` of the mounted file system, unique among those mounted now.
    pub device: String,
    /// The mounted directory of the file system.
    pub root: PathBuf,
    /// The mount point.
    pub point: PathBuf,
    /// Options of the mount itself, separated by commas.
    pub options: String,
    /// Type, with its subtype: `fuse.umemcg`.
    pub kind: String,
    /// The source of the mount.
    pub source: OsString,
    /// Options of the file system, separated by commas.
    pub super_options: String,
}

impl Mount {
    /// Returns whether a daemon serves it.
    pub fn is_fuse(&self) -> bool {
        self.kind == "fuse" || self.kind == "fuseblk" || self.kind.starts_with("fuse.")
    }

    /// Returns the user that mounted a FUSE file system.
    pub fn fuse_owner(&self) -> Option<u32> {
        self.super_options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok())
    }
}

/// Returns the topmost mount exactly at this absolute path without symlinks.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn mount_at(point: &Path) -> io::Result<Option<Mount>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    Ok(parse(&text).rfind(|mount| mount.point == point))
}

/// Returns the mounts of a mountinfo text, bottom up. A truncated line is skipped.
pub fn parse(text: &[u8]) -> impl DoubleEndedIterator<Item = Mount> {
    let mounts: Vec<Mount> = text.split(|&byte| byte == b'\n').filter_map(parse_line).collect();
    mounts.into_iter()
}

/// Parses `id parent major:minor root point options [optional...] - type source super-options`.
fn parse_line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    Some(Mount {
        id: umemcg_control::parse_decimal(fields.first()?)?,
        device: text(fields.get(2)?),
        root: PathBuf::from(unescape(fields.get(3)?)),
        point: PathBuf::from(unescape(fields.get(4).filter(|_| dash > 5)?)),
        options: text(fields.get(5)?),
        kind: text(fields.get(dash + 1)?),
        source: unescape(fields.get(dash + 2)?),
        super_options: text(fields.get(dash + 3)?),
    })
}

/// Decodes white space and backslashes, written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        let code = field.get(at + 1..at + 4).filter(|_| field[at] == b'\\');
        let code = code.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        out.push(code.unwrap_or(field[at]));
        at += if code.is_some() { 4 } else { 1 };
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_apart_and_nonsense_is_passed_over() {
        let text = b"1 2 0:45 / /mnt/a\\040b rw,nosuid shared:1 - fuse.umemcg /data\\134 rw,user_id=0\nnonsense\n- - -\n\n";
        let mounts: Vec<Mount> = parse(text).collect();
        assert_eq!(mounts.len(), 1);
        assert_eq!((mounts[0].id, mounts[0].point.as_path()), (1, Path::new("/mnt/a b")));
        assert_eq!(mounts[0].source, "/data\\");
        assert!(mounts[0].is_fuse() && mounts[0].device == "0:45" && mounts[0].root == Path::new("/"));
        assert_eq!(mounts[0].fuse_owner(), Some(0));
    }

    #[test]
    fn the_root_is_mounted_and_an_invented_path_is_not() {
        assert!(mount_at(Path::new("/")).unwrap().is_some());
        assert!(mount_at(Path::new("/no such path")).unwrap().is_none());
    }
}
