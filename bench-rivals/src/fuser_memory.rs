//! Two files served from memory through the crate `fuser`: the performance of a mount with no work
//! except its answers.
//!
//! `fuser-memory MNT BYTES THREADS` serves `read0.bin` and `read1.bin`, each of BYTES, until it is
//! unmounted. Both have the contents expected by `umemcg-bench`. Files are opened with direct I/O,
//! so every read arrives here.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyEntry, ReplyOpen, Request,
};

const LIFETIME: Duration = Duration::from_secs(1);
const FILES: [&str; 2] = ["read0.bin", "read1.bin"];

struct Memory {
    contents: Vec<u8>,
}

/// The word at a place of the contents, as `umemcg-bench` has it.
fn word_at(offset: u64) -> u64 {
    let mixed = (offset / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

impl Memory {
    fn new(len: usize) -> Self {
        let words = (0..len.div_ceil(8)).flat_map(|at| word_at(8 * at as u64).to_le_bytes());
        Self { contents: words.take(len).collect() }
    }

    fn attr(&self, ino: INodeNo) -> FileAttr {
        let is_root = ino == INodeNo::ROOT;
        let size = if is_root { 0 } else { self.contents.len() as u64 };
        FileAttr {
            ino,
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_root { FileType::Directory } else { FileType::RegularFile },
            perm: if is_root { 0o755 } else { 0o644 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        }
    }
}

impl Filesystem for Memory {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match FILES.iter().position(|file| name == *file) {
            Some(at) => reply.entry(&LIFETIME, &self.attr(INodeNo(2 + at as u64)), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&LIFETIME, &self.attr(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let from = self.contents.len().min(offset as usize);
        let to = self.contents.len().min(from + size as usize);
        reply.data(&self.contents[from..to]);
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mountpoint, bytes, threads] = arguments.as_slice() else {
        eprintln!("usage: fuser-memory MNT BYTES THREADS");
        return ExitCode::from(2);
    };
    let (Ok(bytes), Ok(threads)) = (bytes.parse(), threads.parse()) else {
        eprintln!("fuser-memory: BYTES and THREADS are numbers");
        return ExitCode::from(2);
    };
    let mut config = Config::default();
    config.n_threads = Some(threads);
    config.clone_fd = true;
    match fuser::mount(Memory::new(bytes), mountpoint, &config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fuser-memory: cannot mount on {mountpoint}: {error}");
            ExitCode::FAILURE
        }
    }
}
