//! The parts of uploads to a bucket in memory.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use super::Gate;

/// The parts of uploads whose bytes come while they go on.
#[derive(Debug, Default)]
pub struct Parts {
    /// Parts do not end while it is closed.
    pub gate: Gate,
    /// Parts of this key only wait at the gate, if one is given.
    pub held_key: Mutex<Option<String>>,
    /// Whether the next parts fail, one after another.
    pub faults: Mutex<VecDeque<bool>>,
    /// That have come, in bytes.
    pub came: AtomicU64,
    pub nr_under_way: AtomicU64,
    /// The most that were on their way at once.
    pub nr_under_way_max: AtomicU64,
}
