//! Charges of a program's own memory.

use std::sync::Arc;

use umemcg::{Charge, ChargeEffort};
use umemcg_bindings::{Code, Failure};

use crate::call::{call, call_outside_callbacks};
use crate::group_functions::umemcg_group;
use crate::objects::{GroupPart, Object, OwnerPart, add, free, with};
use crate::pointers::result_place;

/// The owner of charged bytes: a group, or the remains of a removed group. The handle is valid as
/// long as the owner has charged bytes; until then all charges of a group share it.
pub type umemcg_owner = u64;

/// Does not reclaim: fails immediately if there is no room.
pub const UMEMCG_CHARGE_AT_ONCE: u32 = 1;
/// Reclaims once, and a refusal counts no `oom` event: for callers that can do with less.
pub const UMEMCG_CHARGE_OPPORTUNISTIC: u32 = 2;
/// Charges whatever the limits are: for memory that is in use already.
pub const UMEMCG_CHARGE_FORCE: u32 = 4;

/// Refuses impossible sizes, such as the caller's negative numbers.
pub(crate) fn check_bytes(bytes: u64) -> Result<(), Failure> {
    if bytes > i64::MAX as u64 {
        return Err(Failure {
            wanted_bytes: bytes,
            ..Failure::invalid("a size that is negative or too large")
        });
    }
    Ok(())
}

/// Charges `bytes` of the caller's own memory to a group and all groups above it. If one of them is
/// at its limit, reclaims from that group, and so may sleep. At most one of the flags may be set.
/// Errors: `REFUSED` with the group without room, its limit and the bytes free below the limit;
/// `INVALID_ARGUMENT` for 0 bytes or a negative number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umemcg_charge(
    group: umemcg_group,
    bytes: u64,
    flags: u32,
    owner: *mut umemcg_owner,
) -> Code {
    call_outside_callbacks(|| {
        // SAFETY: [10] As the header says.
        let place = unsafe { result_place(owner, 0) }?;
        *place = with(group, |part: &GroupPart| {
            check_bytes(bytes)?;
            if bytes == 0 {
                return Err(Failure::invalid("a charge of 0 bytes has no owner"));
            }
            let charge = charge(part, bytes, flags)?;
            part.engine.purses.put(charge, |purse| {
                add(Object::Owner(OwnerPart { engine: Arc::clone(&part.engine), purse }))
            })
        })?;
        Ok(())
    })
}

fn charge(part: &GroupPart, bytes: u64, flags: u32) -> Result<Charge, Failure> {
    let effort = match flags {
        0 => ChargeEffort::Full,
        UMEMCG_CHARGE_OPPORTUNISTIC => ChargeEffort::Opportunistic,
        UMEMCG_CHARGE_AT_ONCE => ChargeEffort::Immediate,
        UMEMCG_CHARGE_FORCE if bytes <= part.engine.pool_bytes() => {
            return Ok(part.group.charge_forced(bytes));
        }
        UMEMCG_CHARGE_FORCE => return Err(Failure::invalid("more than the whole pool, even by force")),
        _ => return Err(Failure::invalid(format!("flags {flags:#x} of a charge are unknown"))),
    };
    let charged = part.engine.engine.charge_with(&part.group, bytes, effort);
    charged.map_err(|error| Failure::charge(&error, bytes))
}

/// Gives back charged bytes, in any portions. Never blocks. After the last byte, the owner's handle
/// names nothing. Errors: `NOT_HELD` when fewer bytes are charged; nothing is changed then, and
/// `free_bytes` of the details is the number of charged bytes.
#[unsafe(no_mangle)]
pub extern "C" fn umemcg_uncharge(owner: umemcg_owner, bytes: u64) -> Code {
    call(|| {
        let (charge, was_last) = with(owner, |part: &OwnerPart| {
            check_bytes(bytes)?;
            part.engine.purses.take(&part.purse, bytes)
        })?;
        drop(charge);
        // `free_engine` itself removes the handle of an engine being freed.
        if was_last {
            let _ = free::<OwnerPart>(owner);
        }
        Ok(())
    })
}
