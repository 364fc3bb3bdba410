//! The backing directory after a life of the daemon, against the model; and the model of the next
//! life, made from it.

use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat};

use crate::together::attributes::{capabilities_of, xattrs_of};
use crate::together::disk::CELL;
use crate::together::inode::{Attributes, Inode, Kind};
use crate::together::model::FileModel;
use crate::together::tree::{NR_CHILDREN, NR_DIRECTORIES, NR_NAMES, Node, Place, Tree, apply};

/// The end of a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Everything is in the backing directory exactly.
    Orderly,
    /// Synced data is there, and all names and attributes that were answered.
    Killed,
}

/// Returns the status of a path, if there is anything.
fn look(path: &Path) -> Result<Option<Stat>, String> {
    match rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(format!("{}: {errno}", path.display())),
    }
}

fn open(path: &Path) -> Result<OwnedFd, String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| format!("{}: {errno}", path.display()))
}

/// The host's inodes of the model's.
#[derive(Default)]
struct Verdict {
    by_host: HashMap<u64, u64>,
    by_model: HashMap<u64, u64>,
}

impl Verdict {
    /// An inode against what is at a path.
    fn check(&mut self, path: &Path, inode: &Inode, end: End) -> Result<(), String> {
        let Some(stat) = look(path)? else { return Err("is not there".into()) };
        let (host, model) = (stat.st_ino, inode.nr);
        if *self.by_host.entry(host).or_insert(model) != model
            || *self.by_model.entry(model).or_insert(host) != host
        {
            return Err("is another inode than it was".into());
        }
        let known = inode.known_at_the_end();
        let matches = |attributes: &Attributes| matches(path, inode, attributes, &stat, end);
        let checked = matches(&known.now);
        let is_new = known.now.nlink == 0;
        let unfinished = unfinished(&known.now, inode).into_iter().filter(|_| is_new);
        let otherwise: Vec<_> = match end {
            End::Killed => {
                known.or_else.iter().cloned().chain(unfinished).map(|then| matches(&then)).collect()
            }
            End::Orderly => Vec::new(),
        };
        match (checked, otherwise) {
            (Ok(()), _) => {}
            (_, otherwise) if otherwise.iter().any(Result::is_ok) => {}
            (Err(why), otherwise) => return Err(format!("{why} (or {otherwise:?})")),
        }
        if !inode.is_file() {
            return Ok(());
        }
        let bytes = fs::read(path).map_err(|error| error.to_string())?;
        match end {
            End::Orderly => inode.data.check_end(&bytes),
            End::Killed => inode.data.check_cut(&bytes),
        }
    }
}

/// Returns what a new inode may be when the daemon died while it made it: it is first the daemon's,
/// and a file gets its set-id bits last.
fn unfinished(made: &Attributes, inode: &Inode) -> Vec<Attributes> {
    let without_set_id = made.mode & !0o6000;
    let modes =
        if inode.kind == Kind::Directory { vec![without_set_id, made.mode] } else { vec![without_set_id] };
    let owners = [(made.uid, made.gid), (0, 0), (0, made.gid)];
    let each = |mode| owners.map(|(uid, gid)| Attributes { mode, uid, gid, ..made.clone() });
    modes.into_iter().flat_map(each).collect()
}

fn matches(path: &Path, inode: &Inode, known: &Attributes, stat: &Stat, end: End) -> Result<(), String> {
    let mut known = known.clone();
    // How many names it has is seen by the names.
    known.nlink = stat.st_nlink;
    inode.check_stat(&known, stat)?;
    if let Kind::Symlink { target } = &inode.kind {
        let is = fs::read_link(path).map_err(|error| error.to_string())?;
        return if is == Path::new(target) { Ok(()) } else { Err(format!("leads to {}", is.display())) };
    }
    // Data that is written back moves the time in the backing directory until it has been put back.
    if end == End::Orderly {
        inode.check_mtime(&known, stat)?;
    }
    let fd = open(path)?;
    // The same goes for capabilities.
    if end == End::Orderly {
        let capabilities = capabilities_of(&fd).map_err(|errno| errno.to_string())?;
        inode.check_capabilities(&known, capabilities.as_deref())?;
    }
    let xattrs = xattrs_of(&fd).map_err(|errno| errno.to_string())?;
    if xattrs != known.xattrs {
        return Err(format!("extended attributes {xattrs:?}, not {:?}", known.xattrs));
    }
    Ok(())
}

/// Checks the contents of a slot.
fn check_slot(
    verdict: &mut Verdict,
    data: &Path,
    slot: usize,
    node: Option<&Node>,
    end: End,
) -> Result<(), (String, Option<Arc<Inode>>)> {
    let child = |child| Place { slot, child };
    let mut places = vec![(child(None), node.map(|node| &node.inode))];
    if let Some(node) = node.filter(|node| node.inode.kind == Kind::Directory) {
        let children = node.children.iter().enumerate();
        places.extend(children.map(|(nr, inode)| (child(Some(nr)), inode.as_ref())));
    }
    for (place, inode) in places {
        let path = data.join(place.path());
        let checked = match inode {
            Some(inode) => verdict.check(&path, inode, end),
            None if look(&path).map_err(|why| (why, None))?.is_some() => Err("is there".into()),
            None => Ok(()),
        };
        checked.map_err(|why| (format!("{}: {why}", place.path()), inode.cloned()))?;
    }
    Ok(())
}

