//! What all users of a round do: they work on a mount, and say what is to be true when it ends.

use crate::object_together::private::Private;
use crate::object_together::shared::Sharer;
use crate::object_together::world::Doing;

/// See the module text.
pub trait User: Send {
    /// Begins on a new mount.
    fn begin(&mut self) {}

    /// Does one thing.
    fn step(&mut self, doing: &Doing);

    /// Closes all files, whose bytes are in the store then.
    fn close_all(&mut self);

    /// Closes files without storing them.
    fn abandon(&mut self);

    /// Checks the bucket after all was closed.
    fn check_closed(&mut self) {}

    /// Goes on with what the bucket has after a volume was left. With `is_kept` all else that was
    /// written is in `lost/`.
    fn adopt_stored(&mut self, is_kept: bool);
}

impl User for Private {
    fn begin(&mut self) {
        Self::begin(self);
    }
    fn step(&mut self, doing: &Doing) {
        Self::step(self, doing);
    }
    fn close_all(&mut self) {
        Self::close_all(self);
    }
    fn abandon(&mut self) {
        Self::abandon(self);
    }
    fn check_closed(&mut self) {
        self.check_stored();
    }
    fn adopt_stored(&mut self, is_kept: bool) {
        Self::adopt_stored(self, is_kept);
    }
}

impl User for Sharer {
    fn step(&mut self, doing: &Doing) {
        Self::step(self, doing);
    }
    fn close_all(&mut self) {
        Self::close_all(self);
    }
    fn abandon(&mut self) {
        Self::abandon(self);
    }
    fn adopt_stored(&mut self, _: bool) {
        self.check_stored();
    }
}
