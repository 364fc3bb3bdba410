//! Accounts: memory of a query, or of any other job, that grows and shrinks often.

use std::sync::Arc;

use umemcg_bindings::{CheckedAccount, Code};

use crate::call::{call, call_outside_callbacks};
use crate::group_functions::umemcg_group;
use crate::objects::{AccountPart, GroupPart, Object, add, free, with};
use crate::pointers::result_place;

/// Memory of the program's own that is charged to a group, such as the buffers of a query. Any
/// number of threads may grow and shrink it.
pub type umemcg_account = u64;

/// Opens an empty account in a group. When the group is removed, the bytes of the account move to
/// the group above, which is also charged for later growth.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umemcg_account_new(group: umemcg_group, account: *mut umemcg_account) -> Code {
    call(|| {
        // SAFETY: [10] As the header says.
        let place = unsafe { result_place(account, 0) }?;
        *place = with(group, |part: &GroupPart| {
            let account = CheckedAccount::new(&part.engine.engine, &part.group);
            add(Object::Account(AccountPart { engine: Arc::clone(&part.engine), account }))
        })?;
        Ok(())
    })
}

/// Closes an account and gives its bytes back.
#[unsafe(no_mangle)]
pub extern "C" fn umemcg_account_free(account: umemcg_account) -> Code {
    call(|| free::<AccountPart>(account))
}

/// Grows an account. If a group is full, first reclaims the missing bytes from caches of that
/// group: about a microsecond for each page, without waiting. Errors: `NEVER` for more than the
/// limit of a group, `REFUSED` for more than is free now, `OVERCOMMITTED` for bytes guaranteed to
/// others; the details have the group and the numbers. A refusal is an ordinary answer and counts
/// no `oom` event.
#[unsafe(no_mangle)]
pub extern "C" fn umemcg_account_try_grow(account: umemcg_account, bytes: u64) -> Code {
    call_outside_callbacks(|| with(account, |part: &AccountPart| part.account.try_grow(bytes)))
}

/// Grows an account whatever the limits are, for memory that is in use already. Never blocks.
/// Errors: `INVALID_ARGUMENT` for more than any memory has.
#[unsafe(no_mangle)]
pub extern "C" fn umemcg_account_grow(account: umemcg_account, bytes: u64) -> Code {
    call(|| with(account, |part: &AccountPart| part.account.grow(bytes)))
}

/// Gives back bytes of an account. Never blocks. Errors: `NOT_HELD` when the account holds less;
/// nothing is changed then.
#[unsafe(no_mangle)]
pub extern "C" fn umemcg_account_shrink(account: umemcg_account, bytes: u64) -> Code {
    call(|| with(account, |part: &AccountPart| part.account.shrink(bytes)))
}

/// Moves bytes of an account to a new one in the same group. Charges nothing. Errors: `NOT_HELD`
/// when it holds less.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umemcg_account_split(
    account: umemcg_account,
    bytes: u64,
    part: *mut umemcg_account,
) -> Code {
    call(|| {
        // SAFETY: [10] As the header says.
        let place = unsafe { result_place(part, 0) }?;
        *place = with(account, |whole: &AccountPart| {
            let account = whole.account.split(bytes)?;
            let added = add(Object::Account(AccountPart { engine: Arc::clone(&whole.engine), account }));
            // Without a handle for the part, its bytes stay where they were.
            added.inspect_err(|_| whole.account.account().grow(bytes))
        })?;
        Ok(())
    })
}

/// Writes the current bytes of an account to `*bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umemcg_account_bytes(account: umemcg_account, bytes: *mut u64) -> Code {
    call(|| {
        // SAFETY: [10] As the header says.
        let place = unsafe { result_place(bytes, 0) }?;
        *place = with(account, |part: &AccountPart| Ok(part.account.account().bytes()))?;
        Ok(())
    })
}

/// Writes the peak of an account to `*bytes`: the most bytes it ever held.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umemcg_account_peak(account: umemcg_account, bytes: *mut u64) -> Code {
    call(|| {
        // SAFETY: [10] As the header says.
        let place = unsafe { result_place(bytes, 0) }?;
        *place = with(account, |part: &AccountPart| Ok(part.account.account().peak()))?;
        Ok(())
    })
}
