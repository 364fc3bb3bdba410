//! Charges made by C with `umemcg_charge`, by owner: one purse for each group, present or removed,
//! with bytes still charged.
//!
//! C gets the purse's handle and uncharges bytes through it. So uncharging more than the purse
//! holds is an error. Bytes stay with their owner when its group is removed or the group's handle
//! closed. Freeing the engine uncharges forgotten bytes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use umemcg::Charge;
use umemcg::OwnerId;
use umemcg_bindings::{Code, Failure};

/// The bytes of one owner; never a charge of none.
#[derive(Debug, Default)]
pub(crate) struct Purse {
    held: Mutex<Option<Charge>>,
}

impl Purse {
    fn lock(&self) -> MutexGuard<'_, Option<Charge>> {
        // Nothing under this lock can panic half-way.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a charge of the owner.
    fn put(&self, charge: Charge) {
        let mut held = self.lock();
        match &mut *held {
            Some(held) => held.merge(charge),
            empty => *empty = Some(charge),
        }
    }

    /// Takes `bytes` out; `None` if the purse holds exactly as many.
    fn take_part(&self, bytes: u64) -> Result<Option<Charge>, Failure> {
        let mut held = self.lock();
        match &mut *held {
            Some(held) if held.bytes() > bytes => Ok(Some(held.split(bytes))),
            Some(held) if held.bytes() == bytes => Ok(None),
            held => {
                let held_bytes = held.as_ref().map_or(0, Charge::bytes);
                let message = format!("{bytes} bytes to give back, of {held_bytes} that are held");
                let failure = Failure::new(Code::NotHeld, message);
                Err(Failure { wanted_bytes: bytes, free_bytes: held_bytes, ..failure })
            }
        }
    }
}

/// The purses of an engine, with their handles.
#[derive(Debug, Default)]
pub(crate) struct Purses {
    /// A purse in the map has a handle. Locked before a purse.
    by_owner: RwLock<HashMap<OwnerId, (u64, Arc<Purse>)>>,
}

impl Purses {
    /// Adds a charge to its owner's purse; calls `add_handle` for a new purse. Returns the handle.
    pub(crate) fn put(
        &self,
        charge: Charge,
        add_handle: impl FnOnce(Arc<Purse>) -> Result<u64, Failure>,
    ) -> Result<u64, Failure> {
        let owner = charge.owner();
        if let Some((handle, purse)) =
            self.by_owner.read().unwrap_or_else(PoisonError::into_inner).get(&owner)
        {
            purse.put(charge);
            return Ok(*handle);
        }
        let mut by_owner = self.by_owner.write().unwrap_or_else(PoisonError::into_inner);
        if let Some((handle, purse)) = by_owner.get(&owner) {
            purse.put(charge);
            return Ok(*handle);
        }
        let purse = Arc::new(Purse::default());
        let handle = add_handle(Arc::clone(&purse))?;
        purse.put(charge);
        by_owner.insert(owner, (handle, purse));
        Ok(handle)
    }

    /// Takes bytes out of a purse. If none are left, removes the purse and returns `true` with the
    /// charge.
    pub(crate) fn take(&self, purse: &Arc<Purse>, bytes: u64) -> Result<(Charge, bool), Failure> {
        if let Some(charge) = purse.take_part(bytes)? {
            return Ok((charge, false));
        }
        let mut by_owner = self.by_owner.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have put bytes in, or taken some.
        if let Some(charge) = purse.take_part(bytes)? {
            return Ok((charge, false));
        }
        let charge = purse.lock().take().expect("it holds that many bytes, and is locked out of the map");
        by_owner.remove(&charge.owner());
        Ok((charge, true))
    }

    /// Takes everything out.
    pub(crate) fn take_all(&self) -> Vec<Charge> {
        let mut by_owner = self.by_owner.write().unwrap_or_else(PoisonError::into_inner);
        by_owner.drain().filter_map(|(_, (_, purse))| purse.lock().take()).collect()
    }
}
