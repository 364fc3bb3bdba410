//! One mount being served: the handshake, the threads, and everything common to all file systems
//! (interrupts, unknown and malformed requests, the end).
//!
//! A [`Filesystem`] answers requests in two steps. [`quick`](Filesystem::quick) runs on the reader
//! of the request and must not sleep; [`slow`](Filesystem::slow) may.
//! [`thread_pool`](crate::thread_pool) keeps readers at the device.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use rustix::io::Errno;
use umemcg_base::clock::spawn_detached;
use umemcg_base::{Idle, IdleObserver, Wait, observe_idle};

use crate::classify::Payer;
use crate::computing::Run;
use crate::heartbeat::{Heartbeat, Heartbeats, ReaderWatch};
use crate::inflight::Inflight;
use crate::job::Job;
use crate::kernel_queue::KernelQueue;
use crate::notifier::Notifier;
use crate::page_watch::PageWatch;
use crate::parking::{Lot, ParkedRequest, Parking};
use crate::reply::Reply;
use crate::request::{Buffers, Request, RequestSlot};
use crate::thread_pool::{Keys, Next, Pool, PoolCounts, PoolLimits, Start, Started, Waiting};
use crate::transport::{Device, ReceiveError, Transport};
use crate::wire::init::negotiate;
use crate::wire::request::Init;
use crate::wire::{BUFFER_BYTES, Dialect, MAJOR, MINOR_MAX, Negotiated, Op};

/// The outcome of [`Filesystem::quick`].
#[derive(Debug, Clone)]
pub enum QuickOutcome {
    /// The request is answered, or its reply has been taken for a later answer.
    Answered,
    /// The request may sleep: the session calls [`Filesystem::slow`] when these keys have a place
    /// for it.
    MaySleep(Keys),
    /// Like `MaySleep`, with the paying group.
    MaySleepAt(Keys, Payer),
}

/// A file system served by a session.
pub trait Filesystem: Send + Sync + 'static {
    /// Returns the capabilities to ask for in addition to
    /// [`InitFlags::COMMON`](crate::wire::InitFlags::COMMON).
    fn wanted(&self) -> u64 {
        crate::wire::InitFlags::ATOMIC_O_TRUNC
    }

    /// Takes the session's parking, for requests that wait for a store without a thread. Called
    /// before the first request.
    fn set_parking(&self, _parking: Parking) {}

    /// Notes that the handshake is done; requests follow.
    fn ready(&self, _negotiated: &Negotiated, _notifier: &Notifier) {}

    /// Answers a request that needs no sleep. Runs on a reader, which keeps other requests waiting.
    fn quick(&self, request: &Request<'_>, reply: &mut Reply) -> QuickOutcome;

    /// Answers a request left unanswered by [`quick`](Self::quick). May sleep;
    /// [`Reply::is_cancelled`] returns true once no caller waits any more.
    fn slow(&self, request: &Request<'_>, reply: &mut Reply);

    /// Answers a read or a write refused because too many requests of its group wait already. Runs
    /// on a reader, which keeps other requests waiting.
    fn refuse(&self, _request: &Request<'_>, reply: &mut Reply) {
        reply.error(Errno::AGAIN).ignore();
    }
}

/// The configuration of a session.
#[derive(Debug, Clone, Copy, Default)]
pub struct SessionConfig {
    /// Threads.
    pub pool: PoolLimits,
    /// The newest minor number of the protocol to speak; `None` for the newest supported one.
    pub minor_max: Option<u32>,
}

/// The reason for a failed start of a session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The kernel's protocol is not supported.
    #[error("the kernel speaks FUSE protocol {major}.{minor}, this program 7.31 to 7.45")]
    Protocol {
        /// Major number of the kernel.
        major: u32,
        /// Minor number of the kernel.
        minor: u32,
    },
    /// The mount went away before it was served.
    #[error("the mount went away before it was served")]
    Ended,
    /// A system call failed.
    #[error("cannot serve the mount: {0}")]
    Io(#[from] io::Error),
}

/// The most requests that a thread takes off the device before it runs a waiting one.
const NR_READY_MAX: usize = 16;

/// The fate of a received request.
enum Received {
    /// None was ready.
    Nothing,
    /// The request has been answered, or waits.
    Done,
    /// The request may sleep and has started: run it.
    Run(Started),
    /// The request waits, and this other one has started: run the other.
    Pick(Started, Box<Job>),
    /// There will be no more.
    End,
}

/// The connection to the kernel, and the state shared by its threads.
struct Connection {
    filesystem: Arc<dyn Filesystem>,
    transports: Vec<Arc<dyn Transport>>,
    /// Receives without waiting.
    nonblocking: Option<Arc<dyn Transport>>,
    dialect: Dialect,
    inflight: Arc<Inflight>,
    pool: Pool<Job>,
    buffers: Arc<Buffers>,
    kernel_queue: KernelQueue,
    page_watch: Arc<PageWatch>,
    heartbeats: Arc<Heartbeats>,
    next_thread: std::sync::atomic::AtomicUsize,
    failure: OnceLock<io::Error>,
}

/// A mount being served. Dropping it does not unmount: the threads run until the mount goes away.
pub struct Session {
    connection: Arc<Connection>,
    notifier: Notifier,
    negotiated: Negotiated,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("pool", &self.pool_counts()).finish_non_exhaustive()
    }
}

