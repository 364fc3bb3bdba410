//! The duty to answer a request, as a value. It can move to another thread or wait in a queue, and
//! it answers at most once. If it is dropped unanswered, the requester gets EIO instead of waiting
//! for ever.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use umemcg::internal::CurrentRequest;
use umemcg_arena::{Arena, Segment};
use umemcg_vfs::{KernelIo, NodeId};
use zerocopy::{Immutable, IntoBytes};

use crate::inflight::{Inflight, InflightRequest, Interrupts};
use crate::transport::{Payload, SendError, Transport};
use crate::wire::reply::{GetxattrOut, WriteOut};
use crate::wire::{InHeader, OUT_HEADER_BYTES, OutHeader, opcode};

/// The delivery of an answer. An object handed over by an answer (a looked-up node, an open file)
/// must be taken back when the answer did not arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "what the answer handed over is lost when it was not taken"]
pub enum Delivery {
    /// The kernel has it.
    Taken,
    /// No caller waits any more.
    Gone,
}

impl Delivery {
    /// Returns whether the kernel did not take the answer.
    pub fn is_gone(self) -> bool {
        self == Self::Gone
    }
    /// Ignores the delivery, for answers without an object to take back.
    pub fn ignore(self) {}
}

/// Takes back the object handed over by an answer, when the kernel did not take the answer.
pub(crate) type Undo = Box<dyn FnOnce() + Send>;

/// Asks whether the reply may be sent (`None`), or how much longer to delay it. Must not
/// sleep.
pub(crate) type RecheckFn = Box<dyn FnMut() -> Option<Duration> + Send>;

/// Returns a check that lets the reply go, and keeps `held` until then.
pub(crate) fn holding<T: Send + 'static>(held: T) -> RecheckFn {
    Box::new(move || {
        let _until_it_goes = &held;
        None
    })
}

/// A delayed answer, as it would have been sent.
pub(crate) struct Answer {
    /// 0, or a negative error.
    pub error: i32,
    /// The bytes that follow. Pages that were read are copied: pinned for so long they could not be
    /// reclaimed.
    pub bytes: Vec<u8>,
    /// Called when the kernel does not take the answer.
    pub undo: Option<Undo>,
}

impl Answer {
    /// Returns success with these bytes.
    pub fn success(bytes: Vec<u8>) -> Self {
        Self { error: 0, bytes, undo: None }
    }

    /// Returns the answer to a write with its byte count.
    pub fn written(bytes: u32) -> Self {
        Self::success(WriteOut { size: bytes, padding: 0 }.as_bytes().to_vec())
    }
}

/// Delays an answer.
pub(crate) type Hold = Box<dyn FnOnce(Reply, Answer) + Send>;
type Decide = dyn FnOnce(&Reply) -> Option<Hold> + Send;

/// Decides, just before an answer is sent and on the answering thread, whether to hold it back. May
/// sleep.
pub(crate) struct Gate(Box<Decide>);

impl Gate {
    /// Creates a gate that asks `decide`.
    pub fn new(decide: impl FnOnce(&Reply) -> Option<Hold> + Send + 'static) -> Self {
        Self(Box::new(decide))
    }
}

/// Inodes changed by a request that does not name them.
pub(crate) type Others = [Option<NodeId>; 2];
type SendFn = dyn FnOnce(Others) + Send;

/// Invalidates the kernel's cached state of the inodes and names changed by a request. Never waits.
pub(crate) struct Invalidation {
    send: Box<SendFn>,
    /// A killed requester is answered only after the change has had some time to end.
    has_grace: bool,
    others: Others,
}

impl Invalidation {
    /// Creates one. `send` gets the inodes of [`Reply::also_changed`].
    pub fn new(has_grace: bool, send: impl FnOnce(Others) + Send + 'static) -> Self {
        Self { send: Box::new(send), has_grace, others: [None; 2] }
    }
}

/// The duty to answer one request.
pub struct Reply {
    transport: Arc<dyn Transport>,
    unique: u64,
    opcode: u32,
    tid: u32,
    /// An answer is still due.
    due: bool,
    /// The register of requests that may take long; none during the handshake.
    inflight: Option<Arc<Inflight>>,
    /// The signals that end the wait for this one.
    interrupts: Interrupts,
    /// The request's entry in `inflight`, once registered.
    flight: Option<Arc<InflightRequest>>,
    /// The check before the answer is sent; none for most.
    gate: Option<Gate>,
    /// Sent if the kernel does not take the answer; none for requests without a change.
    invalidation: Option<Invalidation>,
    /// Ends when the request has been answered; for requests through the kernel's page cache.
    kernel_io: Option<Arc<KernelIo>>,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("unique", &self.unique).field("due", &self.due).finish_non_exhaustive()
    }
}

