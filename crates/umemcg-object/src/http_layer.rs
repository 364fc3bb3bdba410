//! The HTTP layer between `object_store` and the network: counts requests, delays them when a store
//! throttles, keeps the last error, and removes keys unusable as paths from listings.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use http::{HeaderName, HeaderValue, StatusCode};
use http_body_util::{BodyExt, Full};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService,
};
use umemcg_base::LeafMutex;
use umemcg_vfs::bucket::{BucketFigures, UNREADABLE};

use crate::answer::{check_listing, error_code, is_of_change, is_of_deletion, is_of_object};
use crate::checksum::ExpectedChecksum;
use crate::listing_filter::{HiddenKeys, ListingPrefix, without_hidden};
use crate::pace::Lane;
use crate::request_extensions::{Tenant, extension_of};
use crate::request_kind::{RequestKind, SILENCE_TIMEOUT};
use crate::request_patch::{Signer, patched};
use crate::traffic::Traffic;
use crate::upload_list::page_of;

/// Counts of the requests to one bucket, by request on the wire. Relaxed: the numbers stand alone.
#[derive(Debug, Default)]
pub(crate) struct RequestCounts {
    gets: AtomicU64,
    heads: AtomicU64,
    lists: AtomicU64,
    puts: AtomicU64,
    copies: AtomicU64,
    deletes: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    refusals: AtomicU64,
    throttles: AtomicU64,
    /// Time requests spent waiting for their turn, in microseconds.
    throttled_us: AtomicU64,
    pub(crate) failures: AtomicU64,
    trouble: LeafMutex<Option<String>>,
    /// Shared with the other buckets of the store.
    pub(crate) traffic: Arc<Traffic>,
    /// The store has responded since the bucket was opened.
    has_answered: AtomicBool,
}

impl RequestCounts {
    pub(crate) fn of(traffic: Arc<Traffic>) -> Self {
        Self { traffic, ..Self::default() }
    }

