//! Operations on names. Each has one right result, since its places are held while it runs.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::together::inode::{Attributes, Inode, Kind};
use crate::together::ordinary::Kept;
use crate::together::tree::{After, Held, NR_DIRECTORIES, NR_NAMES, Node, Place};
use crate::together::user::User;
use crate::together::world::Stop;

/// Most attempts to correct the kernel's count of names: it ignores attributes that arrive beside
/// another change of the inode.
const NR_LOOKS_MAX: usize = 16;

/// Says whether one inode has lost or won names.
fn names_won(inode: &Inode, held: &Held<'_>, after: &After) -> i64 {
    let is_it = |node: &Option<Node>| node.as_ref().is_some_and(|node| node.inode.nr == inode.nr);
    let won = |(place, node): &(Place, Option<Node>)| {
        let there = held.at(*place).ok().flatten();
        i64::from(is_it(node)) - i64::from(is_it(&there))
    };
    after.iter().map(won).sum()
}

/// The inodes whose number of names a change may change, and some besides, in the order of their
/// locks.
fn inodes_of(held: &Held<'_>, after: &After, besides: &[Arc<Inode>]) -> Vec<Arc<Inode>> {
    let of = |(place, node): &(Place, Option<Node>)| [held.at(*place).ok().flatten(), node.clone()];
    let mut inodes: Vec<Arc<Inode>> = after.iter().flat_map(of).flatten().map(|node| node.inode).collect();
    inodes.extend_from_slice(besides);
    inodes.sort_by_key(|inode| inode.nr);
    inodes.dedup_by_key(|inode| inode.nr);
    inodes
}

impl User {
    fn place(&mut self) -> Place {
        Place::any(&mut self.random)
    }

    pub fn mode(&mut self) -> u32 {
        // Set-id bits seldom, and the owner's bits always: others than root need not get in.
        let special = [0, 0, 0, 0o4000, 0o2010][self.random.below(5)];
        0o600 | special | self.random.below(0o200) as u32
    }

    /// Runs an operation whose result is known: what is there afterwards, or the error.
    fn on_names<T>(
        &mut self,
        held: Held<'_>,
        expected: Result<After, Errno>,
        call: impl FnOnce(&OwnedFd) -> Result<T, Errno>,
    ) -> Result<Option<T>, Stop> {
        self.on_names_unless(held, expected, &[], |_| None, call)
    }

