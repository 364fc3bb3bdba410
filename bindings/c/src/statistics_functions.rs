//! Statistics of groups.

use std::ffi::c_char;
use std::sync::LazyLock;

use umemcg_bindings::{Code, Failure, NR_STATISTICS, statistic_name, statistics};

use crate::call::call;
use crate::group_functions::umemcg_group;
use crate::objects::{GroupPart, with};
use crate::pointers::result_place;

/// Returns the name of a statistic, such as `reserved_bytes`; null from the number of statistics
/// on. Valid for ever. Names ending in `_bytes` are bytes, the others are counts or pages. A later
/// version of the library may have more statistics, at the end.
#[unsafe(no_mangle)]
pub extern "C" fn umemcg_statistic_name(index: usize) -> *const c_char {
    static NAMES: LazyLock<Vec<std::ffi::CString>> = LazyLock::new(|| {
        let names = (0..).map_while(statistic_name);
        names.map(|name| std::ffi::CString::new(name).unwrap_or_default()).collect()
    });
    NAMES.get(index).map_or(std::ptr::null(), |name| name.as_ptr())
}

/// Writes the statistics of a group, everything below it included, to `values`, in the order of
/// `umemcg_statistic_name`, and at most `room` of them. `*nr` becomes the number of written values.
/// No limit is `INT64_MAX`. Takes some microseconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umemcg_group_statistics(
    group: umemcg_group,
    values: *mut i64,
    room: usize,
    nr: *mut usize,
) -> Code {
    call(|| {
        // SAFETY: [10] As the header says.
        let place = unsafe { result_place(nr, 0) }?;
        if values.is_null() || !values.is_aligned() || room > isize::MAX as usize / size_of::<i64>() {
            return Err(Failure::invalid("no place for statistics"));
        }
        with(group, |part: &GroupPart| {
            let written = room.min(NR_STATISTICS);
            for (at, (_, value)) in statistics(&part.group).into_iter().take(written).enumerate() {
                // SAFETY: [10] The caller's array has room for that many.
                unsafe { values.add(at).write(value) };
            }
            *place = written;
            Ok(())
        })
    })
}
