//! A request with the buffer it lies in and the duty to answer it, and the pool that buffers come from.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::classify::Payer;
use crate::inflight::Inflight;
use crate::reply::Reply;
use crate::transport::Transport;
use crate::wire::{BUFFER_BYTES, Dialect, InHeader, Malformed, Op};

/// Free buffers that are kept; more are given back to the operating system.
const NR_SPARE_BUFFERS: usize = 4;
/// A request up to this long is copied when it has to wait; a longer one takes its buffer along.
const COPIED_BYTES_MAX: usize = 16 << 10;

/// Free request buffers.
#[derive(Debug, Default)]
pub struct Buffers {
    spare: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    /// A pool that keeps a few spare buffers. Never waits: the kernel bounds how many requests exist.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn take(&self) -> Vec<u8> {
        self.spare.lock().pop().unwrap_or_else(|| vec![0; BUFFER_BYTES])
    }

    fn give_back(&self, buffer: Vec<u8>) {
        if buffer.len() == BUFFER_BYTES {
            let mut spare = self.spare.lock();
            if spare.len() < NR_SPARE_BUFFERS {
                spare.push(buffer);
            }
        }
    }
}

/// What a handler sees of a request.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Who asks about which node.
    pub header: &'a InHeader,
    /// What is asked.
    pub op: Op<'a>,
    /// The kernel queued it after this time, in nanoseconds since boot.
    pub queued_after_ns: u64,
    /// Who pays for it, as [`quick`](crate::Filesystem::quick) has said.
    pub payer: Option<&'a Payer>,
}

/// A request in its buffer.
#[derive(Debug)]
pub(crate) struct Request {
    pub header: InHeader,
    pub reply: Reply,
    /// The kernel queued it after this time, in nanoseconds since boot.
    pub queued_after_ns: u64,
    /// Who pays for it, once that has been found out.
    pub payer: Option<Payer>,
    buffer: Vec<u8>,
    len: usize,
    buffers: Arc<Buffers>,
}

impl Request {
    /// A place for requests from `transport`.
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
            buffer: buffers.take(),
            len: 0,
            buffers: Arc::clone(buffers),
        }
    }

    /// Where the next request is to be put.
    pub fn buffer_mut(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    /// Takes on the request that was put into the first `len` bytes of the buffer.
    pub fn arrived(&mut self, len: usize) -> Result<(), Malformed> {
        self.len = len;
        self.header = InHeader::parse(&self.buffer[..len])?;
        self.reply.arm(&self.header);
        self.payer = None;
        Ok(())
    }

    /// The request decoded, and the duty to answer it.
    pub fn parts(&mut self, dialect: Dialect) -> Result<(Asked<'_>, &mut Reply), (Malformed, &mut Reply)> {
        match Op::parse(&self.buffer[..self.len], dialect) {
            Ok(op) => {
                let (header, payer) = (&self.header, self.payer.as_ref());
                Ok((Asked { header, op, queued_after_ns: self.queued_after_ns, payer }, &mut self.reply))
            }
            Err(malformed) => Err((malformed, &mut self.reply)),
        }
    }

    /// Moves the request out, leaving a place for the next one. A short one is copied, so that requests that wait in
    /// numbers do not hold a large buffer each.
    pub fn detach(&mut self) -> Self {
        let buffer = if self.len <= COPIED_BYTES_MAX {
            self.buffer[..self.len].to_vec()
        } else {
            std::mem::replace(&mut self.buffer, self.buffers.take())
        };
        Self {
            header: self.header,
            reply: self.reply.take(),
            queued_after_ns: self.queued_after_ns,
            payer: self.payer.take(),
            buffer,
            len: self.len,
            buffers: Arc::clone(&self.buffers),
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.buffers.give_back(std::mem::take(&mut self.buffer));
    }
}
