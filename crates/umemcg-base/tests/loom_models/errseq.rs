//! Write-back errors against the threads that ask for them: each error reaches an open file once,
//! whichever thread asks through it, and none is missed.
//!
//! The twin advances the cursor with a swap, and must fail: a late thread sets it back to an older
//! word, and an error is reported again.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread;
use umemcg_base::{ErrorCursor, ErrorSequence};

trait Errors: Send + Sync + 'static {
    type Cursor: Send + Sync + 'static;
    fn new() -> Self;
    fn record(&self, errno: i32);
    fn sample(&self) -> Self::Cursor;
    fn check(&self, cursor: &Self::Cursor) -> Result<(), i32>;
}

impl Errors for ErrorSequence {
    type Cursor = ErrorCursor;
    fn new() -> Self {
        ErrorSequence::new()
    }
    fn record(&self, errno: i32) {
        ErrorSequence::record(self, errno);
    }
    fn sample(&self) -> ErrorCursor {
        ErrorSequence::sample(self)
    }
    fn check(&self, cursor: &ErrorCursor) -> Result<(), i32> {
        self.check_and_advance(cursor)
    }
}

const SEEN: u32 = 0x1000;

struct Swapping(AtomicU32);

impl Errors for Swapping {
    type Cursor = AtomicU32;
    fn new() -> Self {
        Self(AtomicU32::new(0))
    }
    fn record(&self, errno: i32) {
        let next = |old: u32| {
            let count = if old & SEEN != 0 { (old & !0x1fff) + 0x2000 } else { old & !0xfff };
            Some(count | errno as u32)
        };
        self.0.fetch_update(Relaxed, Relaxed, next).unwrap();
    }
    fn sample(&self) -> AtomicU32 {
        AtomicU32::new(0)
    }
    fn check(&self, cursor: &AtomicU32) -> Result<(), i32> {
        if self.0.load(Relaxed) == cursor.load(Relaxed) {
            return Ok(());
        }
        let seen = self.0.fetch_or(SEEN, Relaxed) | SEEN;
        if cursor.swap(seen, Relaxed) == seen { Ok(()) } else { Err(seen as i32 & 0xfff) }
    }
}

/// Two threads ask through one open file while another two errors come.
fn two_ask_through_one_open_file<E: Errors>() {
    loom::model(|| {
        let errors = Arc::new(E::new());
        let cursor = Arc::new(errors.sample());
        errors.record(1);
        let asker = {
            let (errors, cursor) = (Arc::clone(&errors), Arc::clone(&cursor));
            thread::spawn(move || errors.check(&cursor).is_err() as u32)
        };
        let recorder = {
            let errors = Arc::clone(&errors);
            thread::spawn(move || errors.record(2))
        };
        let mut told = errors.check(&cursor).is_err() as u32;
        told += asker.join().unwrap();
        recorder.join().unwrap();
        let last = errors.check(&cursor);
        told += last.is_err() as u32;
        assert!(last.is_ok() || last == Err(2), "the latest is told");
        assert!((1..=2).contains(&told), "two errors, told {told} times");
        assert_eq!(errors.check(&cursor), Ok(()), "nothing is told again");
    });
}

#[test]
fn each_error_is_told_once_through_one_open_file() {
    two_ask_through_one_open_file::<ErrorSequence>();
}

#[test]
#[should_panic(expected = "told 3 times")]
fn a_cursor_that_is_swapped_tells_an_error_twice() {
    two_ask_through_one_open_file::<Swapping>();
}

/// An unseen error before an open, and one that comes during the open.
#[test]
fn an_open_reports_an_error_that_no_open_file_has_seen() {
    loom::model(|| {
        let errors = Arc::new(ErrorSequence::new());
        let early = errors.sample();
        errors.record(1);
        let opener = {
            let errors = Arc::clone(&errors);
            thread::spawn(move || {
                let cursor = errors.sample();
                errors.check_and_advance(&cursor)
            })
        };
        assert_eq!(errors.check_and_advance(&early), Err(1), "an earlier open is told in any case");
        // Told, or late enough to find it seen.
        assert!(matches!(opener.join().unwrap(), Err(1) | Ok(())));
    });
}
