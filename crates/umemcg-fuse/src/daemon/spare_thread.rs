//! A thread started in advance, so that a mount can end when the system refuses new threads.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};

use umemcg_base::clock::spawn_detached;

type Work = Box<dyn FnOnce() + Send>;

/// See the module text. The thread ends when this is dropped and its work is done.
#[derive(Debug)]
pub(super) struct SpareThread {
    works: Sender<Work>,
    /// (A) Relaxed: the channel orders the effects of the works.
    is_idle: Arc<AtomicBool>,
}

impl SpareThread {
    /// Starts it.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub(super) fn start() -> io::Result<Self> {
        let (works, received) = mpsc::channel::<Work>();
        let is_idle = Arc::new(AtomicBool::new(true));
        let again = Arc::clone(&is_idle);
        spawn_detached("umemcg-spare", move || {
            while let Ok(work) = received.recv() {
                work();
                again.store(true, Ordering::Relaxed);
            }
        })?;
        Ok(Self { works, is_idle })
    }

    /// Begins work that may never end: on the spare thread, or, if it is busy, on a new thread with
    /// this name.
    ///
    /// # Errors
    /// When the spare thread is busy and the system refuses another. The work is dropped then.
    pub(super) fn begin(&self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        if self.is_idle.swap(false, Ordering::Relaxed) {
            return self.works.send(Box::new(work)).map_err(|_| io::ErrorKind::BrokenPipe.into());
        }
        spawn_detached(name, work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use umemcg_base::clock::refuse_threads;

    #[test]
    fn work_is_begun_without_a_new_thread_and_beside_what_hangs() {
        let spare = SpareThread::start().unwrap();
        let (go, waits) = mpsc::channel::<()>();
        let (done, is_done) = mpsc::channel();
        refuse_threads(u32::MAX);
        let first = done.clone();
        spare.begin("first", move || _ = (waits.recv(), first.send(1))).unwrap();
        assert!(spare.begin("second", || {}).is_err());
        refuse_threads(0);
        spare.begin("third", move || _ = done.send(3)).unwrap();
        assert_eq!(is_done.recv(), Ok(3));
        drop(go);
        assert_eq!(is_done.recv(), Ok(1));
        while !spare.is_idle.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
    }
}
