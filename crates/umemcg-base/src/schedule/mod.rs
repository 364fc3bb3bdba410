//! A scheduler that owns time and threads, so that a seed repeats a run exactly. Compiled in with
//! `--cfg schedule` only; [`sync`](crate::sync) then hands out its locks, atomics, threads and
//! time.
//!
//! Threads are real ones, but one at a time has the turn; all others sleep until it is given to
//! them. The thread that has the turn may lose it at a *switch point*: before it takes a lock,
//! before an atomic operation of the facade, when it waits, when it ends, and wherever a test says
//! so ([`pause`]). A generator with the run's seed decides, so the order of everything between two
//! switch points is the same in every run with that seed. A thread can also be *held* for a while
//! at a switch point, as a busy machine preempts it: that is what opens narrow windows between two
//! mechanisms.
//!
//! Time moves by a tick at each switch point, and to the next deadline when every thread waits. A
//! wait of two seconds therefore costs nothing.
//!
//! Rules for what runs below it:
//!
//! 1. A thread waits through the facade only. A thread that sleeps in the operating system while it
//!    has the turn stops everything; [`watch`] notices.
//! 2. Threads are started through [`clock`](crate::clock) or [`spawn`].
//! 3. Nothing decides by an address, by a random hash, or by the machine's clock.
//!
//! An operation that a test has begun and that does not end within [`OPERATION_MAX`], or within a
//! bounded number of steps, is a hang. So is a state in which every thread waits without a
//! deadline. Each prints what every thread waits for, and which thread has it, and ends the
//! process.

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