impl Session {
    /// Serves the mount of `device`. Waits for the kernel's handshake.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn start(
        device: Device,
        filesystem: Arc<dyn Filesystem>,
        config: SessionConfig,
    ) -> Result<Self, SessionError> {
        let mut transports: Vec<Arc<dyn Transport>> = Vec::new();
        for _ in 1..config.pool.readers_max {
            transports.push(Arc::new(device.another()?));
        }
        let nonblocking = device.without_waiting().map(|device| Arc::new(device) as Arc<dyn Transport>);
        transports.insert(0, Arc::new(device));
        Self::serve(transports, nonblocking, filesystem, config)
    }

    /// Serves through any transports: queues of one connection.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn start_on(
        transports: Vec<Arc<dyn Transport>>,
        filesystem: Arc<dyn Filesystem>,
        config: SessionConfig,
    ) -> Result<Self, SessionError> {
        Self::serve(transports, None, filesystem, config)
    }

    fn serve(
        transports: Vec<Arc<dyn Transport>>,
        nonblocking: Option<Arc<dyn Transport>>,
        filesystem: Arc<dyn Filesystem>,
        config: SessionConfig,
    ) -> Result<Self, SessionError> {
        let buffers = Buffers::new();
        let mut request = RequestSlot::new(&buffers, Arc::clone(&transports[0]), None);
        let negotiated = shake_hands(&mut request, &*transports[0], &*filesystem, config.minor_max)?;
        drop(request);
        let inflight = Inflight::new(transports.iter().chain(&nonblocking).cloned().collect());
        let notifier = Notifier::start(Arc::clone(&transports[0]), negotiated.minor)?;
        let connection = Arc::new(Connection {
            filesystem,
            transports,
            dialect: negotiated.dialect,
            inflight,
            pool: Pool::new(config.pool, nonblocking.is_some()),
            nonblocking,
            buffers,
            kernel_queue: KernelQueue::new(),
            page_watch: notifier.page_watch(),
            heartbeats: Arc::default(),
            next_thread: 0.into(),
            failure: OnceLock::new(),
        });
        let lot: Arc<dyn Lot> = Arc::<Connection>::clone(&connection);
        connection.filesystem.set_parking(Parking::new(Arc::downgrade(&lot)));
        connection.filesystem.ready(&negotiated, &notifier);
        let watched = Arc::clone(&connection);
        // Queued requests of a killed thread are dropped, also while its store hangs.
        spawn_detached("umemcg-watch", move || watched.inflight.watch(|| drop(watched.pool.sweep())))?;
        connection.pool.open(|| spawn_server(&connection, Begin::Reader))?;
        Ok(Self { connection, notifier, negotiated })
    }

    /// Returns the protocol version and capabilities agreed on with the kernel.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// Sends notifications to the kernel.
    pub fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    /// Returns the numbers of threads and requests of the pool.
    pub fn pool_counts(&self) -> PoolCounts {
        self.connection.pool.pool_counts()
    }

    /// Returns a watch for threads stuck in a request that needs no sleep.
    pub fn watch_readers(&self) -> ReaderWatch {
        self.connection.heartbeats.watch()
    }

    /// Returns the number of unanswered requests outside the fast path.
    pub fn nr_inflight(&self) -> usize {
        self.connection.inflight.len()
    }

    /// Returns the threads that wait for the answer to such a request.
    pub fn waiting_threads(&self) -> Vec<u32> {
        self.connection.inflight.waiting_threads()
    }

    /// Returns the number of interrupted requests whose threads are checked from time to time.
    pub fn nr_watched(&self) -> usize {
        self.connection.inflight.nr_watched()
    }

    /// Waits until the mount is gone and every thread has ended. Returns false if some were still
    /// busy after `timeout`.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        self.connection.pool.wait_ended(timeout)
    }

    /// Waits until the mount is gone, or the transport broke: no request will come any more.
    /// Requests may still be running. Returns false if the mount was still there after `timeout`.
    pub fn wait_gone(&self, timeout: Option<Duration>) -> bool {
        self.connection.pool.wait_gone(timeout)
    }

    /// Returns the error of a broken transport, if there was one.
    pub fn failure(&self) -> Option<&io::Error> {
        self.connection.failure.get()
    }
}

