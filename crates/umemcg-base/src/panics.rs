//! Catches panics in an embedder's code.
//!
//! An embedder's code running for its caller (a loader, a comparison of keys) may unwind to that
//! caller. Code running for others (a shrinker, a listener, a store under write-back) must not: the
//! thread is a worker, or belongs to an unrelated tenant. Such code is called through
//! [`contained`]; a panic then has the result of a failure.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The message of a panic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panicked(String);

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Panicked {}

impl Panicked {
    fn new(payload: Box<dyn Any + Send>) -> Self {
        let text = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
            (Some(text), _) => (*text).to_owned(),
            (_, Some(text)) => text.clone(),
            _ => "a payload that is no text".to_owned(),
        };
        // The payload may be of any type, and its destructor is the embedder's code, too.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(again);
        }
        Self(text)
    }
}

/// Calls code that may panic and catches the panic. The caller ensures that a panic leaves no
/// shared state half-changed.
///
/// # Errors
/// The message of the panic.
#[inline]
pub fn contained<R>(call: impl FnOnce() -> R) -> Result<R, Panicked> {
    catch_unwind(AssertUnwindSafe(call)).map_err(Panicked::new)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("the payload's own");
        }
    }

    #[test]
    fn a_panic_becomes_an_answer_with_what_was_said() {
        assert_eq!(contained(|| 5), Ok(5));
        let said = |call: fn()| contained(call).unwrap_err().to_string();
        assert_eq!(said(|| panic!("no")), "no");
        assert_eq!(said(|| panic!("no {}", 7)), "no 7");
        assert_eq!(said(|| std::panic::panic_any(Bomb)), "a payload that is no text");
    }
}
