//! Replies that are held back: whoever is over a dirty limit or over `memory.high` is slowed by getting his answer later,
//! and no thread waits with him.

use std::cmp::Ordering as Order;
use std::collections::BinaryHeap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::reply::{Reply, Undo};

/// Asks whether the reply may go (`None`), or how much longer it is to rest. Must not sleep.
pub type Again = Box<dyn FnMut() -> Option<Duration> + Send>;

/// What a reply that was held back says when it goes.
pub enum Answer {
    /// A write took so many bytes.
    Written(u32),
    /// These bytes were read. A copy: pages that are pinned for so long could not be reclaimed.
    Bytes(Vec<u8>),
    /// The answer as it would have gone.
    Any {
        /// 0, or a negative error.
        error: i32,
        /// What follows.
        bytes: Vec<u8>,
        /// For when nobody takes it.
        undo: Option<Undo>,
    },
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (error, len) = match self {
            Self::Written(bytes) => (0, *bytes as usize),
            Self::Bytes(bytes) => (0, bytes.len()),
            Self::Any { error, bytes, .. } => (*error, bytes.len()),
        };
        f.debug_struct("Answer").field("error", &error).field("len", &len).finish()
    }
}

struct Parked {
    due: Instant,
    /// Among those due at one time, who came first goes first.
    serial: u64,
    reply: Reply,
    answer: Answer,
    again: Again,
}

impl PartialEq for Parked {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Order::Equal
    }
}
impl Eq for Parked {}
impl PartialOrd for Parked {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}
impl Ord for Parked {
    /// The heap's top is the earliest.
    fn cmp(&self, other: &Self) -> Order {
        (other.due, other.serial).cmp(&(self.due, self.serial))
    }
}

#[derive(Default)]
struct Queue {
    heap: BinaryHeap<Parked>,
    nr_parked: u64,
    /// Everybody's condition is to be asked now.
    rung: bool,
    stop: bool,
}

/// The timer and what rests in it. Dropping it answers what is left at once.
pub struct Parking {
    shared: Arc<Shared>,
    thread: Option<umemcg_base::clock::Worker>,
}

struct Shared {
    queue: Mutex<Queue>,
    bell: Condvar,
}

impl fmt::Debug for Parking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parking").field("nr_parked", &self.len()).finish_non_exhaustive()
    }
}

