//! A deterministic scheduler that owns time and threads: a seed repeats a run exactly. Compiled in
//! with `--cfg schedule` only; [`sync`](crate::sync) then exports its locks, atomics, threads and
//! time.
//!
//! Threads are real ones, but only one at a time has the turn; all others sleep until they get it.
//! The running thread may lose the turn at a *switch point*: before it takes a lock, before an
//! atomic operation of the facade, when it waits, when it ends, and at explicit points of a test
//! ([`pause`]). A generator with the run's seed decides, so the order of everything between two
//! switch points is the same in every run with that seed. A thread can also be *held* for a while
//! at a switch point, like a thread preempted on a busy machine: this opens narrow windows between
//! two mechanisms.
//!
//! Time moves by a tick at each switch point, and to the next deadline when every thread waits. A
//! wait of two seconds therefore costs nothing.
//!
//! Rules for code run by it:
//!
//! 1. A thread waits through the facade only. A thread with the turn that sleeps in the operating
//!    system stops everything; [`watch`] detects this.
//! 2. Threads are started through [`clock`](crate::clock) or [`spawn`].
//! 3. Nothing decides by an address, by a random hash, or by the machine's clock.
//!
//! A test's operation that does not end within [`OPERATION_MAX`], or within a bounded number of
//! steps, is a hang. So is a state with every thread waiting without a deadline. A hang prints each
//! thread's wait and the holder of the awaited lock, and ends the process.

pub mod atomic;
mod locks;
mod scheduler;
mod thread;
mod time;

pub use locks::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult};
pub use scheduler::{
    Me, OPERATION_MAX, Policy, Progress, begin, describe, end, me, note, pause, progress, run, watch,
};
pub use thread::{JoinHandle, spawn, yield_now};
pub use time::{Instant, sleep};
