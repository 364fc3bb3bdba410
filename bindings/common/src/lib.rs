//! The common part of umemcg's C library and Python package: the control keys, the names of
//! statistics, failures in a form for crossing a language boundary, and the fork check of the
//! process. Nothing here depends on C or Python.

pub mod callbacks;
pub mod checked_account;
pub mod control_keys;
pub mod failure;
pub mod process;
pub mod statistics;

pub use checked_account::CheckedAccount;
pub use control_keys::{CONTROL_KEYS, ControlKey, get, set};
pub use failure::{Code, Failure};
pub use statistics::{NR_STATISTICS, statistic_name, statistics};

use std::ffi::OsStr;
use std::path::{Component, Path};
use std::sync::Arc;

use umemcg::{CreateError, Engine, Group};

/// Returns the group at a path from the root (`/a/b`; `/` is the root). With `create`, creates the
/// missing groups, each charged to its parent; this may reclaim and so may sleep.
///
/// # Errors
/// [`Code::NotFound`] without `create`, [`Code::InvalidArgument`] for a path that does not start at
/// the root, and the errors of [`Engine::create_group`].
pub fn open_group(engine: &Engine, path: &Path, create: bool) -> Result<Arc<Group>, Failure> {
    if !path.has_root() {
        return Err(Failure::invalid("the path of a group starts with `/`").at(path));
    }
    let mut at = Arc::clone(engine.root());
    for component in path.components() {
        match component {
            Component::RootDir => {}
            Component::Normal(name) => at = step_down(engine, &at, name, create)?,
            _ => return Err(Failure::invalid("the path of a group has no `.` and no `..`").at(path)),
        }
    }
    Ok(at)
}

/// Attempts to create a group while other threads remove and create it.
const ATTEMPTS_MAX: u32 = 64;

fn step_down(engine: &Engine, at: &Arc<Group>, name: &OsStr, create: bool) -> Result<Arc<Group>, Failure> {
    for _ in 0..ATTEMPTS_MAX {
        match at.child(name) {
            Some(child) => return Ok(child),
            None if !create => break,
            None => match engine.create_group(at, name) {
                // Another thread created it.
                Err(CreateError::Exists) => {}
                created => return created.map_err(|error| Failure::from(error).at(&at.path().join(name))),
            },
        }
    }
    Err(Failure::new(Code::NotFound, "there is no group of that path").at(&at.path().join(name)))
}
