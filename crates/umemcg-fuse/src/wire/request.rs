//! Requests, decoded. [`Op::parse`] accepts any bytes. It either decodes the request or returns
//! [`Malformed`]; it never panics and never reads past the request.

#![allow(missing_debug_implementations, reason = "the derives make helper types of their own")]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Dialect, GETATTR_FH, IN_HEADER_BYTES, InHeader, opcode, setattr_valid};

/// The reason why bytes are not a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Malformed {
    /// Fewer bytes than needed for the message, or than given in its header.
    #[error("the request ends too early")]
    Short,
    /// A name without its terminating zero, or an empty one.
    #[error("a name in the request is not terminated")]
    Name,
    /// The extensions do not fit the request.
    #[error("the request's extensions do not fit")]
    Extension,
}

macro_rules! wire_in {
    ($($(#[$meta:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
        #[repr(C)]
        #[allow(missing_docs)]
        pub struct $name { $(pub $field: $type),* }
    )*};
}

wire_in! {
    /// One entry of a BATCH_FORGET.
    ForgetOne { nodeid: u64, nlookup: u64 }
    /// BATCH_FORGET.
    BatchForgetIn { count: u32, dummy: u32 }
    /// GETATTR.
    GetattrIn { flags: u32, dummy: u32, fh: u64 }
    /// SETATTR; [`setattr_valid`] has the bits for its valid fields.
    SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    /// MKNOD.
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32 }
    /// MKDIR.
    MkdirIn { mode: u32, umask: u32 }
    /// OPEN and OPENDIR.
    OpenIn { flags: u32, open_flags: u32 }
    /// CREATE and TMPFILE.
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    /// RELEASE and RELEASEDIR.
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    /// FLUSH.
    FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    /// READ, READDIR and READDIRPLUS.
    ReadIn { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    /// WRITE.
    WriteIn { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    /// FSYNC and FSYNCDIR.
    FsyncIn { fh: u64, fsync_flags: u32, padding: u32 }
    /// SETXATTR as it was before its extension.
    SetxattrShortIn { size: u32, flags: u32 }
    /// SETXATTR.
    SetxattrIn { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    /// GETXATTR and LISTXATTR.
    GetxattrIn { size: u32, padding: u32 }
    /// INIT up to protocol 7.35.
    InitShortIn { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    /// NOTIFY_REPLY to a RETRIEVE. The data follows.
    RetrieveIn { dummy1: u64, offset: u64, size: u32, dummy2: u32, dummy3: u64, dummy4: u64 }
    /// POLL.
    PollIn { fh: u64, kh: u64, flags: u32, events: u32 }
    /// FALLOCATE.
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    /// LSEEK.
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32 }
    /// STATX.
    StatxIn { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
}

/// INIT, in any of its lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Init {
    /// The kernel's major number.
    pub major: u32,
    /// The kernel's minor number.
    pub minor: u32,
    /// The kernel's maximum readahead, in bytes.
    pub max_readahead: u32,
    /// The features of the kernel, both words together.
    pub flags: u64,
}

/// The entries of a BATCH_FORGET.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForgetList<'a>(&'a [u8]);

impl ForgetList<'_> {
    /// Returns every (node, number of lookups).
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0
            .chunks_exact(size_of::<ForgetOne>())
            .filter_map(|bytes| ForgetOne::read_from_bytes(bytes).ok().map(|one| (one.nodeid, one.nlookup)))
    }
}

/// The operation of a request. Names and payloads are borrowed from its buffer. `parent_gid` is the
/// group of the parent directory, if the caller is in it. A request for an attribute with `size` 0
/// asks for the length. The right answer to `Unknown` is ENOSYS. With `Retrieved` the kernel has
/// sent this many bytes of its page cache, in answer to a RETRIEVE. Requests that are always
/// refused have no arguments here.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub enum Op<'a> {
    Lookup { name: &'a OsStr },
    Forget { nlookup: u64 },
    BatchForget(ForgetList<'a>),
    Getattr { fh: Option<u64> },
    Setattr(SetattrIn),
    Readlink,
    Symlink { name: &'a OsStr, target: &'a OsStr, parent_gid: Option<u32> },
    Mknod { arg: MknodIn, name: &'a OsStr, parent_gid: Option<u32> },
    Mkdir { arg: MkdirIn, name: &'a OsStr, parent_gid: Option<u32> },
    Unlink { name: &'a OsStr },
    Rmdir { name: &'a OsStr },
    Rename { new_parent: u64, flags: u32, name: &'a OsStr, new_name: &'a OsStr },
    Link { old_node: u64, name: &'a OsStr },
    Open(OpenIn),
    Read(ReadIn),
    Write { arg: WriteIn, data: &'a [u8] },
    Statfs,
    Release(ReleaseIn),
    Fsync(FsyncIn),
    Setxattr { name: &'a OsStr, value: &'a [u8], flags: u32, setxattr_flags: u32 },
    Getxattr { name: &'a OsStr, size: u32 },
    Listxattr { size: u32 },
    Removexattr { name: &'a OsStr },
    Flush(FlushIn),
    Init(Init),
    Opendir(OpenIn),
    Readdir(ReadIn),
    Readdirplus(ReadIn),
    Releasedir(ReleaseIn),
    Fsyncdir(FsyncIn),
    Access,
    Create { arg: CreateIn, name: &'a OsStr, parent_gid: Option<u32> },
    Tmpfile { arg: CreateIn, parent_gid: Option<u32> },
    Interrupt { unique: u64 },
    Retrieved { bytes: u32 },
    Destroy,
    Ioctl,
    Poll(PollIn),
    Fallocate(FallocateIn),
    Lseek(LseekIn),
    CopyFileRange,
    Syncfs,
    Statx(StatxIn),
    Unknown { opcode: u32 },
}

/// The extension type for groups.
const EXT_GROUPS: u32 = 32;
/// The most extensions parsed, so that a request full of them cannot keep a reader busy.
const NR_EXTENSIONS_MAX: usize = 16;

/// The rest of a request's body.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn take<T: FromBytes>(&mut self) -> Result<T, Malformed> {
        let (value, rest) = T::read_from_prefix(self.0).map_err(|_| Malformed::Short)?;
        self.0 = rest;
        Ok(value)
    }
    fn name(&mut self) -> Result<&'a OsStr, Malformed> {
        let end = self.0.iter().position(|&b| b == 0).ok_or(Malformed::Name)?;
        let name = OsStr::from_bytes(&self.0[..end]);
        self.0 = &self.0[end + 1..];
        if name.is_empty() { Err(Malformed::Name) } else { Ok(name) }
    }
    fn bytes(&mut self, len: u32) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.0.split_at_checked(len as usize).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(bytes)
    }
}

impl InHeader {
    /// Returns the header at the start of a request of exactly these bytes.
    ///
    /// # Errors
    /// [`Malformed::Short`] when there is no whole header, or its length differs from the number of
    /// bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let (header, _) = Self::read_from_prefix(bytes).map_err(|_| Malformed::Short)?;
        if header.len as usize != bytes.len() { Err(Malformed::Short) } else { Ok(header) }
    }
}

impl Op<'_> {
    /// Returns whether the operation reads or writes data.
    pub fn is_data(&self) -> bool {
        matches!(self, Self::Read(_) | Self::Write { .. })
    }

    /// Returns whether the kernel holds a lock of the directory until the answer, which makes every
    /// other user of the directory wait. Changes of attributes count, since the node may be a
    /// directory.
    pub fn holds_directory(&self) -> bool {
        match self {
            Self::Setattr(arg) => arg.valid & setattr_valid::SIZE == 0,
            _ => matches!(
                self,
                Self::Lookup { .. }
                    | Self::Create { .. }
                    | Self::Mkdir { .. }
                    | Self::Mknod { .. }
                    | Self::Symlink { .. }
                    | Self::Link { .. }
                    | Self::Unlink { .. }
                    | Self::Rmdir { .. }
                    | Self::Rename { .. }
                    | Self::Readdir(_)
                    | Self::Readdirplus(_)
                    | Self::Fsyncdir(_)
                    | Self::Setxattr { .. }
                    | Self::Removexattr { .. }
            ),
        }
    }
}

impl<'a> Op<'a> {
    /// Decodes a whole request (header included) in `dialect`.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are no valid message of the opcode.
    pub fn parse(bytes: &'a [u8], dialect: Dialect) -> Result<Self, Malformed> {
        let header = InHeader::parse(bytes)?;
        let body = &bytes[IN_HEADER_BYTES..];
        let ext_bytes = usize::from(header.total_extlen) * 8;
        let split = body.len().checked_sub(ext_bytes).ok_or(Malformed::Extension)?;
        let (body, extensions) = body.split_at(split);
        let mut body = Body(body);
        let parent_gid = || parent_gid(extensions);
        Ok(match header.opcode {
            opcode::LOOKUP => Op::Lookup { name: body.name()? },
            opcode::FORGET => Op::Forget { nlookup: body.take()? },
            opcode::BATCH_FORGET => {
                let count = body.take::<BatchForgetIn>()?.count;
                let len = count.checked_mul(size_of::<ForgetOne>() as u32).ok_or(Malformed::Short)?;
                Op::BatchForget(ForgetList(body.bytes(len)?))
            }
            opcode::GETATTR => {
                let arg: GetattrIn = body.take()?;
                Op::Getattr { fh: (arg.flags & GETATTR_FH != 0).then_some(arg.fh) }
            }
            opcode::SETATTR => Op::Setattr(body.take()?),
            opcode::READLINK => Op::Readlink,
            opcode::SYMLINK => {
                Op::Symlink { name: body.name()?, target: body.name()?, parent_gid: parent_gid()? }
            }
            opcode::MKNOD => Op::Mknod { arg: body.take()?, name: body.name()?, parent_gid: parent_gid()? },
            opcode::MKDIR => Op::Mkdir { arg: body.take()?, name: body.name()?, parent_gid: parent_gid()? },
            opcode::UNLINK => Op::Unlink { name: body.name()? },
            opcode::RMDIR => Op::Rmdir { name: body.name()? },
            opcode::RENAME | opcode::RENAME2 => {
                let new_parent = body.take()?;
                let is_long = header.opcode == opcode::RENAME2;
                let [flags, _padding] = if is_long { body.take::<[u32; 2]>()? } else { [0; 2] };
                Op::Rename { new_parent, flags, name: body.name()?, new_name: body.name()? }
            }
            opcode::LINK => Op::Link { old_node: body.take()?, name: body.name()? },
            opcode::OPEN => Op::Open(body.take()?),
            opcode::READ => Op::Read(body.take()?),
            opcode::WRITE => {
                let arg: WriteIn = body.take()?;
                Op::Write { arg, data: body.bytes(arg.size)? }
            }
            opcode::STATFS => Op::Statfs,
            opcode::RELEASE => Op::Release(body.take()?),
            opcode::FSYNC => Op::Fsync(body.take()?),
            opcode::SETXATTR => {
                let arg: SetxattrIn = if dialect.setxattr_ext {
                    body.take()?
                } else {
                    let short: SetxattrShortIn = body.take()?;
                    SetxattrIn { size: short.size, flags: short.flags, ..Default::default() }
                };
                let name = body.name()?;
                let value = body.bytes(arg.size)?;
                Op::Setxattr { name, value, flags: arg.flags, setxattr_flags: arg.setxattr_flags }
            }
            opcode::GETXATTR => Op::Getxattr { size: body.take::<GetxattrIn>()?.size, name: body.name()? },
            opcode::LISTXATTR => Op::Listxattr { size: body.take::<GetxattrIn>()?.size },
            opcode::REMOVEXATTR => Op::Removexattr { name: body.name()? },
            opcode::FLUSH => Op::Flush(body.take()?),
            opcode::INIT => {
                let short: InitShortIn = body.take()?;
                // The second word exists from 7.36 on; in a shorter message it counts as empty.
                let flags2 = body.take::<u32>().unwrap_or(0);
                Op::Init(Init {
                    major: short.major,
                    minor: short.minor,
                    max_readahead: short.max_readahead,
                    flags: u64::from(short.flags) | u64::from(flags2) << 32,
                })
            }
            opcode::OPENDIR => Op::Opendir(body.take()?),
            opcode::READDIR => Op::Readdir(body.take()?),
            opcode::READDIRPLUS => Op::Readdirplus(body.take()?),
            opcode::RELEASEDIR => Op::Releasedir(body.take()?),
            opcode::FSYNCDIR => Op::Fsyncdir(body.take()?),
            opcode::ACCESS => Op::Access,
            opcode::CREATE => Op::Create { arg: body.take()?, name: body.name()?, parent_gid: parent_gid()? },
            opcode::TMPFILE => Op::Tmpfile { arg: body.take()?, parent_gid: parent_gid()? },
            opcode::INTERRUPT => Op::Interrupt { unique: body.take()? },
            opcode::NOTIFY_REPLY => Op::Retrieved { bytes: body.take::<RetrieveIn>()?.size },
            opcode::DESTROY => Op::Destroy,
            opcode::IOCTL => Op::Ioctl,
            opcode::POLL => Op::Poll(body.take()?),
            opcode::FALLOCATE => Op::Fallocate(body.take()?),
            opcode::LSEEK => Op::Lseek(body.take()?),
            opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => Op::CopyFileRange,
            opcode::SYNCFS => Op::Syncfs,
            opcode::STATX => Op::Statx(body.take()?),
            opcode => Op::Unknown { opcode },
        })
    }
}

/// Returns the optional group in a creating request: the group of the parent directory.
fn parent_gid(mut extensions: &[u8]) -> Result<Option<u32>, Malformed> {
    for _ in 0..NR_EXTENSIONS_MAX {
        if extensions.is_empty() {
            return Ok(None);
        }
        let mut body = Body(extensions);
        let [size, kind] = body.take::<[u32; 2]>().map_err(|_| Malformed::Extension)?;
        let (this, rest) = extensions.split_at_checked(size as usize).ok_or(Malformed::Extension)?;
        if this.len() < 8 {
            return Err(Malformed::Extension);
        }
        if kind == EXT_GROUPS {
            let mut body = Body(&this[8..]);
            let nr_groups: u32 = body.take().map_err(|_| Malformed::Extension)?;
            return if nr_groups == 0 {
                Ok(None)
            } else {
                body.take().map(Some).map_err(|_| Malformed::Extension)
            };
        }
        extensions = rest;
    }
    Ok(None)
}

/// The place of a write's data in a message, found before the message is parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WritePayload {
    /// The offset in the file.
    pub offset: u64,
    /// The offset of the data in the message.
    pub at: usize,
    /// Late write-back of a mapping.
    pub is_late: bool,
}

/// Returns the place of a write's data; `None` for other requests and malformed ones.
pub fn write_payload(header: &InHeader, message: &[u8]) -> Option<WritePayload> {
    if header.opcode != opcode::WRITE {
        return None;
    }
    let (arg, _) = WriteIn::read_from_prefix(message.get(IN_HEADER_BYTES..)?).ok()?;
    let is_late = arg.write_flags & super::write_flag::CACHE != 0;
    Some(WritePayload { offset: arg.offset, at: IN_HEADER_BYTES + size_of::<WriteIn>(), is_late })
}

/// Turns the beginning of a write's message, recognised by [`write_payload`], into the message of a
/// shorter write.
pub fn shorten_write(header: &mut InHeader, message: &mut [u8]) {
    let data_at = IN_HEADER_BYTES + size_of::<WriteIn>();
    let arg = message.get(IN_HEADER_BYTES..).and_then(|body| WriteIn::read_from_prefix(body).ok());
    let Some((mut arg, _)) = arg.filter(|_| message.len() >= data_at) else { return };
    header.len = message.len() as u32;
    arg.size = (message.len() - data_at) as u32;
    message[..IN_HEADER_BYTES].copy_from_slice(header.as_bytes());
    message[IN_HEADER_BYTES..data_at].copy_from_slice(arg.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(opcode: u32, body: &[u8], extlen: u16) -> Vec<u8> {
        let header = InHeader {
            len: (IN_HEADER_BYTES + body.len()) as u32,
            opcode,
            unique: 2,
            nodeid: 1,
            total_extlen: extlen,
            ..Default::default()
        };
        [header.as_bytes(), body].concat()
    }

    const EXT: Dialect = Dialect { setxattr_ext: true };

    #[test]
    fn a_header_that_lies_about_its_length_is_malformed() {
        let mut bytes = request(opcode::STATFS, &[], 0);
        bytes.push(0);
        assert_eq!(Op::parse(&bytes, EXT).unwrap_err(), Malformed::Short);
    }

    #[test]
    fn a_write_with_less_data_than_it_says_is_malformed() {
        let arg = WriteIn { size: 5, ..Default::default() };
        let bytes = request(opcode::WRITE, &[arg.as_bytes(), b"1234"].concat(), 0);
        assert_eq!(Op::parse(&bytes, EXT).unwrap_err(), Malformed::Short);
        let bytes = request(opcode::WRITE, &[arg.as_bytes(), b"12345"].concat(), 0);
        assert!(matches!(Op::parse(&bytes, EXT), Ok(Op::Write { data: b"12345", .. })));
    }

    #[test]
    fn the_parents_group_is_found_among_extensions() {
        let arg = MkdirIn { mode: 0o755, umask: 0o22 };
        let unknown = [16u32.to_ne_bytes(), 7u32.to_ne_bytes(), [0; 4], [0; 4]].concat();
        let groups = [16u32, EXT_GROUPS, 1, 4711].map(u32::to_ne_bytes).concat();
        let bytes = request(opcode::MKDIR, &[arg.as_bytes(), b"dir\0", &unknown, &groups].concat(), 4);
        match Op::parse(&bytes, EXT).unwrap() {
            Op::Mkdir { name, parent_gid, .. } => {
                assert_eq!((name.as_bytes(), parent_gid), (&b"dir"[..], Some(4711)));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_need_their_end() {
        for body in [&b"name"[..], b"", b"\0"] {
            assert_eq!(Op::parse(&request(opcode::LOOKUP, body, 0), EXT).unwrap_err(), Malformed::Name);
        }
    }

    #[test]
    fn a_short_init_has_an_empty_second_word() {
        let body = [7u32, 31, 4096, 5].map(u32::to_ne_bytes).concat();
        match Op::parse(&request(opcode::INIT, &body, 0), EXT).unwrap() {
            Op::Init(init) => {
                assert_eq!(init, Init { major: 7, minor: 31, max_readahead: 4096, flags: 5 });
            }
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn no_bytes_whatever_make_it_panic(opcode in 0u32..60, extlen in 0u16..6, setxattr_ext: bool,
                                           body in prop::collection::vec(any::<u8>(), 0..200)) {
            let bytes = request(opcode, &body, extlen);
            if let Ok(Op::BatchForget(list)) = Op::parse(&bytes, Dialect { setxattr_ext }) {
                let _ = list.iter().count();
            }
        }

        #[test]
        fn nor_do_bytes_without_a_header(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            let _ = Op::parse(&bytes, EXT);
        }
    }
}