/// Receives requests until the kernel's INIT has been agreed on.
fn shake_hands(
    request: &mut RequestSlot,
    transport: &dyn Transport,
    filesystem: &dyn Filesystem,
    minor_max: Option<u32>,
) -> Result<Negotiated, SessionError> {
    loop {
        let len = match transport.receive(request.buffer_mut()) {
            Ok(len) => len,
            Err(ReceiveError::Again) => continue,
            Err(ReceiveError::Ended) => return Err(SessionError::Ended),
            Err(ReceiveError::Failed(error)) => return Err(error.into()),
        };
        if request.arrived(len).is_err() {
            continue;
        }
        let (request, reply) = match request.parts(Dialect::default()) {
            Ok(parts) => parts,
            Err((_, reply)) => {
                reply.malformed();
                continue;
            }
        };
        let Op::Init(init) = request.op else {
            reply.error(Errno::IO).ignore();
            continue;
        };
        tracing::debug!(?init, "handshake");
        if init.major > MAJOR {
            // The kernel asks again with the offered protocol.
            let answer = crate::wire::reply::InitOut { major: MAJOR, minor: MINOR_MAX, ..Default::default() };
            reply.value(&answer).ignore();
            continue;
        }
        let init = Init { minor: init.minor.min(minor_max.unwrap_or(MINOR_MAX)), ..init };
        let wanted = crate::wire::InitFlags::COMMON | filesystem.wanted();
        let Some(negotiated) = negotiate(&init, wanted) else {
            reply.error(Errno::PROTO).ignore();
            return Err(SessionError::Protocol { major: init.major, minor: init.minor });
        };
        return match reply.value(&negotiated.answer).is_gone() {
            true => Err(SessionError::Ended),
            false => Ok(negotiated),
        };
    }
}

/// The first task of a new thread.
#[derive(Debug, Clone, Copy)]
enum Begin {
    Reader,
    /// A waiting request may run.
    Runner,
}

fn spawn_server(connection: &Arc<Connection>, begin: Begin) -> io::Result<()> {
    let connection = Arc::clone(connection);
    // Never joined: a thread hanging in a dead store must not keep the rest from ending.
    spawn_detached("umemcg-fuse", move || connection.serve(begin))
}

/// Reports to the pool whether a thread's request computes or waits.
struct PoolObserver {
    connection: Weak<Connection>,
    /// The pool's entry for the thread's request; none while it runs no request.
    run: Cell<Option<Run>>,
}

impl IdleObserver for PoolObserver {
    fn waits(&self, how: Wait) {
        if let (Some(run), Some(connection)) = (self.run.get(), self.connection.upgrade()) {
            self.run.set(Some(connection.pool.waits(run, how, || spawn_server(&connection, Begin::Runner))));
        }
    }

    fn goes_on(&self) {
        if let (Some(run), Some(connection)) = (self.run.get(), self.connection.upgrade()) {
            self.run.set(Some(connection.pool.goes_on(run)));
        }
    }
}

