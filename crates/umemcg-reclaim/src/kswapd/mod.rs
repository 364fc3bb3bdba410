//! Background reclaim: a small pool of workers for all groups with marks (mail
//! per-memcg-background-reclaim).
//!
//! A charge reaching a group's low mark raises the group's wake signal, and the signal's hook puts
//! the group in the queue. A worker reclaims a quantum of 32 pages and puts the group back at the
//! tail, until its usage is below the high mark. So one group cannot hold up another, there is no
//! thread per group, and ancestors with marks are groups like any other. A group with nothing to
//! free *backs off* for a growing time, or until something of it is freed.
//!
//! A group may have a worker of its own instead. The operator can place the worker's thread into a
//! cgroup of the kernel.

mod background;
mod job_progress;
mod quantum;
mod queue;
mod wake_signal;
mod worker;

pub(crate) use background::Background;
pub use job_progress::QUANTUM_PAGES;
pub(crate) use queue::Queue;
pub(crate) use wake_signal::{listen_for_pressure, note_ended, wake_backed_off};
pub use worker::Kswapd;
