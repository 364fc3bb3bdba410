//! Delayed replies: a process over a dirty limit or over `memory.high` is slowed by a late answer,
//! without a waiting thread of the daemon.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use umemcg_base::{Condvar, LeafMutex};

use crate::reply::{Answer, RecheckFn, Reply};

/// When a reply is due. Replies due at one time are sent in the order of their arrival, by serial.
type Due = (Instant, u64);

struct Delayed {
    reply: Reply,
    answer: Answer,
    again: RecheckFn,
}

#[derive(Default)]
struct Queue {
    waiting: BTreeMap<Due, Delayed>,
    nr_delayed: u64,
    /// All conditions are to be checked now.
    all_due: bool,
    stop: bool,
}

/// The timer and the delayed replies. Dropping it sends all of them immediately.
pub struct DelayQueue {
    shared: Arc<Timer>,
    thread: Option<umemcg_base::clock::Worker>,
}

/// The queue, with the signal that wakes the timer's thread.
struct Timer {
    queue: LeafMutex<Queue>,
    wake: Condvar,
}

impl fmt::Debug for DelayQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayQueue").field("nr_delayed", &self.len()).finish_non_exhaustive()
    }
}

impl DelayQueue {
    /// Starts the timer's thread.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn new() -> io::Result<Self> {
        let shared = Arc::new(Timer { queue: LeafMutex::default(), wake: Condvar::default() });
        let timer = Arc::clone(&shared);
        let thread = umemcg_base::clock::Worker::spawn("umemcg-delay", move || timer.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Checks all conditions now, because something has changed.
    pub fn look_again(&self) {
        self.shared.queue.lock().all_due = true;
        self.shared.wake.notify_one();
    }

    /// Returns the number of delayed replies.
    pub fn len(&self) -> usize {
        self.shared.queue.lock().waiting.len()
    }

    /// Returns whether no reply is delayed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Delays an answer by `delay`; then `again` decides. A requester killed meanwhile is answered
    /// immediately.
    pub(crate) fn delay(&self, reply: Reply, answer: Answer, delay: Duration, again: RecheckFn) {
        reply.end_change();
        let mut queue = self.shared.queue.lock();
        let serial = queue.nr_delayed;
        queue.nr_delayed += 1;
        let due = Instant::now() + delay;
        let is_next = queue.waiting.first_key_value().is_none_or(|(next, _)| due < next.0);
        queue.waiting.insert((due, serial), Delayed { reply, answer, again });
        drop(queue);
        if is_next {
            self.shared.wake.notify_one();
        }
    }
}

impl Drop for DelayQueue {
    fn drop(&mut self) {
        self.shared.queue.lock().stop = true;
        self.shared.wake.notify_one();
        self.thread.take();
    }
}

impl Timer {
    fn run(&self) {
        let mut queue = self.queue.lock();
        loop {
            let now = Instant::now();
            let mut due = Vec::new();
            let all = std::mem::take(&mut queue.all_due) || queue.stop;
            while let Some(next) = queue.waiting.first_entry()
                && (all || next.key().0 <= now)
            {
                due.push(next.remove_entry());
            }
            if !due.is_empty() {
                let stop = queue.stop;
                // Conditions examine other parts of the engine, so they are checked without this
                // lock held.
                drop(queue);
                due.retain_mut(|((at, _), delayed)| {
                    let later = delayed.send_due(stop, now);
                    *at = later.unwrap_or(*at);
                    later.is_some()
                });
                queue = self.queue.lock();
                queue.waiting.extend(due);
                continue;
            }
            if queue.stop {
                return;
            }
            match queue.waiting.first_key_value().map(|(next, _)| next.0) {
                Some(due) => drop(self.wake.wait_until(&mut queue, due)),
                None => self.wake.wait(&mut queue),
            }
        }
    }
}

impl Delayed {
    /// Sends the reply if it is due; otherwise returns when to check again.
    fn send_due(&mut self, stop: bool, now: Instant) -> Option<Instant> {
        if !stop
            && !self.reply.is_cancelled()
            && let Some(delay) = (self.again)()
        {
            // A condition returning zero must not keep the timer busy.
            return Some(now + delay.max(Duration::from_millis(1)));
        }
        let Answer { error, bytes, undo } = &mut self.answer;
        if self.reply.send_held(*error, bytes).is_gone()
            && let Some(undo) = undo.take()
        {
            undo();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inflight::{Inflight, Interrupts};
    use crate::reply::Gate;
    use crate::transport::testing::{due, recorder};
    use crate::wire::{InHeader, opcode};
    use std::sync::atomic::{AtomicBool, Ordering};

    const LONG: Duration = Duration::from_secs(3600);

    fn at_once() -> RecheckFn {
        Box::new(|| None)
    }

    #[test]
    fn replies_go_when_due_in_whatever_order_they_came() {
        let (transport, sent) = recorder();
        let delays = DelayQueue::new().unwrap();
        for (unique, rest_ms) in [(1, 2000), (2, 1000), (3, 0)] {
            delays.delay(
                due(&transport, unique),
                Answer::written(100),
                Duration::from_millis(rest_ms),
                at_once(),
            );
        }
        let order: Vec<u64> = (0..3).map(|_| sent.recv_timeout(LONG).unwrap().0.unique).collect();
        assert_eq!(order, [3, 2, 1]);
        assert!(delays.is_empty());
    }

    #[test]
    fn a_reply_rests_until_its_condition_lets_it_go() {
        let (transport, sent) = recorder();
        let delays = DelayQueue::new().unwrap();
        let go = Arc::new(AtomicBool::new(false));
        let request = Arc::clone(&go);
        let again = Box::new(move || (!request.load(Ordering::Relaxed)).then_some(LONG));
        delays.delay(due(&transport, 1), Answer::written(7), Duration::ZERO, again);
        delays.delay(due(&transport, 2), Answer::written(8), Duration::from_millis(20), at_once());
        assert_eq!(sent.recv_timeout(LONG).unwrap().0.unique, 2, "the first was request and said no");
        go.store(true, Ordering::Relaxed);
        delays.look_again();
        let (header, body) = sent.recv_timeout(LONG).unwrap();
        assert_eq!((header.unique, header.error, &body[..4]), (1, 0, &7u32.to_ne_bytes()[..]));
    }

    #[test]
    fn what_was_handed_over_is_taken_back_from_a_lost_answer() {
        let (transport, sent) = recorder();
        let inflight = Inflight::new(vec![Arc::clone(&transport)]);
        let delays = Arc::new(DelayQueue::new().unwrap());
        let taken_back = Arc::new(AtomicBool::new(false));
        for is_interrupted in [true, false] {
            let mut idle = Reply::idle(Arc::clone(&transport), Some(Arc::clone(&inflight)));
            idle.arm(&InHeader { opcode: opcode::LOOKUP, unique: 8, ..Default::default() });
            idle.set_interrupts(Interrupts::AnySignal);
            let queue = Arc::clone(&delays);
            idle.set_gate(Gate::new(move |_| {
                Some(Box::new(move |reply, answer| queue.delay(reply, answer, LONG, at_once())))
            }));
            let undo = Arc::clone(&taken_back);
            idle.hand_over(&7u64, move || undo.store(true, Ordering::Relaxed));
            assert_eq!((delays.len(), sent.try_recv().is_err()), (1, true));
            if is_interrupted {
                inflight.interrupt(8);
            }
            delays.look_again();
            let (header, body) = sent.recv_timeout(LONG).unwrap();
            let expected = if is_interrupted { (-4, 0) } else { (0, 8) };
            assert_eq!((header.error, body.len()), expected);
            while !delays.is_empty() || !inflight.is_empty() {
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
        let delays = DelayQueue::new().unwrap();
        delays.delay(due(&transport, 1), Answer::written(5), LONG, Box::new(|| Some(LONG)));
        drop(delays);
        assert_eq!(sent.try_recv().unwrap().0.error, 0);
    }
}
