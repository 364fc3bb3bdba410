//! The wrapper of every function of the interface: catches panics before they unwind into C,
//! refuses calls in a forked child, and keeps the details of a failure.

use std::panic::{AssertUnwindSafe, catch_unwind};

use umemcg_bindings::{Code, Failure, callbacks, process};

use crate::last_error;

/// Runs the body of a function that never waits or reclaims; allowed inside a callback.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> Code {
    let result = process::check().and_then(|()| contained(body));
    match result {
        Ok(()) => Code::Ok,
        Err(failure) => last_error::keep(failure),
    }
}

/// Runs the body of a function that may wait or reclaim. Fails inside a callback, where the body
/// could wait for that callback or recurse into reclaim without end.
pub(crate) fn call_outside_callbacks(body: impl FnOnce() -> Result<(), Failure>) -> Code {
    call(|| callbacks::check_outside().and_then(|()| body()))
}

fn contained(body: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let message = match panic.downcast_ref::<&str>() {
            Some(text) => (*text).to_owned(),
            None => panic.downcast_ref::<String>().cloned().unwrap_or_default(),
        };
        // The payload may panic again when dropped.
        std::mem::forget(panic);
        Err(Failure::new(Code::Panicked, format!("a defect of the library: {message}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::last_error::{umemcg_error, umemcg_last_error};

    #[test]
    fn a_panic_becomes_a_code_and_the_next_call_works() {
        assert_eq!(call(|| panic!("for a test")), Code::Panicked);
        // SAFETY: All fields are numbers or pointers, and zero is a valid value of both.
        let mut error: umemcg_error = unsafe { std::mem::zeroed() };
        error.size = size_of::<umemcg_error>();
        // SAFETY: It is a local of that size.
        assert_eq!(unsafe { umemcg_last_error(&raw mut error) }, Code::Ok);
        assert_eq!(error.code, Code::Panicked);
        assert_eq!(call(|| Ok(())), Code::Ok);
    }

    /// Each function of the interface runs its body in `call`, or is on this list because it cannot
    /// panic or catches its own panics.
    #[test]
    fn no_function_unwinds_into_c() {
        const PLAIN: [&str; 5] = [
            "umemcg_last_error",
            "umemcg_code_name",
            "umemcg_version",
            "umemcg_abi_version",
            "umemcg_statistic_name",
        ];
        let mut nr = 0;
        for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            for function in text.split("extern \"C\" fn umemcg_").skip(1).filter(|rest| rest.contains("-> "))
            {
                let name = format!("umemcg_{}", function.split('(').next().unwrap());
                let body = function.split_once("{\n").unwrap().1.trim_start();
                let is_wrapped = body.starts_with("call(") || body.starts_with("call_outside_callbacks(");
                assert!(is_wrapped || PLAIN.contains(&&*name), "{name} does not start with `call`");
                nr += 1;
            }
        }
        assert!(nr > 30, "{nr} functions were found");
    }
}
