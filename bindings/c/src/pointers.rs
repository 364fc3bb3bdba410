//! Reads and writes through the pointers of a C caller. Null is an error; so are impossible sizes
//! and lengths. The caller guarantees the rest, as for any C function.

use std::ffi::{CStr, c_char, c_void};

use umemcg_bindings::Failure;

/// A struct of the interface, starting with its size and extensible at its end.
pub(crate) trait SizedStruct: Copy {
    /// The size of its first version.
    const SIZE_MIN: usize;
}

/// Reads a struct from a caller with an older or a newer version of it. Fields unknown to an older
/// caller are zero; a newer caller may not set fields unknown to this version.
///
/// # Safety
/// `from` is null, or points to as many bytes as its first field says. Every bit pattern is a valid
/// `T`.
pub(crate) unsafe fn read_sized<T: SizedStruct + Default>(from: *const T) -> Result<T, Failure> {
    if from.is_null() || !from.is_aligned() {
        return Err(Failure::invalid("a null pointer where a struct is needed"));
    }
    // SAFETY: [10] The first field of each such struct is its size.
    let size = unsafe { from.cast::<usize>().read() };
    if size < T::SIZE_MIN || size > SIZE_MAX {
        return Err(Failure::invalid(format!("a struct of {size} bytes: set `size` to its sizeof")));
    }
    let mut read = T::default();
    let known = size.min(size_of::<T>());
    // SAFETY: [10] Both are that long, and do not overlap: one is a local.
    unsafe { from.cast::<u8>().copy_to_nonoverlapping((&raw mut read).cast(), known) };
    // SAFETY: [10] The caller's struct goes that far.
    let is_zero = (known..size).all(|at| unsafe { from.cast::<u8>().add(at).read() } == 0);
    if is_zero { Ok(read) } else { Err(Failure::invalid("a field that this version does not know is set")) }
}

/// No struct of this interface will be longer.
const SIZE_MAX: usize = 4096;

/// Writes a struct for a caller with an older or a newer version of it. Its `size` becomes the
/// number of written bytes.
///
/// # Safety
/// `to` is null, or points to as many writable bytes as its first field says.
pub(crate) unsafe fn write_sized<T: SizedStruct>(to: *mut T, value: T) -> Result<(), Failure> {
    if to.is_null() || !to.is_aligned() {
        return Err(Failure::invalid("a null pointer where a struct is needed"));
    }
    // SAFETY: [10] The first field of each such struct is its size.
    let size = unsafe { to.cast::<usize>().read() };
    if size < T::SIZE_MIN || size > SIZE_MAX {
        return Err(Failure::invalid(format!("a struct of {size} bytes: set `size` to its sizeof")));
    }
    let known = size.min(size_of::<T>());
    // SAFETY: [10] Both are that long, and do not overlap: one is a local.
    unsafe {
        (&raw const value).cast::<u8>().copy_to_nonoverlapping(to.cast(), known);
        to.cast::<usize>().write(known);
    }
    Ok(())
}

/// Returns the place for a result, filled with `empty` in case the call fails.
///
/// # Safety
/// `to` is null, or points to a `T` that the call may write until it returns.
pub(crate) unsafe fn result_place<'a, T>(to: *mut T, empty: T) -> Result<&'a mut T, Failure> {
    if to.is_null() || !to.is_aligned() {
        return Err(Failure::invalid("a null pointer where a result is to go"));
    }
    // SAFETY: [10] As the caller says; `T` is a number or a pointer, and was written just now.
    unsafe {
        to.write(empty);
        Ok(&mut *to)
    }
}

/// Returns a C string as text.
///
/// # Safety
/// `from` is null, or a string that ends with a zero byte and stays as it is until the call
/// returns.
pub(crate) unsafe fn text<'a>(from: *const c_char) -> Result<&'a str, Failure> {
    if from.is_null() {
        return Err(Failure::invalid("a null pointer where a string is needed"));
    }
    // SAFETY: [10] As the caller says.
    let text = unsafe { CStr::from_ptr(from) };
    text.to_str().map_err(|_| Failure::invalid("a string that is not UTF-8"))
}

/// Returns the caller's bytes. `len` may be 0 with any pointer.
///
/// # Safety
/// `from` is null, or points to `len` bytes that stay as they are until the call returns.
pub(crate) unsafe fn bytes<'a>(from: *const c_void, len: usize, len_max: u64) -> Result<&'a [u8], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    if from.is_null() {
        return Err(Failure::invalid("a null pointer where bytes are needed"));
    }
    // Includes the caller's negative numbers. Nothing of such a length is read.
    if len as u64 > len_max.min(isize::MAX as u64) {
        return Err(Failure::invalid(format!("{len} bytes are more than the whole pool")));
    }
    // SAFETY: [10] As the caller says; the length is a possible size of an object.
    Ok(unsafe { std::slice::from_raw_parts(from.cast(), len) })
}

/// Copies `all` to the caller's `room` bytes at `to`, and its length to `*len`; if the room is too
/// small, only writes the length.
///
/// # Safety
/// `to` is null, or points to `room` bytes that the call may write; `len` as with [`result_place`].
pub(crate) unsafe fn copy_out(
    all: &[u8],
    to: *mut c_void,
    room: usize,
    len: *mut usize,
) -> Result<bool, Failure> {
    // SAFETY: [10] As the caller says.
    *unsafe { result_place(len, 0) }? = all.len();
    if room < all.len() || (to.is_null() && !all.is_empty()) {
        return Ok(false);
    }
    if !all.is_empty() {
        // SAFETY: [10] The room is long enough, and belongs to the caller, not to us.
        unsafe { to.cast::<u8>().copy_from_nonoverlapping(all.as_ptr(), all.len()) };
    }
    Ok(true)
}
