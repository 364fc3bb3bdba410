//! The user of a request where the mount can have id-mapped mounts (Linux 6.12).
//!
//! The kernel names user and group, mapped, in requests that make an inode, and [`UNKNOWN_ID`] in
//! all others, whether or not they come through an id-mapped mount. It decides about permissions
//! itself. The other uses of the ids:
//!
//! - Rules by user have nothing to go by. A mount with such a rule has no id-mapped mounts, and the
//!   others refuse such a rule ([`Classifier`](crate::Classifier)).
//! - OPEN has a flag to clear set-id bits.
//! - FALLOCATE has none. It clears them unless the superuser made it, and LISTXATTR shows the names
//!   in `trusted.` to the superuser alone. The requesting thread waits for the answer, so `/proc`
//!   has its user. A thread killed meanwhile gets no answer.

use umemcg_vfs::Caller;

use super::DataFs;
use crate::classify::proc_files::user_of;
use crate::request::Request;
use crate::wire::{OPEN_KILL_SUIDGID, UNKNOWN_ID};

impl DataFs {
    /// Returns the caller of an OPEN with these flags. If the user is unknown, the superuser stands
    /// for a caller that keeps set-id bits.
    pub(super) fn caller_opening(&self, request: &Request<'_>, open_flags: u32) -> Caller {
        let caller = self.caller(request);
        let keeps_set_id = caller.uid == UNKNOWN_ID && open_flags & OPEN_KILL_SUIDGID == 0;
        Caller { uid: if keeps_set_id { 0 } else { caller.uid }, ..caller }
    }

    /// Returns the caller of a request that it waits for, with its user. May read `/proc`.
    pub(super) fn caller_with_user(&self, request: &Request<'_>) -> Caller {
        let caller = self.caller(request);
        if caller.uid != UNKNOWN_ID {
            return caller;
        }
        Caller { uid: user_of(request.header.pid).unwrap_or(UNKNOWN_ID), ..caller }
    }
}
