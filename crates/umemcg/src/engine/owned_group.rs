//! [`OwnedGroup`]: a group with the lifetime of a value, such as a query or a session.

use std::ffi::OsStr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use umemcg_base::sync::Instant;
use umemcg_group::{CreateError, Group, RemoveError};

use super::{Engine, Limits};

/// Rounds of removing a subtree while other threads create groups in it.
const ROUNDS_MAX: u32 = 16;
/// The longest wait for removals by other threads.
const REMOVAL_WAIT_MAX: Duration = Duration::from_secs(30);

/// A group removed when the value is dropped, with all groups below it. Their remaining charges
/// then belong to the group above. Dropping it may block, as [`remove`](Self::remove) does.
///
/// ```
/// use umemcg::{Engine, EngineConfig, Limits};
///
/// let engine = Engine::new(EngineConfig::new(64 << 20))?;
/// let query = engine.owned_group(engine.root(), "query-17", &Limits::new().max(8 << 20))?;
/// let account = engine.account(&query);
/// account.try_grow(1 << 20)?;
/// drop(query);
/// assert!(engine.group_at("/query-17").is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a dropped group is removed immediately"]
#[derive(Debug)]
pub struct OwnedGroup {
    engine: Arc<Engine>,
    group: Arc<Group>,
    /// The group still exists and is to be removed.
    is_owned: bool,
}

impl OwnedGroup {
    /// Returns the group and keeps it: the value no longer removes it.
    pub fn keep(mut self) -> Arc<Group> {
        self.is_owned = false;
        Arc::clone(&self.group)
    }

    /// Removes the group and its descendants now. May block for concurrent removals below it by
    /// other threads, up to 30 s.
    ///
    /// # Errors
    /// [`RemoveError::Gone`] if it is already removed; [`RemoveError::HasChildren`] if other
    /// threads keep creating groups below it, or a removal below it takes longer.
    pub fn remove(mut self) -> Result<(), RemoveError> {
        self.is_owned = false;
        remove_subtree(&self.engine, &self.group)
    }
}

impl Deref for OwnedGroup {
    type Target = Arc<Group>;

    fn deref(&self) -> &Arc<Group> {
        &self.group
    }
}

impl Drop for OwnedGroup {
    fn drop(&mut self) {
        if !self.is_owned {
            return;
        }
        match remove_subtree(&self.engine, &self.group) {
            Ok(()) | Err(RemoveError::Gone) => {}
            Err(error) => tracing::warn!(%error, group = self.group.id(), "an owned group was not removed"),
        }
    }
}

/// Removes the groups of a subtree, children before parents.
fn remove_subtree(engine: &Engine, top: &Arc<Group>) -> Result<(), RemoveError> {
    let deadline = Instant::now() + REMOVAL_WAIT_MAX;
    let mut result = Err(RemoveError::HasChildren);
    for _ in 0..ROUNDS_MAX {
        let mut groups = Vec::new();
        let mut at = Group::next_in_subtree(top, None);
        while let Some(group) = at {
            at = Group::next_in_subtree(top, Some(&group));
            groups.push(group);
        }
        for group in groups.iter().rev() {
            engine.removals.wait_for_children(group, deadline);
            result = engine.remove_group(group);
        }
        if !matches!(result, Err(RemoveError::HasChildren)) {
            break;
        }
    }
    result
}

impl Engine {
    /// Creates a group that is removed when the result is dropped, and sets its limits. May sleep.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn owned_group(
        self: &Arc<Self>,
        parent: &Arc<Group>,
        name: impl AsRef<OsStr>,
        limits: &Limits,
    ) -> Result<OwnedGroup, CreateError> {
        let group = self.create_limited(parent, name.as_ref(), limits)?;
        Ok(OwnedGroup { engine: Arc::clone(self), group, is_owned: true })
    }
}
