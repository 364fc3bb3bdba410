//! Requests run on threads that may block: they talk to the daemon, write control files and mount.

use tonic::Status;

/// Runs the work of a request on such a thread. It goes on if the client leaves.
///
/// # Errors
/// The work's; `Internal` if it panicked.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Status::internal(format!("the request broke off: {error}"))),
    }
}
