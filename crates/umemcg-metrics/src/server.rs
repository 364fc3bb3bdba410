//! The HTTP/1.1 server for Prometheus: `GET /metrics`, on a thread of its own.
//!
//! At most [`CLIENTS_MAX`] clients are served at a time; more wait to be accepted. One scrape is
//! rendered at a time. At most [`TEXTS_MAX`] texts of each format are kept for slow clients.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::pin::pin;
use std::str::FromStr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use umemcg_base::LeafMutex;
use umemcg_base::clock::Worker;
use umemcg_base::own_directory::check_above;

use crate::plain_text::{PLAIN_CONTENT_TYPE, plain_text};

/// The media type of the rendered text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Most clients at a time.
pub const CLIENTS_MAX: usize = 16;
/// The age at which a connection gets a graceful shutdown. A client that does not read its text
/// holds it for at most this time plus [`LAST_ANSWER_TIME`].
pub const CLIENT_TIME: Duration = Duration::from_secs(30);
/// The longest time for a client to send the headers of a request.
const HEADER_TIME: Duration = Duration::from_secs(10);
/// The longest time for a client to read its last response after [`CLIENT_TIME`].
const LAST_ANSWER_TIME: Duration = Duration::from_secs(30);
/// Most texts of one format kept for clients that have not read them yet.
pub const TEXTS_MAX: usize = 2;
/// The greatest age of a text shared with another client when no new text may be rendered.
const SHARED_FOR: Duration = Duration::from_secs(5);
/// The longest wait of a client for other clients to read their texts: the default scrape timeout
/// of Prometheus.
const PLACE_TIME: Duration = Duration::from_secs(10);
/// The pause after a failed `accept`, and between two attempts to get a text.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// The address of a metrics server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsAddress {
    /// At a TCP address.
    Tcp(SocketAddr),
    /// At a Unix socket that only its owner may open.
    Unix(PathBuf),
}

/// An address in neither format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither an address such as 127.0.0.1:9470 or [::1]:9470 nor unix:PATH")]
pub struct WrongAddress(String);

impl FromStr for MetricsAddress {
    type Err = WrongAddress;

    fn from_str(text: &str) -> Result<Self, WrongAddress> {
        let wrong = || WrongAddress(text.to_owned());
        match text.strip_prefix("unix:") {
            Some("") => Err(wrong()),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Tcp).map_err(|_| wrong()),
        }
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Renders the text of a scrape.
type Render = Arc<dyn Fn() -> String + Send + Sync>;

/// The text of a scrape; dropped once every client has read it.
#[derive(Debug)]
struct ScrapeText {
    text: String,
    made_at: Instant,
    _place: OwnedSemaphorePermit,
}

/// One client's reference to the text.
struct SharedText(Arc<ScrapeText>);

impl AsRef<[u8]> for SharedText {
    fn as_ref(&self) -> &[u8] {
        self.0.text.as_bytes()
    }
}

/// Renders the texts of scrapes, a bounded number at a time.
struct Scrapes {
    render: Render,
    /// Places for texts, by format: clients of one format do not wait for clients of the other.
    places: [Arc<Semaphore>; 2],
    /// The newest text of each format. A leaf lock.
    newest: LeafMutex<[Weak<ScrapeText>; 2]>,
}

impl Scrapes {
    fn new(render: Render) -> Self {
        let places = [(); 2].map(|()| Arc::new(Semaphore::new(TEXTS_MAX)));
        Self { render, places, newest: LeafMutex::default() }
    }

    /// Returns a new text. When all [`TEXTS_MAX`] are still being read, returns the newest instead,
    /// or, if that is too old, waits for a free place.
    ///
    /// # Errors
    /// `TimedOut` when no place becomes free in time; `Other` when rendering panics.
    async fn text(&self, is_open_metrics: bool) -> io::Result<Bytes> {
        let format = usize::from(is_open_metrics);
        let until = Instant::now() + PLACE_TIME;
        let place = loop {
            if let Ok(place) = Arc::clone(&self.places[format]).try_acquire_owned() {
                break place;
            }
            let newest = self.newest.lock()[format].upgrade();
            if let Some(newest) = newest.filter(|text| text.made_at.elapsed() < SHARED_FOR) {
                return Ok(Bytes::from_owner(SharedText(newest)));
            }
            if Instant::now() > until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        };
        let render = Arc::clone(&self.render);
        // The task owns the place, even if its client disconnects.
        let made = tokio::task::spawn_blocking(move || {
            let text = if is_open_metrics { render() } else { plain_text(&render()) };
            ScrapeText { text, made_at: Instant::now(), _place: place }
        });
        let text = Arc::new(made.await.map_err(io::Error::other)?);
        self.newest.lock()[format] = Arc::downgrade(&text);
        Ok(Bytes::from_owner(SharedText(text)))
    }
}

/// A listening socket, not served yet.
#[derive(Debug)]
pub struct MetricsListener {
    listener: Listener,
    address: MetricsAddress,
    file: SocketFile,
}

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The file of a socket; removed when dropped.
#[derive(Debug)]
struct SocketFile(Option<PathBuf>);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl MetricsListener {
    /// Listens at an address.
    ///
    /// # Errors
    /// The system's, such as `AddrInUse`: also for a path that exists, except a socket without a
    /// listener. `PermissionDenied` for a path where another user may change names.
    pub fn bind(address: &MetricsAddress) -> io::Result<Self> {
        match address {
            MetricsAddress::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                let address = MetricsAddress::Tcp(listener.local_addr()?);
                Ok(Self { listener: Listener::Tcp(listener), address, file: SocketFile(None) })
            }
            MetricsAddress::Unix(path) => {
                let path = std::path::absolute(path)?;
                let listener = Listener::Unix(bind_unix(&path)?);
                Ok(Self {
                    listener,
                    address: MetricsAddress::Unix(path.clone()),
                    file: SocketFile(Some(path)),
                })
            }
        }
    }