impl Connection {
    /// Runs a thread: reader, runner, spare, in turn.
    fn serve(self: Arc<Self>, begin: Begin) {
        let number = self.next_thread.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let transport = &self.transports[number % self.transports.len()];
        let spawn_runner = || spawn_server(&self, Begin::Runner);
        let heartbeat = self.heartbeats.join();
        let seat = Rc::new(PoolObserver { connection: Arc::downgrade(&self), run: Cell::new(None) });
        observe_idle(Rc::clone(&seat) as Rc<dyn IdleObserver>);
        let mut next = match begin {
            Begin::Reader => Next::Read,
            Begin::Runner => self.pool.join(spawn_runner),
        };
        loop {
            let started = match next {
                Next::Exit => return,
                // At its end, `read` gives the large buffer back to the pool of buffers.
                Next::Read => match self.read(transport, &seat, &heartbeat) {
                    Some(started) => started,
                    None => return,
                },
                Next::ReceiveReady => match self.receive_ready(&seat, &heartbeat) {
                    Some(started) => started,
                    None => {
                        next = self.pool.received_ready(|| spawn_server(&self, Begin::Reader), spawn_runner);
                        continue;
                    }
                },
                Next::Run(started, job) => self.run_queued(&seat, started, job),
            };
            next = self.pool.finish(&started, spawn_runner);
        }
    }

    fn run_queued(&self, seat: &PoolObserver, started: Started, job: Job) -> Started {
        match job {
            job if job.is_finished() => started,
            Job::New(mut request) => {
                request.begins();
                self.run(seat, started, &mut request)
            }
            Job::Parked(mut request) => self.run_parked(seat, started, &mut request),
        }
    }

    fn place(&self, transport: &Arc<dyn Transport>) -> RequestSlot {
        RequestSlot::new(&self.buffers, Arc::clone(transport), Some(Arc::clone(&self.inflight)))
    }

    /// Reads and answers requests up to the first request that may sleep. Runs and returns this
    /// one. Returns none at the end of the mount.
    fn read(
        self: &Arc<Self>,
        transport: &Arc<dyn Transport>,
        seat: &PoolObserver,
        heartbeat: &Heartbeat,
    ) -> Option<Started> {
        let mut request = self.place(transport);
        loop {
            match self.receive(transport, &mut request, heartbeat) {
                Received::Run(started) => return Some(self.run(seat, started, &mut request)),
                Received::Pick(started, job) => return Some(self.run_queued(seat, started, *job)),
                Received::Nothing | Received::Done => {}
                Received::End => break,
            }
        }
        self.inflight.stop();
        self.page_watch.stop();
        drop(self.pool.end());
        None
    }

    /// Reads and answers a bounded number of ready requests, up to the first request that may
    /// sleep. Runs and returns this one. Returns none when there are no more to take now.
    fn receive_ready(self: &Arc<Self>, seat: &PoolObserver, heartbeat: &Heartbeat) -> Option<Started> {
        let transport = self.nonblocking.as_ref()?;
        let mut request = self.place(transport);
        for _ in 0..NR_READY_MAX {
            let received = self.receive(transport, &mut request, heartbeat);
            if matches!(received, Received::Run(_) | Received::Pick(..)) {
                // The request may hang, and the queued requests still wait for a thread.
                self.pool.hand_over(|| spawn_server(self, Begin::Runner));
            }
            match received {
                Received::Run(started) => return Some(self.run(seat, started, &mut request)),
                Received::Pick(started, job) => return Some(self.run_queued(seat, started, *job)),
                Received::Done => {}
                // A reader at the device finds the end, too.
                Received::Nothing | Received::End => break,
            }
        }
        None
    }

    /// Receives one request, and answers or queues it if that needs no sleep.
    fn receive(
        self: &Arc<Self>,
        transport: &Arc<dyn Transport>,
        request: &mut RequestSlot,
        heartbeat: &Heartbeat,
    ) -> Received {
        let queued_after_ns = self.kernel_queue.look(&**transport, &self.inflight);
        let received = transport.receive(request.buffer_mut());
        let _turn = heartbeat.turn();
        match received {
            Ok(len) => {
                if let Err(malformed) = request.arrived(len) {
                    // Without a header there is no request to answer.
                    tracing::warn!(%malformed, len, "not a request");
                    return Received::Done;
                }
            }
            Err(ReceiveError::Again) => return Received::Nothing,
            Err(ReceiveError::Ended) => return Received::End,
            Err(ReceiveError::Failed(error)) => {
                tracing::error!(%error, "reading requests failed; the mount is no longer served");
                let _ = self.failure.set(error);
                return Received::End;
            }
        }
        request.queued_after_ns = queued_after_ns;
        let keys = match self.quick(request) {
            QuickOutcome::Answered => {
                request.reply.end_kernel_io();
                return Received::Done;
            }
            QuickOutcome::MaySleep(keys) => keys,
            QuickOutcome::MaySleepAt(keys, payer) => {
                request.payer = Some(payer);
                keys
            }
        };
        request.reply.register();
        match self.pool.start(keys, || spawn_server(self, Begin::Reader)) {
            Start::Run(started) => return Received::Run(started),
            Start::Refuse if request.may_be_refused() => {
                if let Ok((request, reply)) = request.parts(self.dialect) {
                    self.guarded(reply, |reply| self.filesystem.refuse(&request, reply));
                }
                request.reply.end_kernel_io();
            }
            Start::Refuse | Start::Wait => {
                let job = Job::New(request.detach());
                let spawn = |begin| move || spawn_server(self, begin);
                let next = self.pool.enqueue(keys, job, spawn(Begin::Reader), spawn(Begin::Runner));
                if let Some((started, job)) = next {
                    return Received::Pick(started, Box::new(job));
                }
            }
        }
        Received::Done
    }

