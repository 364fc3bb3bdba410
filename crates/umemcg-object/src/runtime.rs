//! The tokio runtime shared by all stores of the process.

use std::io;
use std::sync::OnceLock;

use tokio::runtime::{Builder, Handle, Runtime};

/// Threads moving bytes between sockets and requests; none blocks on a store.
const NR_THREADS: usize = 2;

/// Returns the runtime, started on first use.
///
/// # Errors
/// The system's, when its threads cannot be started.
pub(crate) fn runtime() -> io::Result<Handle> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime.handle().clone());
    }
    let made = Builder::new_multi_thread()
        .worker_threads(NR_THREADS)
        .thread_name("umemcg-object")
        .enable_all()
        .build()?;
    // If two threads start it at once, one runtime is discarded.
    let _ = RUNTIME.set(made).map_err(Runtime::shutdown_background);
    RUNTIME.get().map(|runtime| runtime.handle().clone()).ok_or_else(|| io::ErrorKind::Other.into())
}
