//! The context of the functions behind a control file.

use std::sync::Arc;

use umemcg::{Engine, Group};

use crate::group_control::GroupControl;
use crate::open_file::OpenFile;
use crate::request::Request;
use crate::state::ControlState;

/// The context passed to a row's functions.
#[derive(Debug)]
pub struct FileContext<'a> {
    /// The state shared by all files of the tree.
    pub state: &'a ControlState,
    /// The group whose file it is. Alive when the operation began.
    pub group: &'a Arc<Group>,
    /// The open file.
    pub file: &'a OpenFile,
    /// The request, with its cancellation state.
    pub request: &'a Request<'a>,
}

impl FileContext<'_> {
    pub(crate) fn engine(&self) -> &Engine {
        self.state.engine()
    }

    /// Returns this layer's state of the group.
    pub(crate) fn control(&self) -> &GroupControl {
        self.state.control(self.group)
    }
}
