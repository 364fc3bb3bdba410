//! The operations of users without privileges on files and names, by the modes and owners of the
//! model.
//!
//! A thread becomes such a user for one call. The attributes that decide about it are held
//! meanwhile, so it has one right result.

use std::sync::{Arc, MutexGuard};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};

use crate::together::disk::CELL;
use crate::together::inode::{Attributes, CutShort, Inode, Kind, Known};
use crate::together::names::unlinked;
use crate::together::tree::{DIRECTORY_MODES, Held, NR_NAMES, Node, Place};
use crate::together::user::User;
use crate::together::world::Stop;

/// Each has a group of the same number. Files are theirs and root's.
const NR_ORDINARY: usize = 3;
const READ: u32 = 4;
const WRITE: u32 = 2;
const SEARCH: u32 = 1;
const STICKY: u32 = 0o1000;

/// The calling thread is an ordinary user until this is dropped.
struct Disguise;

impl Disguise {
    fn of(id: u32) -> Self {
        set_thread_res_gid(None, Gid::from_raw(id), None).expect("root may be in any group");
        set_thread_res_uid(None, Uid::from_raw(id), None).expect("root may be any user");
        Self
    }
}

impl Drop for Disguise {
    fn drop(&mut self) {
        set_thread_res_uid(None, Uid::ROOT, None).expect("the saved user is root");
        set_thread_res_gid(None, Gid::ROOT, None).expect("root may be in any group");
    }
}

/// Returns whether the mode lets a user in.
fn may(user: u32, attributes: &Attributes, wanted: u32) -> bool {
    let shift = match attributes {
        _ if attributes.uid == user => 6,
        _ if attributes.gid == user => 3,
        _ => 0,
    };
    attributes.mode >> shift & wanted == wanted
}

/// Inodes whose attributes do not change.
pub struct Kept<'a>(Vec<(&'a Inode, MutexGuard<'a, Known>)>);

impl<'a> Kept<'a> {
    /// In the order of their locks.
    pub fn new(inodes: &'a [Arc<Inode>]) -> Result<Self, CutShort> {
        let kept: Result<_, _> =
            inodes.iter().map(|inode| inode.known().map(|known| (&**inode, known))).collect();
        kept.map(Self)
    }

    pub fn known(&mut self) -> impl Iterator<Item = (&'a Inode, &mut Known)> {
        self.0.iter_mut().map(|(inode, known)| (*inode, &mut **known))
    }

    pub fn of(&self, inode: &Inode) -> &Attributes {
        let (_, known) = self.0.iter().find(|(kept, _)| kept.nr == inode.nr).expect("it is kept");
        &known.now
    }

    /// Of the directory that a place is in: one of the model's, or one that stays.
    fn of_directory(&self, place: Place, directory: Option<&Inode>) -> Attributes {
        let stays = || Attributes { mode: DIRECTORY_MODES[place.slot / NR_NAMES], ..Attributes::default() };
        directory.map_or_else(stays, |directory| self.of(directory).clone())
    }
}

/// Returns the inode at a place, and the directory of the model that it is in.
fn concerned(held: &Held<'_>, place: Place) -> (Option<Arc<Inode>>, Option<Arc<Inode>>) {
    let at = |place| held.at(place).ok().flatten().map(|node: Node| node.inode);
    let directory = place.child.and_then(|_| at(Place { child: None, ..place }));
    (at(place), directory.filter(|inode| inode.kind == Kind::Directory))
}

impl User {
    fn ordinary(&mut self) -> u32 {
        1 + self.random.below(NR_ORDINARY) as u32
    }

    /// One operation of an ordinary user.
    pub fn act_as_ordinary_user(&mut self) -> Result<(), Stop> {
        match self.random.below(5) {
            0 => self.open_as_ordinary_user(),
            1 => self.write_as_ordinary_user(),
            2 => self.change_attributes_as_ordinary_user(),
            3 => self.create_as_ordinary_user(),
            _ => self.unlink_as_ordinary_user(),
        }
    }

