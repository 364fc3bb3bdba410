//! [`CacheGroup`]: the child group charged for a tenant's caches.

use std::ffi::OsStr;
use std::sync::Arc;

use umemcg::{CreateError, Engine, Group};

/// The group of a tenant's caches, removed with the last of them.
#[derive(Debug)]
pub(crate) struct CacheGroup {
    engine: Arc<Engine>,
    group: Arc<Group>,
}

impl CacheGroup {
    pub(crate) fn new(engine: &Arc<Engine>, tenant: &Arc<Group>) -> Result<Arc<Self>, CreateError> {
        let group = engine.create_group(tenant, OsStr::new("caches"))?;
        Ok(Arc::new(Self { engine: Arc::clone(engine), group }))
    }

    pub(crate) fn group(&self) -> &Arc<Group> {
        &self.group
    }
}

impl Drop for CacheGroup {
    fn drop(&mut self) {
        // Fails only if the embedder has created groups below it or removed it.
        let _ = self.engine.remove_group(&self.group);
    }
}
