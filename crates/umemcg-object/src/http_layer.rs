//! Between the library that speaks to stores and the network: counts requests, remembers the last
//! trouble, and takes keys out of listings that are no paths.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use http::{Method, StatusCode};
use http_body_util::{BodyExt, Full};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService, ReqwestConnector,
};
use umemcg_base::LeafMutex;
use umemcg_vfs::object::BucketFigures;

use crate::listing_filter::without_hidden;

tokio::task_local! {
    /// The keys that were taken out of the listing that this task asked for.
    pub(crate) static HIDDEN: RefCell<Vec<String>>;
}

/// What one bucket has been asked so far, by request on the wire. Relaxed: the numbers stand alone.
#[derive(Debug, Default)]
pub(crate) struct RequestCounts {
    gets: AtomicU64,
    heads: AtomicU64,
    lists: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    refusals: AtomicU64,
    pub(crate) failures: AtomicU64,
    trouble: LeafMutex<Option<String>>,
}

impl RequestCounts {
    pub(crate) fn figures(&self) -> BucketFigures {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        BucketFigures {
            gets: load(&self.gets),
            heads: load(&self.heads),
            lists: load(&self.lists),
            read_bytes: load(&self.read_bytes),
            refusals: load(&self.refusals),
            failures: load(&self.failures),
            ..BucketFigures::default()
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
            RequestKind::Other => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes whether the store answered as one that works does.
    fn note(&self, trouble: Option<String>) {
        if trouble.is_some() {
            self.refusals.fetch_add(1, Ordering::Relaxed);
        }
        let old = std::mem::replace(&mut *self.trouble.lock(), trouble);
        drop(old);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestKind {
    Get,
    Head,
    List,
    /// For credentials.
    Other,
}

fn kind_of(request: &HttpRequest) -> RequestKind {
    let query = request.uri().query().unwrap_or_default();
    let asks = |what: &str| query.split('&').any(|part| part == what);
    match *request.method() {
        Method::HEAD => RequestKind::Head,
        Method::GET if asks("list-type=2") || asks("comp=list") => RequestKind::List,
        Method::GET => RequestKind::Get,
        _ => RequestKind::Other,
    }
}

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a store may be silent in the middle of an answer.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(20);

fn client_options() -> ClientOptions {
    ClientOptions::new()
        .with_allow_http(true)
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_read_timeout(SILENCE_TIMEOUT)
        .with_timeout_disabled()
}

/// Connects one bucket. The connections are those of the process, so that ten thousand volumes of
/// one server share them.
#[derive(Debug, Clone)]
pub(crate) struct CountingConnector {
    pub(crate) counts: Arc<RequestCounts>,
}

impl HttpConnector for CountingConnector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        // Not the options of the bucket that connects first: its URL says whether it is encrypted.
        static CLIENT: OnceLock<HttpClient> = OnceLock::new();
        let client = match CLIENT.get() {
            Some(client) => client.clone(),
            None => {
                let made = ReqwestConnector::default().connect(&client_options())?;
                CLIENT.get_or_init(|| made).clone()
            }
        };
        Ok(HttpClient::new(CountingService { client, counts: Arc::clone(&self.counts) }))
    }
}

#[derive(Debug)]
struct CountingService {
    client: HttpClient,
    counts: Arc<RequestCounts>,
}

#[async_trait]
impl HttpService for CountingService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let kind = kind_of(&request);
        self.counts.count(kind);
        let answer = self.client.execute(request).await;
        let response = match answer {
            Ok(response) => response,
            Err(error) => {
                self.counts.note(Some(chain(&error)));
                return Err(error);
            }
        };
        let status = response.status();
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
            (RequestKind::List, true) => filtered(response).await,
            (_, true) => Ok(response),
            // Read whole by the library, as a listing is.
            (_, false) => bounded(response).await,
        }
    }
}

/// Longest listing, and longest text of a failure, in bytes. A part of a listing has 1,000 keys of
/// at most 1,024 bytes, each of which may take six times as much as XML.
const BODY_BYTES_MAX: usize = 8 << 20;

/// Reads a body that is not longer than a store has reason to make it.
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

/// An answer that is longer than any of its kind.
#[derive(Debug, thiserror::Error)]
#[error("the store's answer is longer than {BODY_BYTES_MAX} bytes")]
struct TooLong;

fn with_body(parts: http::response::Parts, whole: Bytes) -> HttpResponse {
    let body = Full::new(whole).map_err(|never| HttpError::new(HttpErrorKind::Decode, never));
    HttpResponse::from_parts(parts, HttpResponseBody::new(body))
}

async fn bounded(response: HttpResponse) -> Result<HttpResponse, HttpError> {
    let (parts, body) = response.into_parts();
    Ok(with_body(parts, read_bounded(body).await?))
}

/// Takes keys out of a listing that are no paths.
async fn filtered(response: HttpResponse) -> Result<HttpResponse, HttpError> {
    let (parts, body) = response.into_parts();
    let whole = read_bounded(body).await?;
    let mut hidden = Vec::new();
    let kept = without_hidden(&whole, &mut hidden).map_or(whole, Bytes::from);
    // Not set in a request that is no listing of ours.
    let _ = HIDDEN.try_with(|keys| keys.borrow_mut().extend(hidden));
    Ok(with_body(parts, kept))
}

/// Returns the texts of an error and of what caused it, each once.
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
