//! Requests in flight whose callers may stop waiting.
//!
//! A request answered by its reader is never registered here. A request that may take long is
//! registered, together with its waiting thread. So an interrupt can end the wait:
//!
//! 1. The kernel sends INTERRUPT, once per request, at the first signal of whatever kind.
//! 2. If the request is not registered (yet), a watcher checks again a little later, and then
//!    answers EAGAIN. The kernel then sends the interrupt again, or drops it if the request has
//!    been answered.
//! 3. If the request is registered and any signal may end it ([`Interrupts::AnySignal`]), it is
//!    answered immediately.
//! 4. Otherwise only a fatal signal may end it: reads and writes of files do not fail because of an
//!    alarm. The watcher checks the waiting thread every [`WATCH_INTERVAL`] until the thread is
//!    being killed or the request is answered. A change under way gets [`CHANGE_GRACE`] to end:
//!    when the process is gone, the change has happened, unless its store hangs. A write gets no
//!    grace: the kernel drops the pages of a failed write.
//!
//! A thread claims the request before it answers, so there is only one answer. A late worker's
//! answer is reported to it as undelivered.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use umemcg_base::{LeafMutex, WakeSignal};
use zerocopy::IntoBytes;

use crate::signals::{Liveness, SignalReader};
use crate::transport::{Payload, Transport};
use crate::wire::reply::WriteOut;
use crate::wire::{INTERRUPT_BIT, OUT_HEADER_BYTES, OutHeader};

/// The interval between checks of a signalled waiting thread.
pub const WATCH_INTERVAL: Duration = Duration::from_millis(50);
/// The time until the kernel is asked to repeat an interrupt of an unknown request.
const UNKNOWN_INTERVAL: Duration = Duration::from_millis(2);
/// The time until a signalled thread counts as killed if it cannot be inspected (another pid
/// namespace, a hidden `/proc`).
const UNSEEN_GRACE: Duration = Duration::from_secs(1);
/// The time from the discovery that a change's thread is dying to the answer EINTR.
const CHANGE_GRACE: Duration = Duration::from_secs(1);
/// Number of shards of the table, so that threads seldom contend.
const NR_SHARDS: usize = 16;

/// The signals that end the wait for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupts {
    /// Signals that kill the waiting thread.
    FatalOnly,
    /// All signals not ignored. For a request without an effect when it is abandoned, since its
    /// caller may retry.
    AnySignal,
}

/// A registered request.
#[derive(Debug)]
pub struct InflightRequest {
    /// (C) The kernel's number of the request.
    unique: u64,
    /// (C) The waiting thread; 0 if unknown.
    tid: u32,
    /// (C) The signals that end the wait.
    interrupts: Interrupts,
    /// (C) The queue of the request, which must also take the answer.
    transport: Arc<dyn Transport>,
    /// (A) A thread answers or has answered.
    claimed: AtomicBool,
    /// (A) The watcher watches it already.
    watched: AtomicBool,
    /// (A) The answer to its killed caller was its result. Relaxed: at worst, one needless
    /// invalidation.
    has_sent_result: AtomicBool,
    /// (A) A change is under way. Relaxed: it only makes the watcher patient.
    is_changing: AtomicBool,
    /// The bytes of an accepted write whose reply is delayed: the answer to a killed requester in
    /// place of EINTR.
    accepted_bytes: LeafMutex<Option<u32>>,
}

impl InflightRequest {
    /// Returns whether the request has been answered or is being answered, so work for it may stop.
    pub fn is_claimed(&self) -> bool {
        // Acquire: pairs with `claim`.
        self.claimed.load(Ordering::Acquire)
    }

    /// Returns whether the answer to its killed caller was its result.
    pub(crate) fn has_sent_result(&self) -> bool {
        self.has_sent_result.load(Ordering::Relaxed)
    }

    /// Notes the beginning or the end of a change.
    pub(crate) fn set_changing(&self, is_changing: bool) {
        self.is_changing.store(is_changing, Ordering::Relaxed);
    }

