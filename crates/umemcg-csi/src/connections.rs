//! The connections to the plugin's socket, a bounded number at a time. A connection above the bound
//! is closed at once: its client sees an unavailable plugin, and retries.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::server::Connected;

/// Most connections at a time. Kubelet makes one for each request and closes it afterwards; each
/// sidecar keeps one.
const NR_CONNECTIONS_MAX: usize = 64;

/// A connection; dropping it frees its place.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    _place: OwnedSemaphorePermit,
}

/// Returns the stream of accepted connections.
pub fn accepted(listener: UnixListener) -> impl Stream<Item = io::Result<Connection>> {
    let places = Arc::new(Semaphore::new(NR_CONNECTIONS_MAX));
    let mut is_full = false;
    UnixListenerStream::new(listener).filter_map(move |accepted| {
        let connection = accepted.map(|stream| {
            let place = Arc::clone(&places).try_acquire_owned().ok()?;
            Some(Connection { stream, _place: place })
        });
        // Logged once, until a place is free again.
        let was_full = std::mem::replace(&mut is_full, matches!(connection, Ok(None)));
        if is_full && !was_full {
            tracing::warn!("{NR_CONNECTIONS_MAX} connections are open; others are refused");
        }
        connection.transpose()
    })
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    #[tokio::test]
    async fn one_connection_too_many_is_closed_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("csi.sock");
        let mut accepted = Box::pin(accepted(UnixListener::bind(&path).unwrap()));
        let mut open = Vec::new();
        for _ in 0..NR_CONNECTIONS_MAX {
            let client = UnixStream::connect(&path).await.unwrap();
            open.push((client, accepted.next().await.unwrap().unwrap()));
        }
        let mut refused = UnixStream::connect(&path).await.unwrap();
        let next = tokio::spawn(async move { accepted.next().await.unwrap().unwrap() });
        assert_eq!(refused.read(&mut [0]).await.unwrap(), 0);
        drop(open.pop());
        // The place is free for a later one.
        let _client = UnixStream::connect(&path).await.unwrap();
        next.await.unwrap();
    }
}
