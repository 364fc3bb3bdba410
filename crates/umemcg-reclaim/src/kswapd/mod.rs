//! Background reclaim: a small pool of workers for all groups that have marks (mail
//! per-memcg-background-reclaim).
//!
//! A charge that reaches a group's low mark raises the group's wake signal, whose hook puts the
//! group in the queue. A worker reclaims a quantum of 32 pages and puts the group back at the tail,
//! until its usage is below the high mark. So one group cannot hold up another, there is no thread
//! per group, and ancestors with marks are groups like any other. A group from which nothing can be
//! freed *backs off* for a growing time, or until something of it is freed.
//!
//! A group may have a worker of its own instead, whose thread the operator can place into a cgroup
//! of the kernel.

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