    /// Claims the right to answer. Returns `true` for one caller only.
    pub(crate) fn claim(&self) -> bool {
        // AcqRel: pairs with `is_claimed` and with itself in another thread.
        !self.claimed.swap(true, Ordering::AcqRel)
    }

    /// From now on, answers a killed requester with the byte count of its write.
    pub(crate) fn accepted_write(&self, bytes: u32) {
        *self.accepted_bytes.lock() = Some(bytes);
    }

    fn kill(&self) {
        if !self.claim() {
            return;
        }
        let written = *self.accepted_bytes.lock();
        tracing::debug!(unique = self.unique, tid = self.tid, ?written, "the waiting thread was interrupted");
        self.has_sent_result.store(written.is_some(), Ordering::Relaxed);
        let error = if written.is_some() { 0 } else { -rustix::io::Errno::INTR.raw_os_error() };
        let written = written.map(|size| WriteOut { size, padding: 0 });
        let payload = written.as_ref().map_or(&[][..], |written| written.as_bytes());
        let header = OutHeader { len: (OUT_HEADER_BYTES + payload.len()) as u32, error, unique: self.unique };
        // The result does not matter: the caller is being killed.
        let _ = self.transport.send(header.as_bytes(), Payload::Bytes(payload));
    }
}

/// All registered requests of a session.
#[derive(Debug)]
pub struct Inflight {
    shards: [LeafMutex<HashMap<u64, Arc<InflightRequest>>>; NR_SHARDS],
    /// (C) Every queue of the session: the kernel accepts an interrupt's EAGAIN only on the queue
    /// of its request.
    transports: Vec<Arc<dyn Transport>>,
    signals: SignalReader,
    watch: LeafMutex<Vec<Watched>>,
    /// (A) The number of watched requests, without new ones in `watch`.
    nr_watched: AtomicUsize,
    wake_signal: WakeSignal,
    stop: AtomicBool,
}

#[derive(Debug)]
struct Watched {
    since: Instant,
    /// When the thread was first seen to be dying.
    dying_since: Option<Instant>,
    what: Interrupted,
}

#[derive(Debug)]
enum Interrupted {
    Known(Arc<InflightRequest>),
    Unknown(u64),
}

/// The watcher's finding about an interrupted request.
enum Look {
    Later,
    Settled,
    Killed,
}

impl Inflight {
    /// Creates an empty table for a session with these queues.
    pub fn new(transports: Vec<Arc<dyn Transport>>) -> Arc<Self> {
        Arc::new(Self {
            shards: Default::default(),
            transports,
            signals: SignalReader::new(),
            watch: LeafMutex::default(),
            nr_watched: AtomicUsize::new(0),
            wake_signal: WakeSignal::new(),
            stop: AtomicBool::new(false),
        })
    }

    fn shard(&self, unique: u64) -> &LeafMutex<HashMap<u64, Arc<InflightRequest>>> {
        // The kernel numbers requests in steps of two.
        &self.shards[(unique >> 1) as usize % NR_SHARDS]
    }

    /// Registers a request of thread `tid`, received from `transport`.
    pub fn enter(
        &self,
        unique: u64,
        tid: u32,
        interrupts: Interrupts,
        transport: Arc<dyn Transport>,
    ) -> Arc<InflightRequest> {
        let flight = Arc::new(InflightRequest {
            unique,
            tid,
            interrupts,
            transport,
            claimed: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            has_sent_result: AtomicBool::new(false),
            is_changing: AtomicBool::new(false),
            accepted_bytes: LeafMutex::default(),
        });
        self.shard(unique).lock().insert(unique, Arc::clone(&flight));
        flight
    }

    /// Forgets an answered request.
    pub fn leave(&self, unique: u64) {
        self.shard(unique).lock().remove(&unique);
    }

    /// Notes that the kernel interrupts `unique`. Called by a reader; does not inspect other
    /// threads, so it does not sleep.
    pub fn interrupt(&self, unique: u64) {
        let known = self.shard(unique).lock().get(&unique).cloned();
        let what = match known {
            Some(flight) if flight.interrupts == Interrupts::AnySignal => return flight.kill(),
            Some(flight) => {
                if flight.watched.swap(true, Ordering::Relaxed) {
                    return;
                }
                Interrupted::Known(flight)
            }
            None => Interrupted::Unknown(unique),
        };
        self.watch.lock().push(Watched { since: Instant::now(), dying_since: None, what });
        self.wake_signal.raise();
    }