    fn open_as_ordinary_user(&mut self) -> Result<(), Stop> {
        let (place, user, world) = (Place::any(&mut self.random), self.ordinary(), Arc::clone(&self.world));
        let (flags, wanted) = [(OFlags::RDONLY, READ), (OFlags::WRONLY, WRITE), (OFlags::RDWR, READ | WRITE)]
            [self.random.below(3)];
        let looked = world.tree.look(place)?;
        self.begin(format!("open of {} by user {user}, {flags:?}", place.path()));
        let (there, directory) = (looked.there(), looked.directory());
        let mut inodes: Vec<_> =
            [there.clone().ok().flatten(), directory.clone()].into_iter().flatten().collect();
        inodes.sort_by_key(|inode| inode.nr);
        let kept = Kept::new(&inodes)?;
        let expected = match &there {
            Ok(_) if !may(user, &kept.of_directory(place, directory.as_deref()), SEARCH) => {
                Err(Errno::ACCESS)
            }
            Err(errno) => Err(*errno),
            Ok(None) => Err(Errno::NOENT),
            Ok(Some(inode)) => match inode.kind {
                Kind::Symlink { .. } => Err(Errno::LOOP),
                Kind::Directory if wanted & WRITE != 0 => Err(Errno::ISDIR),
                _ if may(user, kept.of(inode), wanted) => Ok(()),
                _ => Err(Errno::ACCESS),
            },
        };
        let opened = {
            let _disguise = Disguise::of(user);
            world.open(&place.path(), flags | OFlags::NOFOLLOW)
        };
        let opened = world.settle(opened)?.map(drop);
        if opened == expected {
            return Ok(());
        }
        let attributes = there.ok().flatten().map(|inode| kept.of(&inode).clone());
        let story = world.tree.story(place.slot);
        Stop::wrong(format!("{opened:?}, but {expected:?} is right; {attributes:?}\n{story}"))
    }

    /// Through a descriptor that is open for writing: set-id bits go.
    fn write_as_ordinary_user(&mut self) -> Result<(), Stop> {
        let Some(at) = self.some_file() else { return Ok(()) };
        let (inode, fd) = (Arc::clone(&self.open[at].0), self.open[at].1.try_clone().expect("a descriptor"));
        let (user, world, value) =
            (self.ordinary(), Arc::clone(&self.world), 1 + self.random.below(255) as u8);
        let mut known = inode.known()?;
        let _beside = inode.beside_others();
        let nr_cells = inode.data.len() / CELL;
        let cell = self.random.below(nr_cells.max(1));
        let range = cell * CELL..(cell + 1) * CELL;
        let Some(_claim) = inode.data.claim(range.clone()) else { return Ok(()) };
        if range.end > inode.data.len() {
            return Ok(());
        }
        let _changing = inode.change();
        self.begin(format!("write of {range:?} = {value} to inode {} by user {user}", inode.nr));
        let after = Attributes { mode: known.now.mode & !0o6000, ..known.now.clone() };
        inode.data.begin_fill(&range, value);
        let written = {
            let _disguise = Disguise::of(user);
            rustix::io::pwrite(&fd, &[value; CELL], range.start as u64)
        };
        let settled = world.settle(written);
        if settled.is_err() {
            known.or_else = Some(after.clone());
        }
        let result = settled?;
        self.tell(&inode, &result);
        match result {
            Ok(CELL) => {
                inode.data.end_fill(&range, CELL, 0);
                known.now = after;
                Ok(())
            }
            Err(errno) if world.is_excused(errno) => {
                // The bits go when the write is accepted, which it may have been.
                if let Ok(stat) = world.settle(rustix::fs::fstat(&fd))?
                    && stat.st_mode & 0o7777 == after.mode
                {
                    known.now = after;
                }
                Ok(())
            }
            other => self.wrong(&inode, format_args!("{other:?}")),
        }
    }

