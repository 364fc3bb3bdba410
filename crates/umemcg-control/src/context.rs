//! What the functions behind a control file act on.

use std::sync::Arc;

use umemcg::{Engine, Group};

use crate::group_control::GroupControl;
use crate::open_file::OpenFile;
use crate::request::Request;
use crate::state::ControlState;

/// What a row's functions act on.
#[derive(Debug)]
pub struct FileContext<'a> {
    /// What the tree's files share.
    pub state: &'a ControlState,
    /// The group whose file it is. Alive when the operation began.
    pub group: &'a Arc<Group>,
    /// The open file.
    pub file: &'a OpenFile,
    /// The request, and whether it is still wanted.
    pub request: &'a Request<'a>,
}

impl FileContext<'_> {
    pub(crate) fn engine(&self) -> &Engine {
        self.state.engine()
    }

    /// Returns what this layer keeps with the group.
    pub(crate) fn control(&self) -> &GroupControl {
        self.state.control(self.group)
    }
}
