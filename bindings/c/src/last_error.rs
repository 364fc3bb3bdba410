//! The details of the last failed call, for each thread.
//!
//! Functions return a code, enough for most callers. A thread can request the group and the numbers
//! afterwards. So no signature, and thus not the binary interface, has a growing struct in it, and
//! a successful call pays nothing.

use std::cell::RefCell;
use std::ffi::{CString, c_char};

use umemcg_bindings::{Code, Failure};

use crate::pointers::{SizedStruct, write_sized};

/// The details of a failed call.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct umemcg_error {
    /// `sizeof(umemcg_error)`; set by the caller.
    pub size: usize,
    /// The code of the failure; `UMEMCG_OK` if no call of this thread has failed.
    pub code: Code,
    /// The path of the group that refused, or of the group concerned; empty if there is none. Valid
    /// until the next failing call of this thread.
    pub path: *const c_char,
    /// A sentence for people; valid as long as `path`.
    pub message: *const c_char,
    /// The requested bytes.
    pub wanted_bytes: u64,
    /// The limit of the group; `UINT64_MAX` for none.
    pub limit_bytes: u64,
    /// Bytes still free in the group.
    pub free_bytes: u64,
    /// For accounts, bytes of the group's caches that could not be reclaimed now; an estimate.
    pub reclaimable_bytes: u64,
}

impl SizedStruct for umemcg_error {
    const SIZE_MIN: usize = size_of::<Self>();
}

#[derive(Debug)]
struct LastError {
    failure: Failure,
    path: CString,
    message: CString,
}

thread_local! {
    static LAST_ERROR: RefCell<Option<LastError>> = const { RefCell::new(None) };
}

/// Keeps the details of a failure for the calling thread.
pub(crate) fn keep(failure: Failure) -> Code {
    let code = failure.code;
    let text = |text: &str| CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
    let last = LastError { path: text(&failure.path), message: text(&failure.message), failure };
    // An ending thread has no place for the details, and cannot request them either.
    let _ = LAST_ERROR.try_with(|place| {
        if let Ok(mut place) = place.try_borrow_mut() {
            *place = Some(last);
        }
    });
    code
}

/// Writes the details of this thread's last failed call to `*error`. A successful call leaves them
/// unchanged. Set `error->size` first. Works in a forked child, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umemcg_last_error(error: *mut umemcg_error) -> Code {
    let written = std::panic::catch_unwind(|| {
        LAST_ERROR.try_with(|place| {
            let place = place.try_borrow().ok();
            let last = place.as_ref().and_then(|place| place.as_ref());
            let failure = last.map(|last| &last.failure);
            let details = umemcg_error {
                size: size_of::<umemcg_error>(),
                code: failure.map_or(Code::Ok, |failure| failure.code),
                path: last.map_or(c"".as_ptr(), |last| last.path.as_ptr()),
                message: last.map_or(c"".as_ptr(), |last| last.message.as_ptr()),
                wanted_bytes: failure.map_or(0, |failure| failure.wanted_bytes),
                limit_bytes: failure.map_or(0, |failure| failure.limit_bytes),
                free_bytes: failure.map_or(0, |failure| failure.free_bytes),
                reclaimable_bytes: failure.map_or(0, |failure| failure.reclaimable_bytes),
            };
            // SAFETY: [10] The caller gives a pointer to its own struct, or null.
            unsafe { write_sized(error, details) }
        })
    });
    match written {
        Ok(Ok(Ok(()))) => Code::Ok,
        _ => Code::InvalidArgument,
    }
}

/// Returns the name of a code, such as `refused`; never null, and valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn umemcg_code_name(code: i32) -> *const c_char {
    let name = match code {
        0 => c"ok",
        1 => c"invalid argument",
        2 => c"bad handle",
        3 => c"handle of the wrong kind",
        4 => c"handles of two engines",
        5 => c"refused",
        6 => c"overcommitted",
        7 => c"busy",
        8 => c"not found",
        9 => c"exists",
        10 => c"has children",
        11 => c"gone",
        12 => c"is the root",
        13 => c"not permitted",
        14 => c"again",
        15 => c"not held",
        16 => c"in a callback",
        17 => c"forked",
        18 => c"ending",
        19 => c"too small",
        20 => c"too many handles",
        21 => c"system",
        22 => c"panicked",
        23 => c"never",
        _ => c"unknown code",
    };
    name.as_ptr()
}