    fn quick(&self, request: &mut RequestSlot) -> QuickOutcome {
        let (request, reply) = match request.parts(self.dialect) {
            Ok(parts) => parts,
            Err((malformed, reply)) => {
                tracing::warn!(%malformed, "malformed request");
                reply.malformed();
                return QuickOutcome::Answered;
            }
        };
        match request.op {
            Op::Interrupt { unique } => self.inflight.interrupt(unique),
            Op::Retrieved { bytes } => self.page_watch.answered(request.header.unique, bytes),
            Op::Destroy => reply.done().ignore(),
            Op::Init(_) => reply.error(Errno::IO).ignore(),
            Op::Unknown { opcode } => {
                tracing::debug!(opcode, "unknown request");
                if reply.is_due() {
                    reply.error(Errno::NOSYS).ignore();
                }
            }
            _ => {
                return self
                    .guarded(reply, |reply| self.filesystem.quick(&request, reply))
                    .unwrap_or(QuickOutcome::Answered);
            }
        }
        QuickOutcome::Answered
    }

    fn run(&self, seat: &PoolObserver, started: Started, request: &mut RequestSlot) -> Started {
        seat.run.set(Some(started.run));
        if let Ok((request, reply)) = request.parts(self.dialect) {
            // An operation on metadata is a few system calls of the host.
            let _idle = (!request.op.is_data()).then(|| Idle::begin(Wait::Perhaps));
            self.guarded(reply, |reply| self.filesystem.slow(&request, reply));
        }
        end_run(seat, started, &mut request.reply)
    }

    /// Resumes a parked request.
    fn run_parked(&self, seat: &PoolObserver, started: Started, request: &mut ParkedRequest) -> Started {
        seat.run.set(Some(started.run));
        let work = request.work.take();
        self.guarded(&mut request.reply, |reply| {
            // The requester may have been killed.
            if let Some(work) = work.filter(|_| !reply.is_cancelled()) {
                work(reply);
            }
        });
        end_run(seat, started, &mut request.reply)
    }

    /// Runs a handler; if it panics, the requester gets EIO and the mount lives on.
    fn guarded<T>(&self, reply: &mut Reply, handler: impl FnOnce(&mut Reply) -> T) -> Option<T> {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| handler(reply)));
        if outcome.is_err() {
            tracing::error!("a request handler panicked; this is a defect of this program");
            drop(reply.take());
        }
        outcome.ok()
    }
}

/// Ends a request that has run. A reply still due is answered.
fn end_run(seat: &PoolObserver, started: Started, reply: &mut Reply) -> Started {
    if reply.is_due() {
        // The drop answers, and logs a warning.
        drop(reply.take());
    }
    reply.end_kernel_io();
    Started { run: seat.run.take().unwrap_or(started.run), ..started }
}

impl Lot for Connection {
    fn park(&self, keys: Keys, is_resumed: bool) -> bool {
        self.pool.park(keys, is_resumed)
    }
    fn unpark(&self, keys: Keys) {
        self.pool.unpark(keys);
    }
    fn resume(self: Arc<Self>, keys: Keys, request: ParkedRequest) {
        let job = Job::Parked(request);
        let spawn_runner = || spawn_server(&self, Begin::Runner);
        drop(self.pool.resume(keys, job, spawn_runner));
    }
}

const _: () = assert!(BUFFER_BYTES >= 1 << 20);
