//! Finds groups, and creates missing ones.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use umemcg_group::{CreateError, Group};

use super::Engine;

/// Attempts to find or create a group while other threads create and remove it.
const ATTEMPTS_MAX: u32 = 16;

/// Limits of a new group, in bytes; unset limits have the defaults of a new group.
///
/// ```
/// use umemcg::Limits;
///
/// let limits = Limits::new().max(64 << 20).low(16 << 20);
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[must_use]
#[non_exhaustive]
pub struct Limits {
    max: Option<u64>,
    high: Option<u64>,
    low: Option<u64>,
    min: Option<u64>,
    soft: Option<u64>,
}

impl Limits {
    /// Returns limits with none set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the hard limit; see [`Engine::set_max`].
    pub fn max(mut self, bytes: u64) -> Self {
        self.max = Some(bytes);
        self
    }

    /// Sets `memory.high`; see [`Engine::set_high`].
    pub fn high(mut self, bytes: u64) -> Self {
        self.high = Some(bytes);
        self
    }

    /// Sets `memory.low`; see [`Engine::set_low`].
    pub fn low(mut self, bytes: u64) -> Self {
        self.low = Some(bytes);
        self
    }

    /// Sets `memory.min`; see [`Engine::set_min`].
    pub fn min(mut self, bytes: u64) -> Self {
        self.min = Some(bytes);
        self
    }

    /// Sets the soft limit; see [`Engine::set_soft_limit`].
    pub fn soft(mut self, bytes: u64) -> Self {
        self.soft = Some(bytes);
        self
    }
}

impl Engine {
    /// Returns the group at a path from the root, such as `/tenants/a`; `/` is the root.
    pub fn group_at(&self, path: impl AsRef<Path>) -> Option<Arc<Group>> {
        self.tree().lookup(path.as_ref())
    }

    /// Returns the group of this name below `parent`. If there is none, creates it, as
    /// [`create_group`](Self::create_group) does, and sets its limits; an existing group keeps its
    /// limits. May sleep.
    ///
    /// # Errors
    /// [`CreateError`]; [`CreateError::Exists`] only if other threads create and remove the group
    /// all the time.
    pub fn get_or_create(
        &self,
        parent: &Arc<Group>,
        name: impl AsRef<OsStr>,
        limits: &Limits,
    ) -> Result<Arc<Group>, CreateError> {
        let name = name.as_ref();
        for _ in 0..ATTEMPTS_MAX {
            if let Some(group) = parent.child(name) {
                return Ok(group);
            }
            match self.create_limited(parent, name, limits) {
                Err(CreateError::Exists) => {}
                result => return result,
            }
        }
        Err(CreateError::Exists)
    }

    /// Creates a group and sets its limits.
    pub(super) fn create_limited(
        &self,
        parent: &Arc<Group>,
        name: &OsStr,
        limits: &Limits,
    ) -> Result<Arc<Group>, CreateError> {
        let group = self.create_group(parent, name)?;
        let Limits { max, high, low, min, soft } = *limits;
        if let Some(bytes) = min {
            self.set_min(&group, bytes);
        }
        if let Some(bytes) = low {
            self.set_low(&group, bytes);
        }
        if let Some(bytes) = soft {
            self.set_soft_limit(&group, bytes);
        }
        if let Some(bytes) = high {
            self.set_high(&group, bytes);
        }
        if let Some(bytes) = max {
            self.set_max(&group, bytes);
        }
        Ok(group)
    }
}