    pub(crate) fn figures(&self) -> BucketFigures {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        BucketFigures {
            gets: load(&self.gets),
            heads: load(&self.heads),
            lists: load(&self.lists),
            puts: load(&self.puts),
            copies: load(&self.copies),
            deletes: load(&self.deletes),
            read_bytes: load(&self.read_bytes),
            written_bytes: load(&self.written_bytes),
            refusals: load(&self.refusals),
            throttles: load(&self.throttles),
            throttled_ms: load(&self.throttled_us) / 1000,
            failures: load(&self.failures),
        }
    }

    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    fn count(&self, kind: RequestKind) {
        let count = match kind {
            RequestKind::List => &self.lists,
            RequestKind::Head => &self.heads,
            RequestKind::Get => &self.gets,
            RequestKind::Put | RequestKind::BeginOrEnd => &self.puts,
            RequestKind::Copy => &self.copies,
            RequestKind::Delete | RequestKind::DeleteBatch => &self.deletes,
            RequestKind::Other => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn waited(&self, time: Duration) {
        self.throttled_us.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    /// Records the error of a response, or that the store works.
    fn note(&self, trouble: Option<String>) {
        if trouble.is_some() {
            self.refusals.fetch_add(1, Ordering::Relaxed);
        }
        let old = std::mem::replace(&mut *self.trouble.lock(), trouble);
        drop(old);
    }
}

/// Returns a hash of the request's key; a listing has the hash of its bucket.
fn hash_of_path(request: &HttpRequest) -> u64 {
    let mut hasher = DefaultHasher::new();
    request.uri().path().hash(&mut hasher);
    hasher.finish()
}

/// Words in a 503 response that reports throttling.
const THROTTLES: [&str; 5] =
    ["SlowDown", "ServerBusy", "Throttl", "TooManyRequests", "educe your request rate"];

/// Returns whether a failure with this text reports throttling. S3 reports it with 503, a status
/// with other causes too; its response to a HEAD has no text to distinguish them.
fn is_throttle(kind: RequestKind, status: StatusCode, text: &[u8]) -> bool {
    let says = || {
        let text = String::from_utf8_lossy(text);
        THROTTLES.iter().any(|word| text.contains(word))
    };
    match status {
        StatusCode::TOO_MANY_REQUESTS => true,
        StatusCode::SERVICE_UNAVAILABLE => kind == RequestKind::Head || says(),
        _ => false,
    }
}

/// The environment variable of the S3 tools for a file of CA certificates.
const CA_BUNDLE: &str = "AWS_CA_BUNDLE";
/// Time limit for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The read timeout of `reqwest` starts with the request. So a request with a body needs another
/// limit, `time_max`.
///
/// Redirections are failures. Another location is not the store: a page there would report success
/// for a PUT, and it would receive the bytes and the session token.
fn client(has_silence_timeout: bool) -> object_store::Result<HttpClient> {
    let builder = reqwest::Client::builder()
        .user_agent(concat!("umemcg/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .http1_only()
        .connect_timeout(CONNECT_TIMEOUT);
    let builder = if has_silence_timeout { builder.read_timeout(SILENCE_TIMEOUT) } else { builder };
    let failed = |error| object_store::Error::Generic { store: "HTTP", source: Box::new(error) };
    with_authorities(builder)?.build().map(HttpClient::new).map_err(failed)
}

/// Trusts the CA certificates in the file named by [`CA_BUNDLE`], in addition to the system's.
fn with_authorities(builder: reqwest::ClientBuilder) -> object_store::Result<reqwest::ClientBuilder> {
    let Some(path) = std::env::var_os(CA_BUNDLE).filter(|path| !path.is_empty()) else { return Ok(builder) };
    let path = std::path::PathBuf::from(path);
    let failed = |why: String| object_store::Error::Generic {
        store: CA_BUNDLE,
        source: format!("{}: {why}", path.display()).into(),
    };
    let text = std::fs::read(&path).map_err(|error| failed(error.to_string()))?;
    let found = reqwest::Certificate::from_pem_bundle(&text).map_err(|error| failed(chain(&error)))?;
    if found.is_empty() {
        return Err(failed("no certificate is in it".into()));
    }
    Ok(builder.tls_certs_merge(found))
}

/// The HTTP clients of the process: one for requests with streamed responses, one for the others.
#[derive(Debug, Clone)]
struct Clients {
    reading: HttpClient,
    changing: HttpClient,
}

/// Connects one bucket. Connections belong to the process, so ten thousand volumes of one server
/// share them.
#[derive(Debug, Clone)]
pub(crate) struct CountingConnector {
    pub(crate) counts: Arc<RequestCounts>,
    pub(crate) signer: Signer,
}

impl HttpConnector for CountingConnector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        // The options of the first bucket are ignored: the URL says whether a connection is
        // encrypted.
        static CLIENTS: OnceLock<Clients> = OnceLock::new();
        let clients = match CLIENTS.get() {
            Some(clients) => clients.clone(),
            None => {
                let made = Clients { reading: client(true)?, changing: client(false)? };
                CLIENTS.get_or_init(|| made).clone()
            }
        };
        let Self { counts, signer } = self.clone();
        Ok(HttpClient::new(CountingService { clients, counts, signer, lanes: Default::default() }))
    }
}

#[derive(Debug)]
struct CountingService {
    clients: Clients,
    counts: Arc<RequestCounts>,
    signer: Signer,
    /// One lane for each kind of request, so that a HEAD does not wait behind all reads.
    lanes: [Lane; RequestKind::NR],
}

#[async_trait]
impl HttpService for CountingService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let request = patched(request, &self.signer).await?;
        let kind = RequestKind::of(&request);
        if kind != RequestKind::Other {
            let Tenant(tenant) = extension_of(&request).unwrap_or_default();
            self.counts.waited(self.counts.traffic.turn(&self.lanes[kind as usize], tenant).await);
        }
        let prefix = extension_of::<ListingPrefix>(&request);
        let key = hash_of_path(&request);
        self.counts.count(kind);
        let (sent, _under_way) = (Instant::now(), self.counts.traffic.begin());
        let answer = match kind.time_max(request.body().content_length()) {
            None => self.clients.reading.execute(request).await,
            Some(time) => match tokio::time::timeout(time, self.change(kind, request)).await {
                Ok(answer) => answer,
                Err(elapsed) => Err(HttpError::new(HttpErrorKind::Timeout, elapsed)),
            },
        };
        let response = match answer {
            Ok(response) => response,
            Err(error) => {
                self.counts.note(Some(chain(&error)));
                let is_unknown = !self.counts.has_answered.load(Ordering::Relaxed);
                return Err(match error.kind() {
                    // Probably a wrong address: report it at mount time, not a minute later.
                    HttpErrorKind::Connect if is_unknown => HttpError::new(HttpErrorKind::Unknown, error),
                    _ if kind.may_repeat() => repeatable(error),
                    _ => error,
                });
            }
        };
        self.counts.has_answered.store(true, Ordering::Relaxed);
        let response = recognised(kind, readable(response));
        let status = response.status();
        // `object_store` reads the whole error text, as it does a listing.
        let (response, is_throttled) =
            if status.is_success() { (response, false) } else { bounded(kind, response).await? };
        if kind != RequestKind::Other {
            self.counts.traffic.answered((kind, key), sent, is_throttled);
            self.counts.throttles.fetch_add(is_throttled.into(), Ordering::Relaxed);
        }
        let is_trouble = status.is_server_error()
            || matches!(
                status,
                StatusCode::TOO_MANY_REQUESTS
                    | StatusCode::REQUEST_TIMEOUT
                    | StatusCode::UNAUTHORIZED
                    | StatusCode::FORBIDDEN
            );
        self.counts.note(is_trouble.then(|| format!("the store answered {status}")));
        match (kind, status.is_success()) {
            (RequestKind::List, true) => filtered(response, prefix).await,
            (RequestKind::Get, true) if status == StatusCode::OK => Ok(with_checksum(response)),
            _ => Ok(response),
        }
    }
}

impl CountingService {
    /// Returns the whole response to a mutating request.
    async fn change(&self, kind: RequestKind, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (mut parts, body) = self.clients.changing.execute(request).await?.into_parts();
        let whole = read_bounded(body).await?;
        if parts.status.is_success() {
            // Azure responds to a copy with 202 and no body.
            let is_missing =
                kind == RequestKind::Copy && parts.status == StatusCode::OK && whole.trim_ascii().is_empty();
            // The status of a gateway without a store: `object_store` retries it.
            let unknown = (is_missing || !is_of_change(&whole)).then_some(StatusCode::BAD_GATEWAY);
            // A listing then decides whether the object or the upload is gone.
            let is_doubtful = kind == RequestKind::Delete && !is_of_deletion(parts.status, &parts.headers);
            let doubtful = is_doubtful.then_some(StatusCode::NOT_FOUND);
            parts.status = belated_failure(&whole).or(unknown).or(doubtful).unwrap_or(parts.status);
        } else if parts.status == StatusCode::BAD_REQUEST && is_damaged(&whole) {
            // `object_store` retries this status.
            parts.status = StatusCode::INTERNAL_SERVER_ERROR;
        } else if parts.status == StatusCode::NOT_IMPLEMENTED {
            // It does not retry this one: the store does not support preconditions.
            parts.status = StatusCode::METHOD_NOT_ALLOWED;
        }
        let whole = if parts.status.is_success() { whole } else { told(&whole) };
        Ok(with_body(parts, whole))
    }
}

/// Returns the reportable part of an error text. The whole text would get into the log, and a store
/// may echo the request: S3 echoes an expired session token.
fn told(body: &[u8]) -> Bytes {
    let text = String::from_utf8_lossy(body);
    let part = |name: &str| Some(text.split_once(&format!("<{name}>"))?.1.split('<').next()?.to_owned());
    match part("Code") {
        Some(code) => [code, part("Message").unwrap_or_default()].join(": ").into(),
        None if text.contains("oken") => Bytes::new(),
        None => text.into_owned().into(),
    }
}

/// Returns the failure in the body of a response with a success status: S3 sends the head of a slow
/// response before it knows the outcome.
fn belated_failure(body: &[u8]) -> Option<StatusCode> {
    Some(match error_code(body)?.as_str() {
        "PreconditionFailed" => StatusCode::PRECONDITION_FAILED,
        "ConditionalRequestConflict" => StatusCode::CONFLICT,
        "NoSuchKey" | "NoSuchUpload" | "NoSuchBucket" => StatusCode::NOT_FOUND,
        "AccessDenied" => StatusCode::FORBIDDEN,
        "SlowDown" => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    })
}

/// Returns whether the request's body reached the store with a wrong checksum.
fn is_damaged(body: &[u8]) -> bool {
    matches!(error_code(body).as_deref(), Some("BadDigest" | "InvalidDigest" | "XAmzContentSHA256Mismatch"))
}

/// Converts an error to a kind that `object_store` retries.
fn repeatable(error: HttpError) -> HttpError {
    match error.kind() {
        HttpErrorKind::Timeout | HttpErrorKind::Interrupted => HttpError::new(HttpErrorKind::Request, error),
        _ => error,
    }
}

/// Longest listing page and longest error text, in bytes. A page has 1,000 keys of at most 1,024
/// bytes, and XML escapes may make a key six times as long.
const BODY_BYTES_MAX: usize = 8 << 20;

/// Reads a body of at most `BODY_BYTES_MAX`.
async fn read_bounded(body: HttpResponseBody) -> Result<Bytes, HttpError> {
    let (mut stream, mut whole) = (body.bytes_stream(), BytesMut::new());
    while let Some(bytes) = stream.next().await {
        whole.extend_from_slice(&bytes?);
        if whole.len() > BODY_BYTES_MAX {
            return Err(HttpError::new(HttpErrorKind::Decode, TooLong));
        }
    }
    Ok(whole.freeze())
}

/// A response longer than `BODY_BYTES_MAX`.
#[derive(Debug, thiserror::Error)]
#[error("the store's answer is longer than {BODY_BYTES_MAX} bytes")]
struct TooLong;

fn with_body(parts: http::response::Parts, whole: Bytes) -> HttpResponse {
    let body = Full::new(whole).map_err(|never| HttpError::new(HttpErrorKind::Decode, never));
    HttpResponse::from_parts(parts, HttpResponseBody::new(body))
}

/// Returns a failure with its reportable text, and whether the store throttles.
async fn bounded(kind: RequestKind, response: HttpResponse) -> Result<(HttpResponse, bool), HttpError> {
    let (parts, body) = response.into_parts();
    let text = told(&read_bounded(body).await?);
    let is_throttled = is_throttle(kind, parts.status, &text);
    Ok((with_body(parts, text), is_throttled))
}

/// Removes the headers that are not ASCII text: other programs store names and labels in UTF-8, and
/// one of them would make `object_store` refuse the whole response.
fn readable(mut response: HttpResponse) -> HttpResponse {
    let headers = response.headers_mut();
    let unreadable: Vec<_> = headers.iter().filter(|(_, value)| value.to_str().is_err()).collect();
    let unreadable: Vec<_> = unreadable.into_iter().map(|(name, _)| name.clone()).collect();
    for name in &unreadable {
        headers.remove(name);
    }
    if !unreadable.is_empty() {
        // Storing the object anew would lose these headers.
        for prefix in ["x-amz-meta-", "x-goog-meta-", "x-ms-meta-"] {
            if let Ok(name) = HeaderName::try_from(format!("{prefix}{UNREADABLE}")) {
                headers.insert(name, HeaderValue::from_static("1"));
            }
        }
    }
    response
}

/// Replaces a HEAD response without an object's headers by a bad gateway response. `object_store`
/// retries it.
fn recognised(kind: RequestKind, mut response: HttpResponse) -> HttpResponse {
    if kind == RequestKind::Head && response.status().is_success() {
        // Azure shows an unfinished copy like a finished one.
        let is_pending = response.headers().get("x-ms-copy-status").is_some_and(|status| status == "pending");
        if is_pending || !is_of_object(response.headers()) {
            *response.status_mut() = StatusCode::BAD_GATEWAY;
        }
    }
    response
}

/// Passes on the checksum in a response with a whole object.
fn with_checksum(mut response: HttpResponse) -> HttpResponse {
    if let Some(expected) = ExpectedChecksum::of(response.headers()) {
        response.extensions_mut().insert(expected);
    }
    response
}

/// Removes keys unusable as paths from a listing, and passes them on. Any other response is a
/// failure: `object_store` would read it as an empty listing. A list of uploads has no prefix; its
/// page is passed on.
async fn filtered(response: HttpResponse, prefix: Option<ListingPrefix>) -> Result<HttpResponse, HttpError> {
    let (mut parts, body) = response.into_parts();
    let whole = read_bounded(body).await?;
    check_listing(&whole).map_err(|no_listing| HttpError::new(HttpErrorKind::Decode, no_listing))?;
    if prefix.is_none() {
        parts.extensions.insert(page_of(&whole));
    }
    let (ListingPrefix(prefix), mut keys) = (prefix.unwrap_or_default(), Vec::new());
    let kept = without_hidden(&whole, &prefix, &mut keys).map_or(whole, Bytes::from);
    parts.extensions.insert(HiddenKeys(keys));
    Ok(with_body(parts, kept))
}

/// Returns the texts of an error and of its causes, each once.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut at = error.source();
    while let Some(cause) = at {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        at = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_tells_no_token() {
        let body =
            b"<?xml version=\"1.0\"?><Error><Code>ExpiredToken</Code><Message>It has expired</Message>\
            <Token-0>secret</Token-0></Error>";
        assert_eq!(told(body), "ExpiredToken: It has expired");
        assert_eq!(told(b"{\"error\": \"token secret\"}"), "");
        assert_eq!(told(b"no route to the server"), "no route to the server");
    }

    #[test]
    fn a_failure_is_no_throttling_unless_it_says_so() {
        let is = |kind, status, text: &[u8]| is_throttle(kind, status, text);
        let busy = StatusCode::SERVICE_UNAVAILABLE;
        assert!(is(RequestKind::Get, busy, &told(b"<Error><Code>SlowDown</Code></Error>")));
        assert!(is(RequestKind::Put, busy, b"ServerBusy: wait"));
        assert!(!is(RequestKind::Get, busy, b"InternalError: a disk is gone"));
        assert!(is(RequestKind::Head, busy, b""), "it has no text");
        assert!(is(RequestKind::Get, StatusCode::TOO_MANY_REQUESTS, b""));
        assert!(!is(RequestKind::Get, StatusCode::INTERNAL_SERVER_ERROR, b"SlowDown"));
    }

    #[test]
    fn headers_in_utf8_keep_no_object_from_being_read() {
        let answer = http::Response::builder()
            .header("x-amz-meta-title", "Übersicht".as_bytes())
            .header("content-disposition", "attachment; filename=\"Ü\"".as_bytes())
            .header("x-amz-meta-mode", "33188");
        let (parts, ()) = answer.body(()).unwrap().into_parts();
        let readable = readable(with_body(parts, Bytes::new()));
        assert_eq!(readable.headers().len(), 4, "{:?}", readable.headers());
        assert_eq!(readable.headers()["x-amz-meta-mode"], "33188");
        assert!(readable.headers().contains_key(format!("x-amz-meta-{UNREADABLE}")));
    }

    #[test]
    fn an_object_whose_copy_is_pending_is_not_there_yet() {
        let head = |status: &str| {
            let answer =
                http::Response::builder().header("last-modified", "x").header("x-ms-copy-status", status);
            let (parts, ()) = answer.body(()).unwrap().into_parts();
            recognised(RequestKind::Head, with_body(parts, Bytes::new())).status()
        };
        assert_eq!((head("pending"), head("success")), (StatusCode::BAD_GATEWAY, StatusCode::OK));
    }

    #[test]
    fn a_failure_may_follow_the_head_of_an_answer() {
        let failure = |code: &str| {
            belated_failure(
                format!("<?xml version=\"1.0\"?>\n <Error><Code>{code}</Code></Error>").as_bytes(),
            )
        };
        assert_eq!(failure("PreconditionFailed"), Some(StatusCode::PRECONDITION_FAILED));
        assert_eq!(failure("NoSuchUpload"), Some(StatusCode::NOT_FOUND));
        assert_eq!(failure("InternalError"), Some(StatusCode::INTERNAL_SERVER_ERROR));
        assert_eq!(belated_failure(b"<CopyObjectResult><ETag>x</ETag></CopyObjectResult>"), None);
        assert_eq!(belated_failure(b""), None);
    }
}