impl Parking {
    /// Starts the timer's thread.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn new() -> io::Result<Self> {
        let shared = Arc::new(Shared { queue: Mutex::default(), bell: Condvar::new() });
        let timer = Arc::clone(&shared);
        let thread = umemcg_base::clock::Worker::spawn("umemcg-park", move || timer.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Holds back an answer for `rest`; then `again` decides. An asker who is killed meanwhile is answered at once.
    pub fn park(&self, reply: Reply, answer: Answer, rest: Duration, again: Again) {
        if let Answer::Written(bytes) = answer {
            reply.accepted_write(bytes);
        }
        let mut queue = self.shared.queue.lock();
        let serial = queue.nr_parked;
        queue.nr_parked += 1;
        let due = Instant::now() + rest;
        let is_next = queue.heap.peek().is_none_or(|next| due < next.due);
        queue.heap.push(Parked { due, serial, reply, answer, again });
        drop(queue);
        if is_next {
            self.shared.bell.notify_one();
        }
    }

    /// Asks all conditions now: something has changed.
    pub fn ring(&self) {
        self.shared.queue.lock().rung = true;
        self.shared.bell.notify_one();
    }

    /// Replies that rest now.
    pub fn len(&self) -> usize {
        self.shared.queue.lock().heap.len()
    }

    /// Whether none rests.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for Parking {
    fn drop(&mut self) {
        self.shared.queue.lock().stop = true;
        self.shared.bell.notify_one();
        self.thread.take();
    }
}

impl Shared {
    fn run(&self) {
        let mut queue = self.queue.lock();
        loop {
            let now = Instant::now();
            let mut due = Vec::new();
            let everybody = std::mem::take(&mut queue.rung) || queue.stop;
            while let Some(next) = queue.heap.peek()
                && (everybody || next.due <= now)
            {
                due.extend(queue.heap.pop());
            }
            if !due.is_empty() {
                let stop = queue.stop;
                // Conditions look at other parts of the engine; nobody should wait for that at our lock.
                parking_lot::MutexGuard::unlocked(&mut queue, || {
                    due.retain_mut(|parked| !parked.settle(stop, now))
                });
                queue.heap.extend(due);
                continue;
            }
            if queue.stop {
                return;
            }
            match queue.heap.peek().map(|next| next.due) {
                Some(due) => drop(self.bell.wait_until(&mut queue, due)),
                None => self.bell.wait(&mut queue),
            }
        }
    }
}

impl Parked {
    /// Answers if it is time; else says when it is asked again.
    fn settle(&mut self, stop: bool, now: Instant) -> bool {
        if !stop
            && !self.reply.is_cancelled()
            && let Some(rest) = (self.again)()
        {
            // A condition that answers zero must not keep the timer busy.
            self.due = now + rest.max(Duration::from_millis(1));
            return false;
        }
        match &mut self.answer {
            Answer::Written(bytes) => self.reply.written(*bytes as usize).ignore(),
            Answer::Bytes(bytes) => self.reply.bytes(bytes).ignore(),
            Answer::Any { error, bytes, undo } => {
                if self.reply.send_held(*error, bytes).is_gone()
                    && let Some(undo) = undo.take()
                {
                    undo();
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inflight::{Inflight, Interrupts};
    use crate::reply::{Gate, Hold};
    use crate::transport::testing::{due, recorder};
    use crate::wire::{InHeader, opcode};
    use std::sync::atomic::{AtomicBool, Ordering};

    const LONG: Duration = Duration::from_secs(3600);

    fn at_once() -> Again {
        Box::new(|| None)
    }

    #[test]
    fn replies_go_when_their_time_has_come_whoever_came_first() {
        let (transport, sent) = recorder();
        let parking = Parking::new().unwrap();
        for (unique, rest_ms) in [(1, 60), (2, 30), (3, 0)] {
            parking.park(
                due(&transport, unique),
                Answer::Written(100),
                Duration::from_millis(rest_ms),
                at_once(),
            );
        }
        let order: Vec<u64> = (0..3).map(|_| sent.recv_timeout(LONG).unwrap().0.unique).collect();
        assert_eq!(order, [3, 2, 1]);
        assert!(parking.is_empty());
    }

    #[test]
    fn a_reply_rests_until_its_condition_lets_it_go() {
        let (transport, sent) = recorder();
        let parking = Parking::new().unwrap();
        let go = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&go);
        let again = Box::new(move || (!asked.load(Ordering::Relaxed)).then_some(LONG));
        parking.park(due(&transport, 1), Answer::Written(7), Duration::ZERO, again);
        parking.park(due(&transport, 2), Answer::Written(8), Duration::from_millis(20), at_once());
        assert_eq!(sent.recv_timeout(LONG).unwrap().0.unique, 2, "the first was asked and said no");
        go.store(true, Ordering::Relaxed);
        parking.ring();
        let (header, body) = sent.recv_timeout(LONG).unwrap();
        assert_eq!((header.unique, header.error, &body[..4]), (1, 0, &7u32.to_ne_bytes()[..]));
    }

    #[test]
    fn what_was_handed_over_is_taken_back_when_nobody_waits_any_more() {
        let (transport, sent) = recorder();
        let inflight = Inflight::new(vec![Arc::clone(&transport)], Interrupts::AnySignal);
        let parking = Arc::new(Parking::new().unwrap());
        let taken_back = Arc::new(AtomicBool::new(false));
        for is_interrupted in [true, false] {
            let mut idle = Reply::idle(Arc::clone(&transport), Some(Arc::clone(&inflight)));
            idle.arm(&InHeader { opcode: opcode::LOOKUP, unique: 8, ..Default::default() });
            let hold = Hold { parking: Arc::clone(&parking), rest: LONG, again: at_once() };
            idle.set_gate(Gate::new(|_| Some(hold)));
            let undo = Arc::clone(&taken_back);
            idle.hand_over(&7u64, move || undo.store(true, Ordering::Relaxed));
            assert_eq!((parking.len(), sent.try_recv().is_err()), (1, true));
            if is_interrupted {
                inflight.interrupt(8);
            }
            parking.ring();
            let (header, body) = sent.recv_timeout(LONG).unwrap();
            let expected = if is_interrupted { (-4, 0) } else { (0, 8) };
            assert_eq!((header.error, body.len()), expected);
            while !parking.is_empty() || !inflight.is_empty() {
                std::thread::yield_now();
            }
            while taken_back.load(Ordering::Relaxed) != is_interrupted {
                std::thread::yield_now();
            }
            taken_back.store(false, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_end_answers_whatever_rests() {
        let (transport, sent) = recorder();
        let parking = Parking::new().unwrap();
        parking.park(due(&transport, 1), Answer::Written(5), LONG, Box::new(|| Some(LONG)));
        drop(parking);
        assert_eq!(sent.try_recv().unwrap().0.error, 0);
    }
}