    /// The same of one that attributes may forbid, of inodes that it changes or of those `besides`.
    pub fn on_names_unless<T>(
        &mut self,
        mut held: Held<'_>,
        expected: Result<After, Errno>,
        besides: &[Arc<Inode>],
        refusal: impl FnOnce(&Kept<'_>) -> Option<Errno>,
        call: impl FnOnce(&OwnedFd) -> Result<T, Errno>,
    ) -> Result<Option<T>, Stop> {
        let world = Arc::clone(&self.world);
        let inodes = inodes_of(&held, &expected.clone().unwrap_or_default(), besides);
        let mut kept = Kept::new(&inodes)?;
        let expected = refusal(&kept).map_or(expected, Err);
        let after = expected.clone().unwrap_or_default();
        let result = match world.settle(call(&world.root)) {
            Ok(result) => result,
            Err(Stop::Over) => {
                held.may_become(&after);
                for (_, known) in kept.known() {
                    known.or_else = Some(known.now.clone());
                }
                let cut_short: Result<(), Errno> = Err(Errno::NOTCONN);
                after.iter().for_each(|(place, _)| world.tree.tell(*place, self.line(&cut_short)));
                return Err(Stop::Over);
            }
            Err(wrong) => return Err(wrong),
        };
        for (place, _) in &after {
            world.tree.tell(*place, self.line(&result));
        }
        inodes.iter().for_each(|inode| self.tell(inode, &result));
        match (&result, &expected) {
            (Ok(_), Ok(after)) => {
                for (inode, known) in kept.known() {
                    let won = names_won(inode, &held, after);
                    known.now.nlink = known.now.nlink.strict_add_signed(won);
                    known.was_named |= won > 0;
                }
                held.become_(after);
            }
            (Err(is), Err(should)) if is == should => {}
            (Err(errno), Ok(_)) if world.is_excused(*errno) => {}
            (is, _) => {
                let is = is.as_ref().map(|_| "it went well");
                let expected = expected.as_ref().map(|_| "it goes well");
                let story: String =
                    held.slots().map(|slot| format!("  slot {slot}:\n{}", world.tree.story(slot))).collect();
                return Stop::wrong(format!("{is:?}, but {expected:?} is right\n{story}"));
            }
        }
        Ok(result.ok())
    }

    /// A file made under a name, or opened if it is there.
    pub fn make_file(&mut self) -> Result<(), Stop> {
        let (place, mode, must_be_new) = (self.place(), self.mode(), self.random.below(2) == 0);
        let world = Arc::clone(&self.world);
        let held = world.tree.hold(&[place])?;
        self.begin(format!("creation of {}{}", place.path(), if must_be_new { ", exclusively" } else { "" }));
        let new = world.inode(Kind::File, Attributes { mode, ..Attributes::default() });
        let expected = match held.at(place) {
            Err(errno) => Err(errno),
            Ok(None) => Ok(vec![(place, Some(Node::new(Arc::clone(&new))))]),
            Ok(Some(_)) if must_be_new => Err(Errno::EXIST),
            Ok(Some(node)) => match node.inode.kind {
                // Where `fs.protected_regular` is set, not even root opens others' files so in a
                // sticky directory.
                Kind::File
                    if world.protects_regular && place.is_in_sticky() && node.inode.known()?.now.uid != 0 =>
                {
                    return Ok(());
                }
                Kind::File => Ok(Vec::new()),
                Kind::Directory => Err(Errno::ISDIR),
                Kind::Symlink { .. } => Err(Errno::LOOP),
            },
        };
        let there = held.at(place).ok().flatten().map_or(new, |node| node.inode);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let flags = if must_be_new { flags | OFlags::EXCL } else { flags };
        let made = self.on_names(held, expected, |root| {
            rustix::fs::openat(root, place.path(), flags, Mode::from_raw_mode(mode))
        })?;
        if let Some(fd) = made {
            self.keep(there, fd);
        }
        Ok(())
    }

    /// A file without a name, to be given one later.
    pub fn make_nameless(&mut self) -> Result<(), Stop> {
        let (directory, mode) = (self.random.below(NR_DIRECTORIES), self.mode());
        let world = Arc::clone(&self.world);
        self.begin(format!("a file without a name in d{directory}"));
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let path = format!("d{directory}");
        let made = rustix::fs::openat(&world.root, path, flags, Mode::from_raw_mode(mode));
        match world.settle(made)? {
            Ok(fd) => {
                let inode = world.inode(Kind::File, Attributes { mode, ..Attributes::default() });
                self.tell(&inode, &Ok(()));
                self.keep(inode, fd);
                Ok(())
            }
            Err(errno) if world.is_excused(errno) => Ok(()),
            Err(errno) => Stop::wrong(errno.to_string()),
        }
    }

    pub fn make_directory(&mut self) -> Result<(), Stop> {
        let (place, mode) = (Place { child: None, ..self.place() }, self.mode() & 0o777 | 0o700);
        let world = Arc::clone(&self.world);
        let held = world.tree.hold(&[place])?;
        self.begin(format!("mkdir of {}", place.path()));
        let new = world.inode(Kind::Directory, Attributes { mode, ..Attributes::default() });
        let expected = held.at(place).and_then(|there| match there {
            None => Ok(vec![(place, Some(Node::new(new)))]),
            Some(_) => Err(Errno::EXIST),
        });
        self.on_names(held, expected, |root| {
            rustix::fs::mkdirat(root, place.path(), Mode::from_raw_mode(mode))
        })?;
        Ok(())
    }

    pub fn make_symlink(&mut self) -> Result<(), Stop> {
        let (place, world) = (self.place(), Arc::clone(&self.world));
        // Nothing has such a name, and some of them are too long for an inode of the host.
        let target = format!("t{}", "o".repeat(self.random.below(90)));
        let held = world.tree.hold(&[place])?;
        self.begin(format!("symlink at {} to {target}", place.path()));
        let kind = Kind::Symlink { target: target.clone() };
        let new = world.inode(kind, Attributes { mode: 0o777, ..Attributes::default() });
        let expected = match held.at(place) {
            Err(errno) => Err(errno),
            Ok(None) => Ok(vec![(place, Some(Node::new(new)))]),
            Ok(Some(_)) => Err(Errno::EXIST),
        };
        self.on_names(held, expected, |root| rustix::fs::symlinkat(&target, root, place.path()))?;
        Ok(())
    }

    /// Another name for what has one, or for an open file, which may have none.
    pub fn link(&mut self) -> Result<(), Stop> {
        let (from, to, world) = (self.place(), self.place(), Arc::clone(&self.world));
        let open = self.some_file().filter(|_| self.random.below(2) == 0);
        let Some(at) = open else {
            let held = world.tree.hold(&[from, to])?;
            self.begin(format!("link of {} to {}", from.path(), to.path()));
            let expected = held.at(from).and_then(|node| {
                let node = node.ok_or(Errno::NOENT)?;
                match held.at(to)? {
                    Some(_) => Err(Errno::EXIST),
                    None if node.inode.kind == Kind::Directory => Err(Errno::PERM),
                    None => Ok(vec![(to, Some(node))]),
                }
            });
            let is_there = expected.is_ok();
            self.on_names(held, expected, |root| {
                let link = || rustix::fs::linkat(root, from.path(), root, to.path(), AtFlags::empty());
                let mut linked = link();
                // The kernel counts the names of an inode itself. If it reads the attributes beside
                // the removal of another name, it may count that removal twice. It then takes the
                // inode for nameless, and refuses to link it until it reads the attributes again.
                for _ in 0..NR_LOOKS_MAX {
                    if !is_there || linked != Err(Errno::NOENT) {
                        break;
                    }
                    rustix::fs::statat(root, from.path(), AtFlags::SYMLINK_NOFOLLOW)?;
                    linked = link();
                }
                linked
            })?;
            return Ok(());
        };
        let (inode, held) = (Arc::clone(&self.open[at].0), world.tree.hold(&[to])?);
        // A file that had a name and lost it gets none again; one that never had one does.
        if inode.known()?.was_named && inode.known()?.now.nlink == 0 {
            return Ok(());
        }
        self.begin(format!("link of the open inode {} to {}", inode.nr, to.path()));
        let expected = held.at(to).and_then(|there| match there {
            Some(_) => Err(Errno::EXIST),
            None => Ok(vec![(to, Some(Node::new(Arc::clone(&inode))))]),
        });
        self.link_open(&inode, at, to, held, expected)
    }

    fn link_open(
        &mut self,
        inode: &Arc<Inode>,
        at: usize,
        to: Place,
        held: Held<'_>,
        expected: Result<After, Errno>,
    ) -> Result<(), Stop> {
        use std::os::fd::AsRawFd;
        let from = format!("/proc/self/fd/{}", self.open[at].1.as_raw_fd());
        // Its last name may go at this moment, in another place.
        let may_vanish = inode.known()?.was_named;
        let mut vanished = false;
        let linked = self.on_names(held, expected, |root| {
            let linked = rustix::fs::linkat(CWD, &from, root, to.path(), AtFlags::SYMLINK_FOLLOW);
            vanished = may_vanish && linked == Err(Errno::NOENT);
            linked
        });
        match linked {
            Err(Stop::Wrong(_)) if vanished => Ok(()),
            linked => linked.map(drop),
        }
    }

    pub fn unlink(&mut self) -> Result<(), Stop> {
        let (place, is_rmdir) = (self.place(), self.random.below(4) == 0);
        let world = Arc::clone(&self.world);
        let held = world.tree.hold(&[place])?;
        self.begin(format!("{} of {}", if is_rmdir { "rmdir" } else { "unlink" }, place.path()));
        let expected = unlinked(&held, place, is_rmdir);
        let flags = if is_rmdir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        self.on_names(held, expected, |root| rustix::fs::unlinkat(root, place.path(), flags))?;
        Ok(())
    }

    pub fn rename(&mut self) -> Result<(), Stop> {
        let (from, to, world) = (self.place(), self.place(), Arc::clone(&self.world));
        let flags =
            [RenameFlags::empty(), RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE];
        let flags = flags[self.random.below(4)];
        let held = world.tree.hold(&[from, to])?;
        let is_directory = |place: Place| {
            held.at(place).ok().flatten().is_some_and(|node| node.inode.kind == Kind::Directory)
        };
        // The model has no deeper directories.
        let sinks = |node: Place, place: Place| place.child.is_some() && is_directory(node);
        if sinks(from, to) || (flags == RenameFlags::EXCHANGE && sinks(to, from)) {
            return Ok(());
        }
        self.begin(format!("rename of {} to {}, {flags:?}", from.path(), to.path()));
        let expected = renamed(&held, from, to, flags);
        self.on_names(held, expected, |root| {
            rustix::fs::renameat_with(root, from.path(), root, to.path(), flags)
        })?;
        Ok(())
    }

    /// Lists a directory: names that were there all the time come once, names that were not do not
    /// come.
    pub fn list(&mut self) -> Result<(), Stop> {
        let (directory, world) = (self.random.below(NR_DIRECTORIES), Arc::clone(&self.world));
        self.begin(format!("listing of d{directory}"));
        let slots = directory * NR_NAMES..(directory + 1) * NR_NAMES;
        let before: Vec<_> = slots.clone().map(|slot| world.tree.glance(slot)).collect();
        let list = || {
            let fd = world.open(&format!("d{directory}"), OFlags::RDONLY | OFlags::DIRECTORY)?;
            let name = |entry: Result<rustix::fs::DirEntry, Errno>| Ok(entry?.file_name().to_owned());
            Dir::read_from(&fd)?.map(name).collect::<Result<Vec<_>, Errno>>()
        };
        let names = match world.settle(list())? {
            Ok(names) => names,
            Err(errno) => return Stop::wrong(errno.to_string()),
        };
        for (name, (slot, before)) in slots.zip(before).enumerate() {
            let Some((was_there, turns)) = before else { continue };
            let text = format!("n{name}");
            let nr = names.iter().filter(|found: &&_| CStr::to_bytes(found) == text.as_bytes()).count();
            if world.tree.nr_turns(slot) == turns && nr != usize::from(was_there) {
                let story = world.tree.story(slot);
                return Stop::wrong(format!("{text} is there {nr} times, was there: {was_there}\n{story}"));
            }
        }
        Ok(())
    }
}

/// Returns the state after an unlink or rmdir, or its error.
pub fn unlinked(held: &Held<'_>, place: Place, is_rmdir: bool) -> Result<After, Errno> {
    let node = held.at(place)?.ok_or(Errno::NOENT)?;
    match (node.inode.kind == Kind::Directory, is_rmdir) {
        (true, false) => Err(Errno::ISDIR),
        (false, true) => Err(Errno::NOTDIR),
        (true, true) if node.children.iter().any(Option::is_some) => Err(Errno::NOTEMPTY),
        _ => Ok(vec![(place, None)]),
    }
}

/// Returns the state after a rename, or its error.
fn renamed(held: &Held<'_>, from: Place, to: Place, flags: RenameFlags) -> Result<After, Errno> {
    let (exchanges, replaces) = (flags == RenameFlags::EXCHANGE, flags != RenameFlags::NOREPLACE);
    // Directories that lead to the names come first.
    let (old, new) = (held.at(from)?, held.at(to)?);
    let old = old.ok_or(Errno::NOENT)?;
    match &new {
        Some(_) if !replaces => return Err(Errno::EXIST),
        None if exchanges => return Err(Errno::NOENT),
        _ => {}
    }
    if from.slot == to.slot && to.child.is_none() && from.child.is_some() {
        // It is the directory that the other is in.
        return Err(Errno::NOTEMPTY);
    }
    let Some(new) = new else { return Ok(vec![(from, None), (to, Some(old))]) };
    if old.inode.nr == new.inode.nr {
        return Ok(Vec::new());
    }
    if exchanges {
        return Ok(vec![(from, Some(new)), (to, Some(old))]);
    }
    let is_directory = |node: &Node| node.inode.kind == Kind::Directory;
    match (is_directory(&old), is_directory(&new)) {
        (true, false) => Err(Errno::NOTDIR),
        (false, true) => Err(Errno::ISDIR),
        (true, true) if new.children.iter().any(Option::is_some) => Err(Errno::NOTEMPTY),
        _ => Ok(vec![(from, None), (to, Some(old))]),
    }
}
