//! A file system of a few files in one directory, as the stand-in stores of tests are: everything
//! about names, attributes, opening and closing. Each store answers for itself what is done to
//! contents.

use std::ffi::OsStr;

use rustix::io::Errno;
use umemcg_fuse::wire::reply::{Attr, AttrOut, EntryOut, OpenOut};
use umemcg_fuse::wire::{DirBuffer, Op, open_reply, setattr_valid};
use umemcg_fuse::{QuickOutcome, Reply, Request};

/// Node of the first file; the next has the next.
const FIRST: u64 = 2;

/// The files; all of them exist from the start.
pub trait FlatFiles {
    /// Returns the file with this name.
    fn find(&self, name: &OsStr) -> Option<usize>;
    /// Returns the length of a file.
    fn len(&self, file: usize) -> u64;
    /// A program cuts or extends it.
    fn set_len(&self, file: usize, len: u64);
}

/// The file that a request is about.
pub fn file_of(request: &Request<'_>) -> usize {
    (request.header.nodeid - FIRST) as usize
}

fn attr(files: &impl FlatFiles, node: u64) -> Attr {
    let (ino, nlink, blksize) = (node, 1, 4096);
    match node.checked_sub(FIRST) {
        None => Attr { ino, mode: 0o040755, nlink, blksize, ..Default::default() },
        Some(file) => {
            let size = files.len(file as usize);
            Attr { ino, mode: 0o100666, nlink, size, blksize, ..Default::default() }
        }
    }
}

/// Answers whatever is not about contents.
pub fn answer(files: &impl FlatFiles, request: &Request<'_>, reply: &mut Reply) -> QuickOutcome {
    let node = request.header.nodeid;
    match request.op {
        Op::Lookup { name } => match files.find(name) {
            Some(file) => {
                let nodeid = FIRST + file as u64;
                reply.value(&EntryOut { nodeid, attr: attr(files, nodeid), ..Default::default() }).ignore();
            }
            None => reply.error(Errno::NOENT).ignore(),
        },
        Op::Getattr { .. } | Op::Setattr(_) => {
            if let Op::Setattr(arg) = request.op
                && arg.valid & setattr_valid::SIZE != 0
            {
                files.set_len(file_of(request), arg.size);
            }
            reply.value(&AttrOut { attr: attr(files, node), ..Default::default() }).ignore();
        }
        Op::Open(_) => {
            let open = OpenOut { open_flags: open_reply::DIRECT_IO, ..Default::default() };
            reply.value(&open).ignore();
        }
        Op::Opendir(_) => reply.value(&OpenOut::default()).ignore(),
        Op::Readdir(_) => reply.bytes(DirBuffer::new(0).as_bytes()).ignore(),
        Op::Fsync(_) | Op::Fsyncdir(_) | Op::Release(_) | Op::Releasedir(_) | Op::Flush(_) => {
            reply.done().ignore();
        }
        Op::Forget { .. } | Op::BatchForget(_) => {}
        _ => reply.error(Errno::NOSYS).ignore(),
    }
    QuickOutcome::Answered
}