/// Compares the backing directory with the model.
pub fn check(tree: &Tree, data: &Path, end: End) -> Result<(), String> {
    let mut nodes = tree.nodes();
    let mut verdict = Verdict::default();
    if end == End::Killed {
        // Each operation that the daemon's death cut short has happened as a whole, or not at all.
        for after in tree.unsure() {
            let mut then = nodes.clone();
            apply(&after, |slot, set| set(&mut then[slot]));
            let is_so = |nodes: &[Option<Node>]| {
                after.iter().try_for_each(|(place, _)| {
                    check_slot(&mut Verdict::default(), data, place.slot, nodes[place.slot].as_ref(), end)
                })
            };
            let (before, then_is) = (is_so(&nodes), is_so(&then));
            match (before, then_is) {
                (Ok(()), _) => {}
                (_, Ok(())) => nodes = then,
                (Err((before, _)), Err((then, _))) => {
                    let slots = after.iter().map(|(place, _)| place.slot);
                    let stories: String = slots.map(|slot| tree.story(slot)).collect();
                    return Err(format!("neither done ({then}) nor not done ({before}):\n{stories}"));
                }
            }
        }
    }
    for (slot, node) in nodes.iter().enumerate() {
        check_slot(&mut verdict, data, slot, node.as_ref(), end).map_err(|(why, inode)| {
            let story =
                inode.map_or(String::new(), |inode| format!("  inode {}:\n{}", inode.nr, inode.story.text()));
            format!("after the life ({end:?}): {why}\n{story}  slot {slot}:\n{}", tree.story(slot))
        })?;
    }
    check_listings(data)
}

/// Nothing is there that has another name.
fn check_listings(data: &Path) -> Result<(), String> {
    for directory in 0..NR_DIRECTORIES {
        let path = data.join(format!("d{directory}"));
        for entry in fs::read_dir(&path).map_err(|error| error.to_string())? {
            let name = entry.map_err(|error| error.to_string())?.file_name().to_string_lossy().into_owned();
            let is_ours = (0..NR_NAMES).any(|nr| name == format!("n{nr}"));
            // Of another program that was cut short with the life.
            if !is_ours && !name.starts_with('o') {
                return Err(format!("{name} is in d{directory}"));
            }
        }
    }
    Ok(())
}

/// A model of what is in the backing directory.
pub fn read(data: &Path) -> Result<(Tree, Vec<Arc<Inode>>), String> {
    let mut tree = Tree::new();
    let (mut inodes, next) = (HashMap::<u64, Arc<Inode>>::new(), AtomicU64::new(0));
    let mut inode = |path: &Path| -> Result<Option<Arc<Inode>>, String> {
        let Some(stat) = look(path)? else { return Ok(None) };
        let host = stat.st_ino;
        if let Some(inode) = inodes.get(&host) {
            return Ok(Some(Arc::clone(inode)));
        }
        let inode = Arc::new(read_inode(path, &stat, next.fetch_add(1, Ordering::Relaxed))?);
        inodes.insert(host, Arc::clone(&inode));
        Ok(Some(inode))
    };
    for place in Place::all() {
        let Some(at) = inode(&data.join(place.path()))? else { continue };
        let mut node = Node::new(at);
        if node.inode.kind == Kind::Directory {
            for child in 0..NR_CHILDREN {
                let path = Place { child: Some(child), ..place }.path();
                node.children[child] = inode(&data.join(path))?;
            }
        }
        tree.put(place, node);
    }
    Ok((tree, inodes.into_values().collect()))
}

fn read_inode(path: &Path, stat: &Stat, nr: u64) -> Result<Inode, String> {
    let kind = match stat.st_mode & 0o170_000 {
        0o040_000 => Kind::Directory,
        0o120_000 => {
            let target = fs::read_link(path).map_err(|error| error.to_string())?;
            Kind::Symlink { target: target.to_string_lossy().into_owned() }
        }
        _ => Kind::File,
    };
    let data = match kind {
        Kind::File => {
            // A write that was cut short may have ended anywhere; users write whole cells.
            let file = fs::OpenOptions::new().write(true).open(path).map_err(|error| error.to_string())?;
            let len = stat.st_size as u64 / CELL as u64 * CELL as u64;
            file.set_len(len).map_err(|error| error.to_string())?;
            FileModel::of(&fs::read(path).map_err(|error| error.to_string())?)
        }
        _ => FileModel::new(),
    };
    let (xattrs, capabilities) = match kind {
        Kind::Symlink { .. } => Default::default(),
        _ => {
            let fd = open(path)?;
            let read = xattrs_of(&fd).and_then(|xattrs| Ok((xattrs, capabilities_of(&fd)?)));
            read.map_err(|errno| errno.to_string())?
        }
    };
    let attributes = Attributes {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        nlink: stat.st_nlink,
        xattrs,
        mtime: None,
        // No change of data has begun.
        capabilities: capabilities.map(|value| (value, 0)),
    };
    Ok(Inode::new(nr, kind, data, attributes))
}
