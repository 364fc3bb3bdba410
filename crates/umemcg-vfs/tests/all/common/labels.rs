//! What is stored beside the bytes of a file, as a test expects it and as a bucket has it, and the
//! changes of it.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use percent_encoding::percent_decode_str;
use umemcg_vfs::bucket::Metadata;
use umemcg_vfs::{Attr, Lookup, SetAttr, SetTime, Timestamp, VfsError, XattrFlags, Xattrs};

use super::object_world::World;

/// Names of extended attributes.
pub const XATTRS: [&str; 3] = ["user.a", "user.b", "user.colour"];

/// See the module text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// None if it is that of some write.
    pub mtime: Option<Timestamp>,
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

impl Default for Labels {
    /// Those of a file that a [`World`] has made.
    fn default() -> Self {
        Self { mode: 0o644, uid: 0, gid: 0, mtime: None, xattrs: BTreeMap::new() }
    }
}

/// A change of labels.
#[derive(Debug, Clone)]
pub enum Change {
    Mode(u32),
    Owner(u32, u32),
    Time(Timestamp),
    SetXattr(&'static str, Vec<u8>),
    RemoveXattr(&'static str),
}

impl Change {
    /// Returns any; `below` returns a number below another.
    pub fn any(mut below: impl FnMut(u64) -> u64) -> Self {
        let name = XATTRS[below(XATTRS.len() as u64) as usize];
        match below(7) {
            0 | 1 => Self::Mode(0o400 | below(0o400) as u32),
            2 => Self::Owner(below(5) as u32, below(5) as u32),
            3 | 4 => {
                let nanoseconds = below(1_000_000_000) as u32;
                Self::Time(Timestamp { seconds: 1_000_000_000 + below(1 << 29) as i64, nanoseconds })
            }
            5 => Self::SetXattr(name, (0..below(40)).map(|at| at as u8 ^ 0xa5).collect()),
            _ => Self::RemoveXattr(name),
        }
    }

    /// Makes it of a name.
    pub fn run(&self, w: &World, path: &str) -> Result<(), VfsError> {
        let set = |change: SetAttr| w.set(path, &change).map(drop);
        match self {
            Self::Mode(mode) => set(SetAttr { mode: Some(*mode), ..SetAttr::default() }),
            Self::Owner(uid, gid) => set(SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() }),
            Self::Time(time) => set(SetAttr { mtime: Some(SetTime::At(*time)), ..SetAttr::default() }),
            Self::SetXattr(name, value) => {
                let entry = w.find(path)?;
                let flags = XattrFlags::empty();
                let set = w.volume.setxattr(&w.me, entry.node, OsStr::new(name), value, flags, false);
                w.volume.forget(entry.node, 1);
                set
            }
            Self::RemoveXattr(name) => {
                let entry = w.find(path)?;
                let removed = w.volume.removexattr(&w.me, entry.node, OsStr::new(name));
                w.volume.forget(entry.node, 1);
                removed
            }
        }
    }
}

impl Labels {
    /// Returns what they become; `None` if there is no such extended attribute.
    pub fn with(&self, change: &Change) -> Option<Self> {
        let mut labels = self.clone();
        match change {
            Change::Mode(mode) => labels.mode = *mode,
            Change::Owner(uid, gid) => (labels.uid, labels.gid) = (*uid, *gid),
            Change::Time(time) => labels.mtime = Some(*time),
            Change::SetXattr(name, value) => drop(labels.xattrs.insert((*name).into(), value.clone())),
            Change::RemoveXattr(name) => drop(labels.xattrs.remove(*name)?),
        }
        Some(labels)
    }

    /// Returns those of a file that is written to.
    pub fn written(&self) -> Self {
        Self { mtime: None, ..self.clone() }
    }

    /// Returns those that the metadata of an object tell.
    pub fn of(metadata: &Metadata) -> Self {
        let value = |wanted: &str| metadata.iter().find(|(name, _)| name == wanted).map(|(_, value)| value);
        let number = |name: &str| value(name).expect("a number").parse::<u32>().unwrap();
        let (seconds, nanoseconds) = value("mtime").expect("a time").split_once('.').unwrap();
        let mtime =
            Timestamp { seconds: seconds.parse().unwrap(), nanoseconds: nanoseconds.parse().unwrap() };
        let xattrs = value("xattr").map_or_else(BTreeMap::new, |value| {
            let text = percent_decode_str(value).decode_utf8().unwrap().into_owned();
            let encoded: BTreeMap<String, String> = serde_json::from_str(&text).unwrap();
            encoded.into_iter().map(|(name, value)| (name, BASE64.decode(value).unwrap())).collect()
        });
        let mode = number("mode") & 0o7777;
        Self { mode, uid: number("uid"), gid: number("gid"), mtime: Some(mtime), xattrs }
    }

    /// Returns whether these can be what a bucket has.
    pub fn allow(&self, stored: &Self) -> bool {
        let is_time = self.mtime.is_none() || self.mtime == stored.mtime;
        is_time && self.written() == stored.written()
    }

    /// Returns whether these can be what a volume shows.
    pub fn allow_shown(&self, attr: &Attr) -> bool {
        let is_time = self.mtime.is_none_or(|time| time == attr.mtime);
        is_time && (self.mode, self.uid, self.gid) == (attr.mode & 0o7777, attr.uid, attr.gid)
    }

    /// Returns whether a name has these extended attributes.
    pub fn allow_xattrs(&self, w: &World, path: &str) -> Result<bool, VfsError> {
        let entry = w.find(path)?;
        let value = |name| match w.volume.getxattr(entry.node, OsStr::new(name)) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.errno() == rustix::io::Errno::NODATA => Ok(None),
            Err(error) => Err(error),
        };
        let found: Result<Vec<_>, _> = XATTRS.iter().map(value).collect();
        w.volume.forget(entry.node, 1);
        Ok(found?.into_iter().zip(XATTRS).all(|(found, name)| found.as_ref() == self.xattrs.get(name)))
    }
}
