//! Groups, and their control keys.

use std::ffi::{c_char, c_void};
use std::path::Path;
use std::sync::Arc;

use umemcg_bindings::{Code, Failure, get, open_group, set};

use crate::call::{call, call_outside_callbacks};
use crate::engine_functions::umemcg_engine;
use crate::objects::{EnginePart, GroupPart, GuaranteePart, Object, add, free, with};
use crate::pointers::{copy_out, result_place, text};

/// A group of an engine's tree. Several handles may name one group.
pub type umemcg_group = u64;
/// A share of the pool set aside for a group.
pub type umemcg_guarantee = u64;

/// Creates the missing groups of the path.
pub const UMEMCG_GROUP_CREATE: u32 = 1;

/// Opens the group at a path from the root: `/a/b`; `/` is the root. With `UMEMCG_GROUP_CREATE`,
/// creates the missing groups; this may reclaim, and so may sleep. Errors: `NOT_FOUND`,
/// `INVALID_ARGUMENT`, `REFUSED` when there is no room for the state of a new group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umemcg_group_open(
    engine: umemcg_engine,
    path: *const c_char,
    flags: u32,
    group: *mut umemcg_group,
) -> Code {
    call_outside_callbacks(|| {
        // SAFETY: [10] As the header says.
        let (place, path) = unsafe { (result_place(group, 0)?, text(path)?) };
        if flags & !UMEMCG_GROUP_CREATE != 0 {
            return Err(Failure::invalid(format!("flags {flags:#x} of a group are unknown")));
        }
        *place = with(engine, |part: &Arc<EnginePart>| {
            let group = open_group(&part.engine, Path::new(path), flags & UMEMCG_GROUP_CREATE != 0)?;
            add(Object::Group(GroupPart { engine: Arc::clone(part), group }))
        })?;
        Ok(())
    })
}

/// Closes a handle of a group. The group and its charges stay.
#[unsafe(no_mangle)]
pub extern "C" fn umemcg_group_close(group: umemcg_group) -> Code {
    call(|| free::<GroupPart>(group))
}

/// Removes a group without children. Its charges move to the group above. Its handles stay open,
/// and later charges through them go to the group above, too. Errors: `HAS_CHILDREN`, `IS_ROOT`,
/// `GONE`.
#[unsafe(no_mangle)]
pub extern "C" fn umemcg_group_remove(group: umemcg_group) -> Code {
    call_outside_callbacks(|| {
        with(group, |part: &GroupPart| {
            let removed = part.engine.engine.remove_group(&part.group);
            removed.map_err(|error| Failure::from(error).at(&part.group.path()))
        })
    })
}

/// Writes the number of a group to `*id`. Callbacks get this number. No other group of this process
/// ever has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umemcg_group_id(group: umemcg_group, id: *mut u64) -> Code {
    call(|| {
        // SAFETY: [10] As the header says.
        let place = unsafe { result_place(id, 0) }?;
        *place = with(group, |part: &GroupPart| Ok(part.group.id()))?;
        Ok(())
    })
}

/// Writes the path of a group and a zero byte to `path`, which has room for `room` bytes. `*len`
/// becomes the length of the path with the zero byte. Errors: `TOO_SMALL`; only `*len` is written
/// then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umemcg_group_path(
    group: umemcg_group,
    path: *mut c_char,
    room: usize,
    len: *mut usize,
) -> Code {
    call(|| {
        with(group, |part: &GroupPart| {
            let mut text = part.group.path().into_os_string().into_encoded_bytes();
            text.push(0);
            // SAFETY: [10] As the header says.
            let fits = unsafe { copy_out(&text, path.cast::<c_void>(), room, len) }?;
            if fits { Ok(()) } else { Err(Failure::new(Code::TooSmall, "the path is longer than the room")) }
        })
    })
}

/// Reads a control key, such as `memory.current`: bytes or a count. docs/semantics/control-files.md
/// defines the control file of the same name; no limit is `UMEMCG_UNLIMITED`. Errors: `NOT_FOUND`,
/// `NOT_PERMITTED` for a write-only key, `GONE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umemcg_group_get(group: umemcg_group, key: *const c_char, value: *mut u64) -> Code {
    call(|| {
        // SAFETY: [10] As the header says.
        let (place, key) = unsafe { (result_place(value, 0)?, text(key)?) };
        *place = with(group, |part: &GroupPart| get(&part.engine.engine, &part.group, key))?;
        Ok(())
    })
}

/// Writes a control key, such as `memory.max`. A new limit may reclaim, and so may sleep. Errors:
/// `NOT_FOUND`, `NOT_PERMITTED` for a read-only key, `GONE`, `IS_ROOT`, `BUSY`, `AGAIN`,
/// `INVALID_ARGUMENT` for watermarks that do not fit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umemcg_group_set(group: umemcg_group, key: *const c_char, value: u64) -> Code {
    call_outside_callbacks(|| {
        // SAFETY: [10] As the header says.
        let key = unsafe { text(key) }?;
        with(group, |part: &GroupPart| set(&part.engine.engine, &part.group, key, value))
    })
}

/// Sets bytes of the pool aside for a group until the guarantee is freed: others may cache in them,
/// and lose them when the group charges. Errors: `OVERCOMMITTED` with the group that has too little
/// left to commit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umemcg_guarantee_new(
    group: umemcg_group,
    bytes: u64,
    guarantee: *mut umemcg_guarantee,
) -> Code {
    call(|| {
        // SAFETY: [10] As the header says.
        let place = unsafe { result_place(guarantee, 0) }?;
        *place = with(group, |part: &GroupPart| {
            crate::charge_functions::check_bytes(bytes)?;
            let granted = part.engine.engine.guarantee(&part.group, bytes);
            let granted = granted.map_err(|refusal| Failure::from(&refusal))?;
            add(Object::Guarantee(GuaranteePart::new(&part.engine, granted)))
        })?;
        Ok(())
    })
}

/// Ends a guarantee.
#[unsafe(no_mangle)]
pub extern "C" fn umemcg_guarantee_free(guarantee: umemcg_guarantee) -> Code {
    call(|| free::<GuaranteePart>(guarantee))
}