impl Reply {
    /// Creates one without a duty, for requests from `transport`.
    pub(crate) fn idle(transport: Arc<dyn Transport>, inflight: Option<Arc<Inflight>>) -> Self {
        Self {
            transport,
            unique: 0,
            opcode: 0,
            tid: 0,
            due: false,
            inflight,
            interrupts: Interrupts::FatalOnly,
            flight: None,
            gate: None,
            invalidation: None,
            kernel_io: None,
        }
    }

    /// Takes on the duty for a request. The previous one must have been settled.
    pub(crate) fn arm(&mut self, header: &InHeader) {
        debug_assert!(!self.due && self.flight.is_none());
        self.unique = header.unique;
        self.opcode = header.opcode;
        self.tid = header.pid;
        self.interrupts = Interrupts::FatalOnly;
        self.due = !matches!(
            header.opcode,
            opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT | opcode::NOTIFY_REPLY
        );
    }

    /// Sets the signals that end the wait. The default is fatal signals only.
    pub fn set_interrupts(&mut self, interrupts: Interrupts) {
        self.interrupts = interrupts;
    }

    /// Moves the duty out, to be settled later or elsewhere. From now on an interrupt finds the
    /// request.
    pub fn take(&mut self) -> Self {
        self.register();
        let idle = Self::idle(Arc::clone(&self.transport), self.inflight.clone());
        std::mem::replace(self, idle)
    }

    /// Registers a request that may take long: an interrupt must find it.
    pub(crate) fn register(&mut self) {
        if let Some(inflight) = self.inflight.as_ref().filter(|_| self.due && self.flight.is_none()) {
            self.flight =
                Some(inflight.enter(self.unique, self.tid, self.interrupts, Arc::clone(&self.transport)));
        }
        self.note_change();
    }

    /// Ends the change. Its answer may still be held back.
    pub(crate) fn end_change(&self) {
        if let Some(flight) = &self.flight {
            flight.set_changing(false);
        }
    }

    /// From now on, answers a killed requester with the byte count of its write: the write has been
    /// accepted, only the answer is held back.
    pub fn accepted_write(&self, bytes: u32) {
        if let Some(flight) = &self.flight {
            flight.accepted_write(bytes);
        }
    }

    /// Returns whether the requester no longer waits (killed, or interrupted where any signal
    /// interrupts). Long work polls this.
    pub fn is_cancelled(&self) -> bool {
        self.flight.as_ref().is_some_and(|flight| flight.is_claimed())
    }

    /// Returns whether an answer is still owed by this value.
    pub fn is_due(&self) -> bool {
        self.due
    }

    /// Sets the gate to ask before the answer is sent.
    pub(crate) fn set_gate(&mut self, gate: Gate) {
        self.gate = Some(gate);
    }

    /// Begins a change: if the kernel does not take the answer, its caches are invalidated.
    pub(crate) fn begin_change(&mut self, invalidation: Invalidation) {
        self.invalidation = Some(invalidation);
        self.note_change();
    }

    fn note_change(&self) {
        if let (Some(flight), Some(invalidation)) = (&self.flight, &self.invalidation) {
            flight.set_changing(invalidation.has_grace);
        }
    }

    /// Notes inodes changed by the request and not named in it.
    pub(crate) fn also_changed(&mut self, others: Others) {
        if let Some(invalidation) = &mut self.invalidation {
            invalidation.others = others;
        }
    }

    /// Keeps `io` until the request has been answered and no clone of it is in use.
    pub fn begin_kernel_io(&mut self, io: KernelIo) {
        self.kernel_io = Some(Arc::new(io));
    }

    /// Makes this the request of this thread, if it is through the kernel's page cache.
    pub(crate) fn make_current(&self) -> Option<CurrentRequest> {
        self.kernel_io.as_ref().map(KernelIo::make_current)
    }

    /// Returns the value of [`begin_kernel_io`](Self::begin_kernel_io).
    pub fn kernel_io(&self) -> Option<Arc<KernelIo>> {
        self.kernel_io.clone()
    }

    /// Ends the kernel I/O, unless it has been moved out with the duty to answer.
    pub(crate) fn end_kernel_io(&mut self) {
        drop(self.kernel_io.take());
    }