    /// Runs the watcher: checks interrupted requests until [`stop`](Self::stop). Calls `killed`
    /// after it has answered requests of killed threads.
    pub fn watch(&self, killed: impl Fn()) {
        let mut watched: Vec<Watched> = Vec::new();
        let mut interval = Duration::MAX;
        // Acquire: pairs with `stop`.
        while !self.stop.load(Ordering::Acquire) {
            self.wake_signal.wait(interval.min(Duration::from_secs(3600)));
            watched.append(&mut self.watch.lock());
            let now = Instant::now();
            let mut any_killed = false;
            watched.retain_mut(|w| match self.look(w, now) {
                Look::Later => true,
                Look::Settled => false,
                Look::Killed => {
                    any_killed = true;
                    false
                }
            });
            if any_killed {
                killed();
            }
            self.nr_watched.store(watched.len(), Ordering::Relaxed);
            let unknown = watched.iter().any(|w| matches!(w.what, Interrupted::Unknown(_)));
            interval = match watched.is_empty() {
                true => Duration::MAX,
                false if unknown => UNKNOWN_INTERVAL,
                false => WATCH_INTERVAL,
            };
        }
    }

    fn look(&self, watched: &mut Watched, now: Instant) -> Look {
        match &watched.what {
            Interrupted::Known(flight) => {
                if flight.is_claimed() {
                    return Look::Settled;
                }
                let is_dying = match self.signals.liveness(flight.tid) {
                    Liveness::Dying => true,
                    Liveness::Living => false,
                    Liveness::Unknown => now.duration_since(watched.since) >= UNSEEN_GRACE,
                };
                if !is_dying {
                    return Look::Later;
                }
                let dying_since = *watched.dying_since.get_or_insert(now);
                let is_changing = flight.is_changing.load(Ordering::Relaxed);
                if !is_changing || now.duration_since(dying_since) >= CHANGE_GRACE {
                    flight.kill();
                    self.leave(flight.unique);
                    return Look::Killed;
                }
                Look::Later
            }
            Interrupted::Unknown(unique) => {
                let known = self.shard(*unique).lock().contains_key(unique);
                if known {
                    self.interrupt(*unique);
                } else if now.duration_since(watched.since) < UNKNOWN_INTERVAL {
                    return Look::Later;
                } else {
                    self.ask_again(*unique);
                }
                Look::Settled
            }
        }
    }

    /// Makes the kernel repeat an interrupt. If the request has been answered, no queue knows it,
    /// and this has no effect.
    fn ask_again(&self, unique: u64) {
        let error = -rustix::io::Errno::AGAIN.raw_os_error();
        let header = OutHeader { len: OUT_HEADER_BYTES as u32, error, unique: unique | INTERRUPT_BIT };
        for transport in &self.transports {
            if transport.send(header.as_bytes(), Payload::None).is_ok() {
                return;
            }
        }
    }

    /// Returns the number of interrupted requests with living, watched threads.
    pub fn nr_watched(&self) -> usize {
        self.nr_watched.load(Ordering::Relaxed)
    }

    /// Ends [`watch`](Self::watch).
    pub fn stop(&self) {
        // Release: pairs with `watch`.
        self.stop.store(true, Ordering::Release);
        self.wake_signal.raise();
    }

    /// Returns the number of registered requests.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Returns the threads that wait for the answer to a registered request, in order.
    pub fn waiting_threads(&self) -> Vec<u32> {
        let mut threads = Vec::new();
        for shard in &self.shards {
            let requests = shard.lock();
            let waiting = requests.values().filter(|request| request.tid != 0 && !request.is_claimed());
            threads.extend(waiting.map(|request| request.tid));
        }
        threads.sort_unstable();
        threads.dedup();
        threads
    }

    /// Returns whether none is registered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
