//! Operations on attributes, and opening: one at a time for each inode, so each has one right
//! result.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::together::inode::{Attributes, Inode, Kind};
use crate::together::model::LEN_MAX;
use crate::together::tree::Place;
use crate::together::user::User;
use crate::together::world::Stop;

const XATTRS: [&str; 4] = ["user.one", "user.two", "user.three", "trusted.four"];
const CAPABILITIES: &str = "security.capability";
const XATTR_LEN_MAX: usize = 300;

/// A change of attributes.
#[derive(Debug)]
enum Change {
    Mode(u32),
    Owner(u32, u32),
    Time(Timespec),
    SetXattr(&'static str, Vec<u8>, XattrFlags),
    RemoveXattr(&'static str),
    SetCapabilities(Vec<u8>),
}

impl Change {
    /// Returns the attributes afterwards, or the error.
    fn expected(&self, inode: &Inode, before: &Attributes) -> Result<Attributes, Errno> {
        let mut after = before.clone();
        match self {
            Self::Mode(mode) => after.mode = *mode,
            Self::Owner(uid, gid) => {
                (after.uid, after.gid) = (*uid, *gid);
                // As Linux does for root, too.
                if inode.is_file() {
                    after.capabilities = None;
                    after.mode &= !0o4000;
                    after.mode &= if after.mode & 0o10 != 0 { !0o2000 } else { !0 };
                }
            }
            // Whether they stay depends on the changes of data that are under way.
            Self::Time(_) => after.mtime = None,
            Self::SetCapabilities(value) => after.capabilities = Some((value.clone(), u64::MAX)),
            Self::SetXattr(name, value, flags) => {
                let is_there = after.xattrs.contains_key(*name);
                if *flags == XattrFlags::CREATE && is_there {
                    return Err(Errno::EXIST);
                }
                if *flags == XattrFlags::REPLACE && !is_there {
                    return Err(Errno::NODATA);
                }
                after.xattrs.insert((*name).to_owned(), value.clone());
            }
            Self::RemoveXattr(name) => {
                after.xattrs.remove(*name).ok_or(Errno::NODATA)?;
            }
        }
        Ok(after)
    }

    fn make(&self, fd: &OwnedFd) -> Result<(), Errno> {
        match self {
            Self::Mode(mode) => rustix::fs::fchmod(fd, Mode::from_raw_mode(*mode)),
            Self::Owner(uid, gid) => {
                rustix::fs::fchown(fd, Some(Uid::from_raw(*uid)), Some(Gid::from_raw(*gid)))
            }
            Self::Time(time) => {
                rustix::fs::futimens(fd, &Timestamps { last_access: *time, last_modification: *time })
            }
            Self::SetXattr(name, value, flags) => rustix::fs::fsetxattr(fd, *name, value, *flags),
            Self::RemoveXattr(name) => rustix::fs::fremovexattr(fd, *name),
            Self::SetCapabilities(value) => {
                rustix::fs::fsetxattr(fd, CAPABILITIES, value, XattrFlags::empty())
            }
        }
    }
}

/// The extended attributes of an open file that are users' or the superuser's.
pub fn xattrs_of(fd: &OwnedFd) -> Result<std::collections::BTreeMap<String, Vec<u8>>, Errno> {
    let mut names = vec![0; 4096];
    let len = rustix::fs::flistxattr(fd, &mut names[..])?;
    let names: BTreeSet<String> = names[..len]
        .split(|&byte| byte == 0)
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect();
    let is_ours = |name: &String| name.starts_with("user.") || name.starts_with("trusted.");
    let value = |name: String| {
        let mut value = vec![0; XATTR_LEN_MAX + 1];
        let len = rustix::fs::fgetxattr(fd, name.as_str(), &mut value[..])?;
        value.truncate(len);
        Ok((name, value))
    };
    names.into_iter().filter(is_ours).map(value).collect()
}

/// The capabilities of an open file.
pub fn capabilities_of(fd: &OwnedFd) -> Result<Option<Vec<u8>>, Errno> {
    let mut value = vec![0; 64];
    match rustix::fs::fgetxattr(fd, CAPABILITIES, &mut value[..]) {
        Ok(len) => {
            value.truncate(len);
            Ok(Some(value))
        }
        Err(Errno::NODATA) => Ok(None),
        Err(errno) => Err(errno),
    }
}

impl User {
    /// Opens what is at a place.
    pub fn open(&mut self) -> Result<(), Stop> {
        let (place, world) = (Place::any(&mut self.random), Arc::clone(&self.world));
        let looked = world.tree.look(place)?;
        self.begin(format!("open of {}", place.path()));
        let there = looked.there();
        let expected = there.clone().and_then(|inode| match inode.ok_or(Errno::NOENT)?.kind {
            Kind::File => Ok(()),
            Kind::Directory => Err(Errno::ISDIR),
            Kind::Symlink { .. } => Err(Errno::LOOP),
        });
        let opened = world.settle(world.open(&place.path(), OFlags::RDWR | OFlags::NOFOLLOW))?;
        match (opened, expected) {
            (Ok(fd), Ok(())) => {
                let inode = there.ok().flatten().expect("it was to go well");
                self.tell(&inode, &Ok(()));
                self.keep(inode, fd);
                Ok(())
            }
            (Err(is), Err(should)) if is == should => Ok(()),
            (is, expected) => {
                let story = world.tree.story(place.slot);
                Stop::wrong(format!("{:?}, but {expected:?} is right\n{story}", is.map(drop)))
            }
        }
    }

    /// An inode with a descriptor of it: an open file, or a directory.
    fn for_attributes(&mut self) -> Result<Option<(Arc<Inode>, OwnedFd)>, Stop> {
        let world = Arc::clone(&self.world);
        if self.random.below(4) > 0
            && let Some(at) = self.some_file()
        {
            let (inode, fd) = &self.open[at];
            return Ok(Some((Arc::clone(inode), fd.try_clone().expect("a descriptor"))));
        }
        let place = Place::any(&mut self.random);
        let looked = world.tree.look(place)?;
        let Ok(Some(inode)) = looked.there() else { return Ok(None) };
        if inode.kind != Kind::Directory {
            return Ok(None);
        }
        self.begin(format!("open of directory {}", place.path()));
        match world.settle(world.open(&place.path(), OFlags::RDONLY | OFlags::DIRECTORY))? {
            Ok(fd) => Ok(Some((inode, fd))),
            Err(errno) => self.wrong(&inode, errno),
        }
    }

    fn change(&mut self, is_file: bool) -> Change {
        let random = &mut self.random;
        let name = XATTRS[random.below(XATTRS.len())];
        match random.below(7) {
            6 if is_file => {
                // Version 2, with some of the first 32 permitted.
                let mut value = vec![0; 20];
                (value[3], value[4]) = (2, 1 << random.below(8));
                Change::SetCapabilities(value)
            }
            0 => {
                let special = if is_file { [0, 0, 0o4000, 0o2010][random.below(4)] } else { 0 };
                Change::Mode(0o700 | special | random.below(0o100) as u32)
            }
            1 => Change::Owner(random.below(4) as u32, random.below(4) as u32),
            2 => Change::Time(Timespec {
                tv_sec: random.below(2_000_000_000) as i64,
                tv_nsec: random.below(1_000_000_000) as _,
            }),
            3 | 4 => {
                let flags = [XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE];
                let value = vec![random.below(256) as u8; random.below(XATTR_LEN_MAX)];
                Change::SetXattr(name, value, flags[random.below(3)])
            }
            _ => Change::RemoveXattr(name),
        }
    }

    /// One change of attributes.
    pub fn change_attributes(&mut self) -> Result<(), Stop> {
        let Some((inode, fd)) = self.for_attributes()? else { return Ok(()) };
        let (world, change) = (Arc::clone(&self.world), self.change(inode.is_file()));
        let mut known = inode.known()?;
        // A change from outside while the time is set has that time, and cannot be noticed.
        let _beside = matches!(change, Change::Time(_)).then(|| inode.beside_others());
        self.begin(format!("{change:.60?} of inode {}", inode.nr));
        let expected = change.expected(&inode, &known.now);
        let changes_before = inode.nr_changes();
        let result = match world.settle(change.make(&fd)) {
            Err(Stop::Over) => {
                // What began when the daemon was dead already has not happened.
                if let Ok(after) = expected {
                    known.or_else = Some(after);
                }
                return Err(Stop::Over);
            }
            settled => settled?,
        };
        self.tell(&inode, &result);
        match (result, expected) {
            (Ok(()), Ok(mut after)) => {
                if let Change::Time(time) = change
                    && inode.is_file()
                    && let Some(changes) = changes_before
                    && inode.nr_changes() == changes_before
                {
                    after.mtime = Some((time, changes));
                }
                if let (Change::SetCapabilities(_), Some((_, begun))) = (&change, &mut after.capabilities) {
                    let is_still = inode.nr_changes() == changes_before;
                    // No number of changes is the largest: they may be there or not.
                    *begun = changes_before.filter(|_| is_still).unwrap_or(u64::MAX);
                }
                known.now = after;
                Ok(())
            }
            (Err(is), Err(should)) if is == should => Ok(()),
            (Err(errno), Ok(_)) if world.is_excused(errno) => Ok(()),
            (is, expected) => {
                let expected = expected.map(drop);
                self.wrong(&inode, format_args!("{is:?}, but {expected:?} is right"))
            }
        }
    }

    /// Looks at all attributes.
    pub fn stat(&mut self) -> Result<(), Stop> {
        if self.random.below(3) == 0 {
            return self.stat_name();
        }
        let Some((inode, fd)) = self.for_attributes()? else { return Ok(()) };
        let world = Arc::clone(&self.world);
        let known = inode.known()?;
        self.begin(format!("stat of inode {}", inode.nr));
        let since = inode.data.begin_read();
        let stat = world.settle(rustix::fs::fstat(&fd));
        let xattrs = world.settle(xattrs_of(&fd));
        let capabilities = world.settle(capabilities_of(&fd));
        let len = stat.as_ref().ok().and_then(|stat| stat.as_ref().ok()).map(|stat| stat.st_size as usize);
        let len = inode.data.end_look(since, len.filter(|_| inode.is_file()));
        let (stat, xattrs, capabilities) = match (stat?, xattrs?, capabilities?) {
            (Ok(stat), Ok(xattrs), Ok(capabilities)) => (stat, xattrs, capabilities),
            (stat, xattrs, capabilities) => {
                let errors = (stat.err(), xattrs.err(), capabilities.err());
                return self.wrong(&inode, format_args!("{errors:?}"));
            }
        };
        let checked = len
            .and_then(|()| inode.check_stat(&known.now, &stat))
            .and_then(|()| inode.check_mtime(&known.now, &stat))
            .and_then(|()| inode.check_capabilities(&known.now, capabilities.as_deref()));
        if let Err(why) = checked {
            return self.wrong(&inode, why);
        }
        if xattrs != known.now.xattrs {
            let should = &known.now.xattrs;
            return self.wrong(&inode, format_args!("extended attributes {xattrs:?}, not {should:?}"));
        }
        Ok(())
    }

    /// Looks at a name, and where it leads if it is a link.
    fn stat_name(&mut self) -> Result<(), Stop> {
        let (place, world) = (Place::any(&mut self.random), Arc::clone(&self.world));
        let looked = world.tree.look(place)?;
        let there = looked.there().and_then(|inode| inode.ok_or(Errno::NOENT));
        let known = there.as_ref().ok().map(|inode| inode.known()).transpose()?;
        self.begin(format!("stat of {}", place.path()));
        let stat = world.settle(rustix::fs::statat(&world.root, place.path(), AtFlags::SYMLINK_NOFOLLOW))?;
        let checked = match (&stat, &there) {
            (Ok(stat), Ok(inode)) => inode.check_stat(&known.as_ref().unwrap().now, stat),
            (Err(is), Err(should)) if is == should => Ok(()),
            (is, _) => Err(format!("{:?}", is.map(|_| "it went well"))),
        };
        if let Err(why) = checked {
            let story = world.tree.story(place.slot);
            let why = format!("{why}; by the model {:?}\n{story}", there.as_ref().map(|inode| inode.nr));
            return match &there {
                Ok(inode) => self.wrong(inode, &why),
                Err(_) => Stop::wrong(why),
            };
        }
        let Ok(inode) = &there else { return Ok(()) };
        let Kind::Symlink { target } = &inode.kind else { return Ok(()) };
        match world.settle(rustix::fs::readlinkat(&world.root, place.path(), Vec::new()))? {
            Ok(is) if CStr::to_bytes(&is) == target.as_bytes() => Ok(()),
            is => self.wrong(inode, format_args!("a link to {is:?}, not to {target}")),
        }
    }

    /// Checks that there are zeroes where `SEEK_DATA` finds nothing.
    pub fn seek(&mut self) -> Result<(), Stop> {
        use rustix::fs::SeekFrom;
        let Some(at) = self.some_file() else { return Ok(()) };
        let (inode, fd) = (Arc::clone(&self.open[at].0), self.open[at].1.try_clone().expect("a descriptor"));
        let (world, from) = (Arc::clone(&self.world), self.random.below(self.world.len_max));
        self.begin(format!("SEEK_DATA from {from} in inode {}", inode.nr));
        let _beside = inode.beside_others();
        let since = inode.data.begin_read();
        let found = world.settle(rustix::fs::seek(&fd, SeekFrom::Data(from as u64)));
        let zeroes = match &found {
            Ok(Ok(to)) => Some(vec![0; (*to as usize).clamp(from, LEN_MAX) - from]),
            _ => None,
        };
        let asked = zeroes.as_ref().map_or(0, Vec::len);
        let checked = inode.data.end_read(since, from, asked, zeroes.as_deref());
        match (found?, checked) {
            (Ok(to), _) if (to as usize) < from => self.wrong(&inode, format_args!("data at {to}")),
            (Ok(_) | Err(Errno::NXIO), Ok(())) => Ok(()),
            (Ok(to), Err(why)) => self.wrong(&inode, format_args!("{to}, but there is data before: {why}")),
            (Err(errno), _) => self.wrong(&inode, errno),
        }
    }
}