    /// Answers with an error.
    pub fn error(&mut self, errno: Errno) -> Delivery {
        self.send(-errno.raw_os_error(), Payload::None)
    }

    /// Answers with success and nothing else.
    pub fn done(&mut self) -> Delivery {
        self.send(0, Payload::None)
    }

    /// Answers with bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> Delivery {
        self.send(0, Payload::Bytes(bytes))
    }

    /// Answers with a structure of [`wire::reply`](crate::wire::reply).
    pub fn value<T: IntoBytes + Immutable>(&mut self, value: &T) -> Delivery {
        self.send(0, Payload::Bytes(value.as_bytes()))
    }

    /// Answers with bytes, or with ERANGE if there are more than `size`; 0 asks for their number.
    pub fn sized(&mut self, bytes: &[u8], size: u32) -> Delivery {
        match size as usize {
            0 => self.value(&GetxattrOut { size: bytes.len() as u32, padding: 0 }),
            room if room < bytes.len() => self.error(Errno::RANGE),
            _ => self.bytes(bytes),
        }
    }

    /// Answers with a structure that hands over an object. `undo` takes the object back if the
    /// kernel does not take the answer, now or when a delayed answer is sent.
    pub fn hand_over<T: IntoBytes + Immutable>(&mut self, value: &T, undo: impl FnOnce() + Send + 'static) {
        self.hand_over_bytes(value.as_bytes(), undo);
    }

    /// Like `hand_over`, with bytes.
    pub fn hand_over_bytes(&mut self, bytes: &[u8], undo: impl FnOnce() + Send + 'static) {
        let mut undo = Some(undo);
        let boxed = &mut || undo.take().map(|undo| Box::new(undo) as Undo);
        if self.send_or(0, Payload::Bytes(bytes), boxed).is_gone()
            && let Some(undo) = undo
        {
            undo();
        }
    }

    /// Answers with the contents of frames, which the caller keeps pinned until this returns.
    pub fn frames(&mut self, arena: &Arena, segments: &[Segment]) -> Delivery {
        self.send(0, Payload::Frames(arena, segments))
    }

    /// Answers a write with its byte count.
    pub fn written(&mut self, bytes: usize) -> Delivery {
        self.value(&WriteOut { size: bytes as u32, padding: 0 })
    }

    /// Answers a malformed request with EINVAL, if an answer is due.
    pub(crate) fn malformed(&mut self) {
        if self.is_due() {
            self.error(Errno::INVAL).ignore();
        }
    }

    fn send(&mut self, error: i32, payload: Payload<'_>) -> Delivery {
        self.send_or(error, payload, &mut || None)
    }

    /// Sends an answer held back before.
    pub(crate) fn send_held(&mut self, error: i32, bytes: &[u8]) -> Delivery {
        self.send(error, Payload::Bytes(bytes))
    }

    /// Sends an answer, or holds it back together with the result of `undo`. Frames are never held
    /// back.
    fn send_or(
        &mut self,
        error: i32,
        payload: Payload<'_>,
        undo: &mut dyn FnMut() -> Option<Undo>,
    ) -> Delivery {
        let held_back = match payload {
            Payload::None => Some(&[][..]),
            Payload::Bytes(bytes) => Some(bytes),
            Payload::Frames(..) => None,
        };
        self.end_change();
        if let Some(gate) = self.gate.take()
            && let Some(bytes) = held_back
            && let Some(hold) = (gate.0)(self)
        {
            hold(self.take(), Answer { error, bytes: bytes.to_vec(), undo: undo() });
            return Delivery::Taken;
        }
        let delivery = self.deliver(error, payload);
        if let Some(invalidation) = self.invalidation.take().filter(|_| delivery.is_gone()) {
            (invalidation.send)(invalidation.others);
        }
        delivery
    }

    fn deliver(&mut self, error: i32, payload: Payload<'_>) -> Delivery {
        assert!(self.due, "request {} ({}) answered twice", self.unique, self.opcode);
        self.due = false;
        if let (Some(flight), Some(inflight)) = (self.flight.take(), &self.inflight) {
            let mine = flight.claim();
            inflight.leave(self.unique);
            if !mine {
                self.invalidation = self.invalidation.take().filter(|_| !flight.has_sent_result());
                return Delivery::Gone;
            }
        }
        let header = OutHeader { len: (OUT_HEADER_BYTES + payload.len()) as u32, error, unique: self.unique };
        match self.transport.send(header.as_bytes(), payload) {
            Ok(()) => Delivery::Taken,
            Err(SendError::Gone) => Delivery::Gone,
            Err(SendError::Failed(problem)) => {
                tracing::warn!(opcode = self.opcode, ?payload, %problem, "the kernel refused an answer");
                // The requester still waits. The kernel cannot refuse a bare error.
                let error = -Errno::IO.raw_os_error();
                let header = OutHeader { len: OUT_HEADER_BYTES as u32, error, unique: self.unique };
                let _ = self.transport.send(header.as_bytes(), Payload::None);
                Delivery::Gone
            }
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.due {
            if !self.is_cancelled() {
                tracing::warn!(
                    opcode = self.opcode,
                    unique = self.unique,
                    "a request was dropped unanswered"
                );
            }
            self.error(Errno::IO).ignore();
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;
    use crate::testing::levels_of;
    use crate::transport::ReceiveError;
    use crate::transport::testing::{due, recorder};
    use crate::wire::IN_HEADER_BYTES;

    /// Refuses every answer.
    #[derive(Debug)]
    struct Refusing;

    impl Transport for Refusing {
        fn receive(&self, _buffer: &mut [u8]) -> Result<usize, ReceiveError> {
            Err(ReceiveError::Ended)
        }
        fn send(&self, _header: &[u8], _payload: Payload<'_>) -> Result<(), SendError> {
            Err(SendError::Failed(std::io::ErrorKind::InvalidInput.into()))
        }
    }

    #[test]
    fn a_reply_that_is_dropped_is_an_error_and_not_silence() {
        let (transport, sent) = recorder();
        drop(due(&transport, 4));
        let (header, _) = sent.try_recv().unwrap();
        assert_eq!((header.unique, header.error), (4, -5));
    }

    /// The program's log limits the rate of warnings, and not of errors.
    #[test]
    fn an_answer_that_the_kernel_refuses_is_a_warning() {
        let transport: Arc<dyn Transport> = Arc::new(Refusing);
        let levels = levels_of(|| assert!(due(&transport, 4).done().is_gone()));
        assert_eq!(levels, [Level::WARN]);
    }

    #[test]
    #[should_panic(expected = "answered twice")]
    fn two_answers_are_a_defect() {
        let (transport, _sent) = recorder();
        let mut reply = due(&transport, 4);
        reply.done().ignore();
        reply.done().ignore();
    }

    #[test]
    fn a_forgotten_node_needs_no_answer() {
        let (transport, sent) = recorder();
        let mut reply = Reply::idle(Arc::clone(&transport), None);
        let len = IN_HEADER_BYTES as u32;
        reply.arm(&InHeader { len, opcode: opcode::FORGET, unique: 4, ..Default::default() });
        drop(reply);
        assert!(sent.try_recv().is_err());
    }

    #[test]
    fn of_an_interrupt_and_an_answer_one_arrives() {
        for interrupt_first in [false, true] {
            let (transport, sent) = recorder();
            let inflight = Inflight::new(vec![Arc::clone(&transport)]);
            let mut idle = Reply::idle(Arc::clone(&transport), Some(Arc::clone(&inflight)));
            idle.arm(&InHeader { opcode: opcode::WRITE, unique: 8, ..Default::default() });
            idle.set_interrupts(Interrupts::AnySignal);
            let mut reply = idle.take();
            assert_eq!(inflight.len(), 1);
            if interrupt_first {
                inflight.interrupt(8);
                assert!(reply.is_cancelled());
                assert!(reply.written(3).is_gone());
            } else {
                assert_eq!(reply.written(3), Delivery::Taken);
                inflight.interrupt(8);
            }
            let (header, _) = sent.try_recv().unwrap();
            assert_eq!(header.error, if interrupt_first { -4 } else { 0 });
            assert!(sent.try_recv().is_err() && inflight.is_empty());
        }
    }

    #[test]
    fn an_accepted_write_that_is_interrupted_says_how_much_it_wrote() {
        let (transport, sent) = recorder();
        let inflight = Inflight::new(vec![Arc::clone(&transport)]);
        let mut idle = Reply::idle(Arc::clone(&transport), Some(Arc::clone(&inflight)));
        idle.arm(&InHeader { opcode: opcode::WRITE, unique: 8, ..Default::default() });
        idle.set_interrupts(Interrupts::AnySignal);
        let reply = idle.take();
        reply.accepted_write(77);
        inflight.interrupt(8);
        let (header, body) = sent.try_recv().unwrap();
        assert_eq!((header.error, &body[..4]), (0, &77u32.to_ne_bytes()[..]));
    }
}