    /// Returns the listening address, with the actual port if port 0 was asked for.
    pub fn address(&self) -> &MetricsAddress {
        &self.address
    }

    /// Serves the text returned by `render`, on a thread of its own.
    ///
    /// # Errors
    /// When the system refuses a thread or a descriptor.
    pub fn serve(self, render: impl Fn() -> String + Send + Sync + 'static) -> io::Result<MetricsServer> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .thread_name("umemcg-scrape")
            .build()?;
        let (end, render): (_, Render) = (Arc::new(Notify::new()), Arc::new(render));
        let (ends, listener) = (Arc::clone(&end), self.listener);
        let worker = Worker::spawn("umemcg-metrics", move || {
            runtime.spawn(async move {
                if let Err(error) = serve(listener, render).await {
                    tracing::error!(%error, "metrics are not served any more");
                }
            });
            runtime.block_on(ends.notified());
            // Do not wait for a scrape in progress.
            runtime.shutdown_background();
        })?;
        Ok(MetricsServer { end, worker: Some(worker), address: self.address, _file: self.file })
    }
}

/// A running metrics server. Dropping it stops the server and removes its socket.
#[derive(Debug)]
pub struct MetricsServer {
    end: Arc<Notify>,
    worker: Option<Worker>,
    address: MetricsAddress,
    _file: SocketFile,
}

impl MetricsServer {
    /// Returns the listening address.
    pub fn address(&self) -> &MetricsAddress {
        &self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.end.notify_one();
        drop(self.worker.take());
    }
}

/// Binds a socket that only its owner may open. Replaces a socket without a listener.
fn bind_unix(path: &std::path::Path) -> io::Result<UnixListener> {
    check_above(path, rustix::process::geteuid().as_raw())?;
    if let Ok(metadata) = std::fs::symlink_metadata(path) {
        if !metadata.file_type().is_socket() || UnixStream::connect(path).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        std::fs::remove_file(path)?;
    }
    // Under another name until only the owner may open it.
    let draft = path.with_extension(format!("{}.new", std::process::id()));
    let _ = std::fs::remove_file(&draft);
    let listener = UnixListener::bind(&draft)?;
    let placed = std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o600))
        .and_then(|()| std::fs::rename(&draft, path));
    placed.inspect_err(|_| drop(std::fs::remove_file(&draft)))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// A listening socket, for the runtime.
enum Accepting {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

async fn serve(listener: Listener, render: Render) -> io::Result<()> {
    let accepting = match listener {
        Listener::Tcp(listener) => Accepting::Tcp(tokio::net::TcpListener::from_std(listener)?),
        Listener::Unix(listener) => Accepting::Unix(tokio::net::UnixListener::from_std(listener)?),
    };
    let clients = Arc::new(Semaphore::new(CLIENTS_MAX));
    let scrapes = Arc::new(Scrapes::new(render));
    loop {
        let client = Arc::clone(&clients).acquire_owned().await.map_err(io::Error::other)?;
        let scrapes = Arc::clone(&scrapes);
        let accepted = match &accepting {
            Accepting::Tcp(listener) => {
                listener.accept().await.map(|(stream, _)| drop(tokio::spawn(stay(stream, scrapes, client))))
            }
            Accepting::Unix(listener) => {
                listener.accept().await.map(|(stream, _)| drop(tokio::spawn(stay(stream, scrapes, client))))
            }
        };
        if let Err(error) = accepted {
            // Too many descriptors are open, or the client has gone.
            tracing::debug!(%error, "cannot accept a client of the metrics");
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }
}

/// Serves a client until it disconnects or fails. After [`CLIENT_TIME`], the client may finish the
/// request in progress.
async fn stay<S>(stream: S, scrapes: Arc<Scrapes>, _client: OwnedSemaphorePermit)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let answer = service_fn(move |request| answer(request, Arc::clone(&scrapes)));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .serve_connection(TokioIo::new(stream), answer);
    let mut connection = pin!(connection);
    if tokio::time::timeout(CLIENT_TIME, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(LAST_ANSWER_TIME, connection).await;
    }
}

async fn answer(
    request: Request<Incoming>,
    scrapes: Arc<Scrapes>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let plain = |status: StatusCode, text: &'static str| {
        let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
        *response.status_mut() = status;
        response
    };
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Ok(response);
    }
    let accepted = request.headers().get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let wants_open_metrics = accepted.into_iter().any(|value| value.contains("application/openmetrics-text"));
    Ok(match request.uri().path() {
        "/metrics" => match scrapes.text(wants_open_metrics).await {
            Ok(text) => {
                let mut response = Response::new(Full::new(text));
                let media_type = if wants_open_metrics { OPEN_METRICS } else { PLAIN_CONTENT_TYPE };
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
                response
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                tracing::warn!("clients of the metrics have not taken their texts; a scrape is refused");
                plain(StatusCode::SERVICE_UNAVAILABLE, "other clients have not taken their scrapes\n")
            }
            Err(error) => {
                tracing::error!(%error, "a scrape failed");
                plain(StatusCode::INTERNAL_SERVER_ERROR, "the scrape failed; see the log\n")
            }
        },
        "/" => plain(StatusCode::OK, "umemcg: metrics are at /metrics\n"),
        _ => plain(StatusCode::NOT_FOUND, "metrics are at /metrics\n"),
    })
}
