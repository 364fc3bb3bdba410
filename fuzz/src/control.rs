//! Writes to control files of a real hierarchy, and all other operations of a mount on them.
//!
//! An input is lines of words, such as `write a/memory.max 1m`. The first may be a style, `v1` or
//! `v2`. After all lines the accounts must be exact, and everything must be removable.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use umemcg_base::parse_size;
use umemcg_control::{
    Access, ControlError, ControlTree, Credentials, NodeId, OpenFile, Request, SetAttr, SetXattr, Style,
};

use crate::hierarchy::{Hierarchy, find};
use crate::outcome::Outcome;

/// Lines used of an input; further lines are ignored.
const NR_LINES_MAX: usize = 64;
/// Largest charge and object.
const BYTES_MAX: u64 = 1 << 20;
/// The thread that makes the requests.
const TID: u32 = 100;
/// Each of its requests.
const REQUEST: Request<'_> = Request { tid: TID, nonblocking: false, cancelled: &|| false, accepted: &|| () };
/// The bytes of one read.
const READ_BYTES: usize = 4096;

/// A tree, the caller, and the open files.
struct Session<'a> {
    groups: &'a mut Hierarchy,
    caller: Credentials,
    open: Vec<OpenFile>,
    nr_objects: u64,
}

/// Runs the lines of an input.
pub fn control(input: &[u8]) -> Outcome {
    let mut outcome = Outcome::default();
    let mut lines = input.split(|&byte| byte == b'\n').take(NR_LINES_MAX).peekable();
    let style = match lines.peek() {
        Some(&b"v1") => Style::V1,
        Some(&b"v2") => Style::V2,
        _ => Style::Both,
    };
    let mut groups = Hierarchy::new(style);
    let mut session =
        Session { groups: &mut groups, caller: Credentials::ROOT, open: Vec::new(), nr_objects: 0 };
    for line in lines {
        let mut words = line.splitn(3, |&byte| byte == b' ');
        let mut word = || words.next().unwrap_or_default();
        let (verb, path, rest) = (word(), word(), word());
        let result = session.run(verb, path, rest);
        let file = path.rsplit(|&byte| byte == b'/').next().filter(|name| name.contains(&b'.'));
        outcome.note((style as u8, verb, file, result.err().map(|error| format!("{error:?}"))));
    }
    drop(session.open);
    groups.finish();
    outcome
}

fn bytes(text: &[u8]) -> u64 {
    parse_size(text).unwrap_or(0).min(BYTES_MAX)
}

/// Returns the folder and the name of a path.
fn split(path: &[u8]) -> (&[u8], &OsStr) {
    let at = path.iter().rposition(|&byte| byte == b'/');
    let (folder, name) = at.map_or((&b""[..], path), |at| (&path[..at], &path[at + 1..]));
    (folder, OsStr::from_bytes(name))
}

/// Replaces `\n` by a line end, so that values of several lines fit in one.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut text = text.to_vec();
    while let Some(at) = text.windows(2).position(|pair| pair == b"\\n") {
        text.splice(at..at + 2, *b"\n");
    }
    text
}

impl Session<'_> {
    fn tree(&self) -> &ControlTree {
        &self.groups.tree
    }

    fn node(&self, path: &[u8]) -> Result<NodeId, ControlError> {
        let names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
        names.map(OsStr::from_bytes).try_fold(NodeId::ROOT, |at, name| Ok(self.tree().lookup(at, name)?.node))
    }

    fn open(&self, path: &[u8], access: Access) -> Result<OpenFile, ControlError> {
        let payer = find(&self.groups.engine, split(path).0);
        self.tree().open_for(self.node(path)?, access, self.caller.clone(), payer.as_ref())
    }

    fn read(&self, file: &OpenFile) -> Result<(), ControlError> {
        let mut at = 0;
        loop {
            match self.tree().read(file, at, READ_BYTES, &REQUEST)? {
                piece if piece.is_empty() => return Ok(()),
                piece => at += piece.len() as u64,
            }
        }
    }

    fn open_file(&self, text: &[u8]) -> Result<&OpenFile, ControlError> {
        let number = umemcg_control::parse_decimal(text).ok_or(ControlError::NotFound)? as usize;
        self.open.get(number % self.open.len().max(1)).ok_or(ControlError::NotFound)
    }

    fn run(&mut self, verb: &[u8], path: &[u8], rest: &[u8]) -> Result<(), ControlError> {
        let (folder, name) = split(path);
        let rest = &*unescape(rest);
        match verb {
            b"mkdir" => self.tree().mkdir(self.node(folder)?, name, 0o755, &self.caller).map(drop),
            b"rmdir" => self.tree().rmdir(self.node(folder)?, name, &self.caller),
            b"rename" => {
                let (new_folder, new_name) = split(rest);
                let (from, to) = (self.node(folder)?, self.node(new_folder)?);
                self.tree().rename(from, name, to, new_name, &self.caller)
            }
            b"list" => {
                let (node, after) = (self.node(path)?, bytes(rest));
                self.tree().read_directory(node, after, 64)?;
                self.tree().parent(node).map(drop)
            }
            b"write" => {
                let file = self.open(path, Access { read: false, write: true })?;
                self.tree().write(&file, rest, &REQUEST)
            }
            b"read" => self.read(&self.open(path, Access { read: true, write: false })?),
            b"open" => {
                let file = self.open(path, Access { read: rest != b"w", write: rest != b"r" })?;
                self.open.push(file);
                Ok(())
            }
            b"again" => self.tree().write(self.open_file(path)?, rest, &REQUEST),
            b"reread" => self.read(self.open_file(path)?),
            b"poll" => {
                self.tree().poll(self.open_file(path)?, None);
                Ok(())
            }
            // The kernel's names end at a NUL.
            b"xattr" if !rest.contains(&0) => {
                let (value, name) = split(rest);
                let node = self.node(path)?;
                self.tree().set_xattr(node, name, value, SetXattr::Any, &self.caller)?;
                self.tree().xattr_names(node, &self.caller).map(drop)
            }
            b"as" => {
                let uid = umemcg_control::parse_decimal(path).ok_or(ControlError::Invalid)? as u32;
                self.caller = Credentials::user(uid, uid);
                Ok(())
            }
            b"chown" => {
                let uid = umemcg_control::parse_decimal(rest).map(|uid| uid as u32);
                let set = SetAttr { uid, gid: uid, ..SetAttr::default() };
                self.tree().set_attr(self.node(path)?, set, &self.caller).map(drop)
            }
            b"charge" | b"object" => self.take(verb, path, bytes(rest)),
            b"uncharge" => {
                self.groups.uncharge(bytes(path) as usize);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn take(&mut self, verb: &[u8], path: &[u8], bytes: u64) -> Result<(), ControlError> {
        let group = find(&self.groups.engine, path).ok_or(ControlError::NotFound)?;
        self.nr_objects += 1;
        let is_taken = match verb {
            b"charge" => self.groups.charge(&group, bytes),
            _ => self.groups.objects.insert(&group, self.nr_objects, bytes).is_ok(),
        };
        if is_taken { Ok(()) } else { Err(ControlError::NoMemory) }
    }
}