    /// The owner may change mode and times, and users that the mode lets write may set extended
    /// attributes.
    fn change_attributes_as_ordinary_user(&mut self) -> Result<(), Stop> {
        let Some(at) = self.some_file() else { return Ok(()) };
        let (inode, fd) = (Arc::clone(&self.open[at].0), self.open[at].1.try_clone().expect("a descriptor"));
        let (user, world, kind) = (self.ordinary(), Arc::clone(&self.world), self.random.below(3));
        let (mode, value) = (0o600 | self.random.below(0o200) as u32, vec![self.random.below(256) as u8; 9]);
        let mut known = inode.known()?;
        // A change from outside while times are set has those times, and cannot be noticed.
        let _beside = (kind == 1).then(|| inode.beside_others());
        let what = ["mode", "times", "extended attribute"][kind];
        self.begin(format!("{what} of inode {} by user {user}: {mode:#o}, {value:?}", inode.nr));
        let mut after = known.now.clone();
        match kind {
            0 => after.mode = mode,
            1 => after.mtime = None,
            _ => drop(after.xattrs.insert("user.one".to_owned(), value.clone())),
        }
        let expected = match kind {
            0 | 1 if known.now.uid != user => Err(Errno::PERM),
            2 if !may(user, &known.now, WRITE) => Err(Errno::ACCESS),
            _ => Ok(()),
        };
        let time = Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
        let changed = {
            let _disguise = Disguise::of(user);
            match kind {
                0 => rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode)),
                1 => rustix::fs::futimens(&fd, &Timestamps { last_access: time, last_modification: time }),
                _ => rustix::fs::fsetxattr(&fd, "user.one", &value, XattrFlags::empty()),
            }
        };
        let settled = world.settle(changed);
        if settled.is_err() && expected.is_ok() {
            known.or_else = Some(after.clone());
        }
        let result = settled?;
        self.tell(&inode, &result);
        match (result, expected) {
            (Ok(()), Ok(())) => known.now = after,
            (Err(is), Err(should)) if is == should => {}
            (Err(errno), Ok(())) if world.is_excused(errno) => {}
            (is, should) => {
                return self.wrong(&inode, format_args!("{is:?}, but {should:?} is right; {:?}", known.now));
            }
        }
        Ok(())
    }

    fn create_as_ordinary_user(&mut self) -> Result<(), Stop> {
        let (place, user, mode) = (Place::any(&mut self.random), self.ordinary(), self.mode());
        let world = Arc::clone(&self.world);
        let held = world.tree.hold(&[place])?;
        self.begin(format!("creation of {} by user {user}", place.path()));
        let new = world.inode(Kind::File, Attributes { mode, uid: user, gid: user, ..Attributes::default() });
        let expected = match held.at(place) {
            Err(errno) => Err(errno),
            Ok(None) => Ok(vec![(place, Some(Node::new(Arc::clone(&new))))]),
            Ok(Some(_)) => Err(Errno::EXIST),
        };
        let (there, directory) = concerned(&held, place);
        let is_path_right = held.at(place).is_ok();
        let refusal = |kept: &Kept<'_>| {
            let above = kept.of_directory(place, directory.as_deref());
            let wanted = if there.is_some() { SEARCH } else { SEARCH | WRITE };
            (is_path_right && !may(user, &above, wanted)).then_some(Errno::ACCESS)
        };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let besides: Vec<_> = [&there, &directory].into_iter().flatten().cloned().collect();
        let made = self.on_names_unless(held, expected, &besides, refusal, |root| {
            let _disguise = Disguise::of(user);
            rustix::fs::openat(root, place.path(), flags, Mode::from_raw_mode(mode))
        })?;
        if let Some(fd) = made {
            self.keep(new, fd);
        }
        Ok(())
    }

    fn unlink_as_ordinary_user(&mut self) -> Result<(), Stop> {
        let (place, user, is_rmdir) =
            (Place::any(&mut self.random), self.ordinary(), self.random.below(4) == 0);
        let world = Arc::clone(&self.world);
        let held = world.tree.hold(&[place])?;
        self.begin(format!(
            "{} of {} by user {user}",
            if is_rmdir { "rmdir" } else { "unlink" },
            place.path()
        ));
        let expected = unlinked(&held, place, is_rmdir);
        let (there, directory) = concerned(&held, place);
        let is_path_right = held.at(place).is_ok();
        let refusal = |kept: &Kept<'_>| {
            let above = kept.of_directory(place, directory.as_deref());
            let wanted = if there.is_some() { SEARCH | WRITE } else { SEARCH };
            if is_path_right && !may(user, &above, wanted) {
                return Some(Errno::ACCESS);
            }
            let owners = [above.uid, kept.of(there.as_deref()?).uid];
            (above.mode & STICKY != 0 && !owners.contains(&user)).then_some(Errno::PERM)
        };
        let flags = if is_rmdir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let besides: Vec<_> = [&there, &directory].into_iter().flatten().cloned().collect();
        self.on_names_unless(held, expected, &besides, refusal, |root| {
            let _disguise = Disguise::of(user);
            rustix::fs::unlinkat(root, place.path(), flags)
        })?;
        Ok(())
    }
}
