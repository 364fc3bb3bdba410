//! The distinction between computing and waiting threads. A thread pool may bound its computing
//! requests by the number of processors. Then it has to know the requests waiting for a store, for
//! room or for another thread: they need no processor.
//!
//! Waiting code keeps an [`Idle`] for the time of the wait. The pool gives each of its threads an
//! [`IdleObserver`] and is notified through it; on other threads an `Idle` costs one load of a
//! thread-local variable. A call of a store may wait for a device, or copy from memory without
//! waiting. It is reported as a kind of its own; the duration of the call distinguishes the two.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::rc::Rc;

use crate::held::assert_may_wait;
use crate::rank::Rank;

/// Notified when its thread begins to wait, and when it computes again.
pub trait IdleObserver {
    /// Called when the thread is about to wait, for certain or perhaps.
    fn waits(&self, how: Wait);
    /// Called after the wait.
    fn goes_on(&self);
}

/// The certainty of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// For another thread, or for time to pass.
    Sure,
    /// A call that may wait for a device.
    Perhaps,
}

thread_local! {
    static OBSERVER: RefCell<Option<Rc<dyn IdleObserver>>> = const { RefCell::new(None) };
    static NR_WAITS: Cell<u32> = const { Cell::new(0) };
}

/// Sets the observer of this thread's waits. Of nested waits it sees only the outermost.
pub fn observe_idle(observer: Rc<dyn IdleObserver>) {
    OBSERVER.set(Some(observer));
}

/// Marks its thread as waiting until dropped.
#[derive(Debug)]
#[must_use]
pub struct Idle(PhantomData<*const ()>);

impl Idle {
    /// Begins a wait of the thread. The thread must not hold a leaf lock: the observer takes some.
    #[inline]
    pub fn begin(how: Wait) -> Self {
        assert_may_wait(Rank::Leaf, "a wait of which an observer is told");
        let before = NR_WAITS.replace(NR_WAITS.get() + 1);
        if before == 0 {
            tell(|observer| observer.waits(how));
        }
        Self(PhantomData)
    }
}

impl Drop for Idle {
    #[inline]
    fn drop(&mut self) {
        let now = NR_WAITS.get() - 1;
        NR_WAITS.set(now);
        if now == 0 {
            tell(|observer| observer.goes_on());
        }
    }
}

#[inline]
fn tell(what: impl FnOnce(&dyn IdleObserver)) {
    // An ending thread has no observer any more, but may still wait for something.
    let observer = OBSERVER.try_with(|observer| observer.borrow().clone());
    if let Ok(Some(observer)) = observer {
        what(&*observer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Told(RefCell<Vec<&'static str>>);

    impl IdleObserver for Told {
        fn waits(&self, _: Wait) {
            self.0.borrow_mut().push("waits");
        }

        fn goes_on(&self) {
            self.0.borrow_mut().push("goes on");
        }
    }

    #[test]
    fn the_outermost_wait_is_told_once() {
        drop(Idle::begin(Wait::Sure));
        let told = Rc::new(Told::default());
        observe_idle(Rc::clone(&told) as Rc<dyn IdleObserver>);
        {
            let _outer = Idle::begin(Wait::Sure);
            let _inner = Idle::begin(Wait::Sure);
            assert_eq!(*told.0.borrow(), ["waits"]);
        }
        drop(Idle::begin(Wait::Sure));
        assert_eq!(*told.0.borrow(), ["waits", "goes on", "waits", "goes on"]);
    }

    #[test]
    fn a_wait_that_panics_is_over() {
        let told = Rc::new(Told::default());
        observe_idle(Rc::clone(&told) as Rc<dyn IdleObserver>);
        let panicked = std::panic::catch_unwind(|| {
            let _idle = Idle::begin(Wait::Sure);
            panic!("a store that panics");
        });
        assert!(panicked.is_err());
        assert_eq!(*told.0.borrow(), ["waits", "goes on"]);
    }
}
