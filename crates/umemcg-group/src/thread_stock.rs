//! This thread's stock: created by the first charge needing one, drained when the thread ends.

use crate::group::{LEDGER, update_stale_excess};
use crate::stock::ThreadStock;

thread_local! {
    /// This thread's stock. Has no destructor, so the fast path need not check whether it has run.
    pub(crate) static THREAD_STOCK: ThreadStock<'static> = const { ThreadStock::new() };
    /// Returns the stock when the thread ends.
    static AT_EXIT: AtExit = const { AtExit };
}

struct AtExit;

impl Drop for AtExit {
    fn drop(&mut self) {
        THREAD_STOCK.with(|thread_stock| LEDGER.unregister_thread(thread_stock));
        update_stale_excess();
    }
}

/// Calls `use_it` with this thread's access to its stock. It has a stock unless the thread is
/// ending.
pub(crate) fn with_stock<R>(use_it: impl FnOnce(&ThreadStock<'static>) -> R) -> R {
    THREAD_STOCK.with(|thread_stock| {
        if thread_stock.set().is_none() && AT_EXIT.try_with(|_| ()).is_ok() {
            LEDGER.register_thread(thread_stock);
        }
        use_it(thread_stock)
    })
}
