//! This thread's stock: made with its first charge that needs one, given back when it ends.

use crate::group::{LEDGER, settle_unsettled};
use crate::stock::Keeper;

thread_local! {
    /// This thread's stock. Has no destructor, so that the fast path need not ask whether it has
    /// run.
    pub(crate) static KEEPER: Keeper<'static> = const { Keeper::new() };
    /// Gives the stock back when the thread ends.
    static AT_EXIT: AtExit = const { AtExit };
}

struct AtExit;

impl Drop for AtExit {
    fn drop(&mut self) {
        KEEPER.with(|keeper| LEDGER.dismiss(keeper));
        settle_unsettled();
    }
}

/// Lends this thread's keeper, with a stock unless the thread is ending.
pub(crate) fn with_stock<R>(use_it: impl FnOnce(&Keeper<'static>) -> R) -> R {
    KEEPER.with(|keeper| {
        if keeper.set().is_none() && AT_EXIT.try_with(|_| ()).is_ok() {
            LEDGER.enroll(keeper);
        }
        use_it(keeper)
    })
}
