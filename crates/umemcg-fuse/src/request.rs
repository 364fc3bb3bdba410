//! A request with its buffer and the duty to answer it, and the pool of buffers.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use memmap2::MmapMut;
use umemcg_base::{LeafMutex, PAGE_SIZE};

use crate::classify::Payer;
use crate::inflight::Inflight;
use crate::reply::Reply;
use crate::transport::Transport;
use crate::wait_charge::{self, LENT_BYTES_MAX, SharedBound, WaitCharge};
use crate::wire::request::write_payload;
use crate::wire::{BUFFER_BYTES, Dialect, InHeader, Malformed, Op, opcode};

/// The most free buffers kept; more are returned to the operating system.
const NR_SPARE_BUFFERS: usize = 4;
/// Messages longer than this get pages of their own.
const HEAP_BYTES_MAX: usize = 16 << 10;

/// The bytes of a message. A long one is mapped, and returns to the operating system immediately;
/// the heap would keep the freed memory.
#[derive(Debug)]
enum Buffer {
    Heap(Vec<u8>),
    Pages(MmapMut),
}

impl Buffer {
    fn zeroed(len: usize) -> Self {
        let pages = if len > HEAP_BYTES_MAX { MmapMut::map_anon(len).ok() } else { None };
        pages.map_or_else(|| Self::Heap(vec![0; len]), Self::Pages)
    }

    fn copy_of(bytes: &[u8]) -> Self {
        if bytes.len() <= HEAP_BYTES_MAX {
            return Self::Heap(bytes.to_vec());
        }
        let mut buffer = Self::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Pages(pages) => pages,
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Pages(pages) => pages,
        }
    }
}

/// Free request buffers.
#[derive(Debug)]
pub struct Buffers {
    spare: LeafMutex<Vec<Buffer>>,
    /// Bytes on loan to waiting writes.
    loans: SharedBound,
}

impl Buffers {
    /// Creates a pool with room for a few spare buffers. It never makes a caller wait: each reader
    /// and each running request has one buffer.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { spare: LeafMutex::default(), loans: SharedBound::new(LENT_BYTES_MAX) })
    }

    fn take(&self) -> Buffer {
        let spare = self.spare.lock().pop();
        spare.unwrap_or_else(|| Buffer::zeroed(BUFFER_BYTES))
    }

    fn give_back(&self, buffer: Buffer) {
        let mut spare = self.spare.lock();
        if buffer.len() == BUFFER_BYTES && spare.len() < NR_SPARE_BUFFERS {
            spare.push(buffer);
        } else {
            drop(spare);
            drop(buffer);
        }
    }
}

/// A request as seen by its handler.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The requesting process, and the node.
    pub header: &'a InHeader,
    /// The operation.
    pub op: Op<'a>,
    /// The kernel queued it after this time, in nanoseconds since boot.
    pub queued_after_ns: u64,
    /// The paying group, as chosen by [`quick`](crate::Filesystem::quick).
    pub payer: Option<&'a Payer>,
}

/// A request in its buffer.
#[derive(Debug)]
pub(crate) struct RequestSlot {
    pub header: InHeader,
    pub reply: Reply,
    /// The kernel queued it after this time, in nanoseconds since boot.
    pub queued_after_ns: u64,
    /// The paying group, once known.
    pub payer: Option<Payer>,
    /// The charge for its memory while it waits.
    kept: Option<WaitCharge>,
    buffer: Buffer,
    len: usize,
    buffers: Arc<Buffers>,
}

impl RequestSlot {
    /// Creates a place for requests from `transport`.
    pub fn new(
        buffers: &Arc<Buffers>,
        transport: Arc<dyn Transport>,
        inflight: Option<Arc<Inflight>>,
    ) -> Self {
        Self {
            header: InHeader::default(),
            reply: Reply::idle(transport, inflight),
            queued_after_ns: 0,
            payer: None,
            kept: None,
            buffer: buffers.take(),
            len: 0,
            buffers: Arc::clone(buffers),
        }
    }

    /// Returns the buffer for the next request.
    pub fn buffer_mut(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    /// Takes on the request in the first `len` bytes of the buffer.
    pub fn arrived(&mut self, len: usize) -> Result<(), Malformed> {
        self.len = len;
        self.header = InHeader::parse(&self.buffer[..len])?;
        self.reply.arm(&self.header);
        self.payer = None;
        Ok(())
    }

    /// Returns the decoded request, and the duty to answer it.
    pub fn parts(&mut self, dialect: Dialect) -> Result<(Request<'_>, &mut Reply), (Malformed, &mut Reply)> {
        match Op::parse(&self.buffer[..self.len], dialect) {
            Ok(op) => {
                let (header, payer) = (&self.header, self.payer.as_ref());
                Ok((Request { header, op, queued_after_ns: self.queued_after_ns, payer }, &mut self.reply))
            }
            Err(malformed) => Err((malformed, &mut self.reply)),
        }
    }

    /// Moves the request out to wait, leaving a slot for the next one. It keeps its message,
    /// charged to its payer or on loan. With neither, it may keep only the beginning of a write.
    pub fn detach(&mut self) -> Self {
        let mut header = self.header;
        let payer = self.payer.take();
        let message = &self.buffer[..self.len];
        let loans = &self.buffers.loans;
        let paid =
            payer.as_ref().map(|payer| wait_charge::keep(payer.group_for_now(), loans, &header, message));
        let (kept, len) = paid.map_or((None, self.len), |(kept, len)| (Some(kept), len));
        // A full buffer changes hands, to avoid a copy of a mebibyte.
        let mut buffer = if len == self.len && self.buffer.len() - len < PAGE_SIZE {
            std::mem::replace(&mut self.buffer, self.buffers.take())
        } else {
            Buffer::copy_of(&message[..len])
        };
        wait_charge::close(&mut header, &mut buffer);
        Self {
            header,
            reply: self.reply.take(),
            queued_after_ns: self.queued_after_ns,
            payer,
            kept,
            buffer,
            len,
            buffers: Arc::clone(&self.buffers),
        }
    }

    /// Returns whether the request may be refused with an error. A request that releases something
    /// may not, nor may the late write-back of a mapping. Of the others, only reads and writes can
    /// be asynchronous, and so arrive in any number.
    pub fn may_be_refused(&self) -> bool {
        match self.header.opcode {
            opcode::READ => true,
            opcode::WRITE => {
                write_payload(&self.header, &self.buffer[..self.len]).is_some_and(|write| !write.is_late)
            }
            _ => false,
        }
    }

    /// Notes the end of its wait: from here on it is one of the few running requests.
    pub fn begins(&mut self) {
        self.kept = None;
    }
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        let buffer = std::mem::replace(&mut self.buffer, Buffer::Heap(Vec::new()));
        self.buffers.give_back(buffer);
    }
}
