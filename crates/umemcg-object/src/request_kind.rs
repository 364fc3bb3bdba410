//! Classifies requests by their method and headers. The kind decides how long a request may take,
//! and whether it may be retried.

use std::time::Duration;

use http::Method;
use object_store::client::HttpRequest;

/// Headers that make a PUT a copy.
const COPY_SOURCES: [&str; 3] = ["x-amz-copy-source", "x-goog-copy-source", "x-ms-copy-source"];

/// How long a store may be silent in the middle of an answer.
pub(crate) const SILENCE_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit of operations the store responds to when done.
const SLOW_ANSWER_TIMEOUT: Duration = Duration::from_secs(180);
/// A slower connection counts as broken.
const SLOWEST_BYTES_PER_SECOND: u64 = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Get,
    Head,
    List,
    /// Of an object or a part.
    Put,
    /// Of a multipart upload.
    BeginOrEnd,
    Copy,
    Delete,
    /// Of several objects; Azure gets it even for a single one. Its response has one part for each
    /// object, and is not judged as a whole.
    DeleteBatch,
    /// For credentials.
    Other,
}

impl RequestKind {
    pub(crate) const NR: usize = Self::Other as usize + 1;
    /// All kinds, indexed by their discriminants.
    pub(crate) const ALL: [Self; Self::NR] = [
        Self::Get,
        Self::Head,
        Self::List,
        Self::Put,
        Self::BeginOrEnd,
        Self::Copy,
        Self::Delete,
        Self::DeleteBatch,
        Self::Other,
    ];

    /// Returns the time limit for the whole response; `None` for streamed responses. S3 may take
    /// minutes to complete an upload or a large copy.
    pub(crate) fn time_max(self, body_len: usize) -> Option<Duration> {
        match self {
            Self::Put => {
                Some(SILENCE_TIMEOUT + Duration::from_secs(body_len as u64 / SLOWEST_BYTES_PER_SECOND))
            }
            Self::BeginOrEnd | Self::Copy => Some(SLOW_ANSWER_TIMEOUT),
            Self::Delete => Some(SILENCE_TIMEOUT),
            Self::Get | Self::Head | Self::List | Self::DeleteBatch | Self::Other => None,
        }
    }

    /// Returns whether the request may be retried whatever its outcome: an upload recognises its
    /// own object, and removing an object twice is harmless.
    pub(crate) fn may_repeat(self) -> bool {
        matches!(self, Self::Put | Self::Copy | Self::Delete)
    }

    /// Returns the kind of a request.
    pub(crate) fn of(request: &HttpRequest) -> Self {
        let query = request.uri().query().unwrap_or_default();
        let asks = |what: &str| query.split('&').any(|part| part == what);
        let has = |name: &str| request.headers().contains_key(name);
        match *request.method() {
            Method::HEAD => Self::Head,
            Method::GET if ["list-type=2", "comp=list", "uploads="].into_iter().any(asks) => Self::List,
            Method::GET => Self::Get,
            // For the machine's credentials.
            Method::PUT if has("x-aws-ec2-metadata-token-ttl-seconds") => Self::Other,
            Method::PUT if COPY_SOURCES.iter().any(|name| has(name)) => Self::Copy,
            // Azure completes uploads this way.
            Method::PUT if asks("comp=blocklist") => Self::BeginOrEnd,
            Method::PUT => Self::Put,
            Method::POST if query.contains("uploads") || query.contains("uploadId=") => Self::BeginOrEnd,
            Method::POST if asks("comp=batch") => Self::DeleteBatch,
            Method::DELETE => Self::Delete,
            _ => Self::Other,
        }
    }

    /// Returns the name of the kind in figures.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Head => "head",
            Self::List => "list",
            Self::Put => "put",
            Self::BeginOrEnd => "multipart",
            Self::Copy => "copy",
            Self::Delete => "delete",
            Self::DeleteBatch => "delete_batch",
            Self::Other => "other",
        }
    }
}

#[cfg(test)]
mod tests {
    use object_store::client::HttpRequestBody;

    use super::*;

    fn kind(method: Method, uri: &str, header: Option<&str>) -> RequestKind {
        let mut request = http::Request::builder().method(method).uri(uri);
        if let Some(header) = header {
            request = request.header(header, "x");
        }
        RequestKind::of(&request.body(HttpRequestBody::empty()).unwrap())
    }

    #[test]
    fn requests_are_counted_by_what_they_do() {
        use RequestKind as Kind;
        assert_eq!(kind(Method::PUT, "/b/k", None), Kind::Put);
        assert_eq!(kind(Method::PUT, "/b/k?partNumber=1&uploadId=x", None), Kind::Put);
        assert_eq!(kind(Method::POST, "/b/k?uploads=", None), Kind::BeginOrEnd);
        assert_eq!(kind(Method::POST, "/b/k?uploadId=x", None), Kind::BeginOrEnd);
        assert_eq!(kind(Method::PUT, "/c/k?comp=blocklist", None), Kind::BeginOrEnd);
        assert_eq!(kind(Method::DELETE, "/b/k?uploadId=x", None), Kind::Delete);
        for source in COPY_SOURCES {
            assert_eq!(kind(Method::PUT, "/b/k", Some(source)), Kind::Copy);
        }
        let batch = "/c?restype=container&comp=batch";
        assert_eq!(kind(Method::POST, batch, None), Kind::DeleteBatch);
        let token = "x-aws-ec2-metadata-token-ttl-seconds";
        assert_eq!(kind(Method::PUT, "/latest/api/token", Some(token)), Kind::Other);
        assert_eq!(kind(Method::POST, "/token", None), Kind::Other);
    }

    #[test]
    fn a_large_body_has_the_time_of_a_slow_line() {
        let of = |len| RequestKind::Put.time_max(len).unwrap().as_secs();
        assert_eq!((of(0), of(8 << 20)), (20, 148));
    }

    #[test]
    fn each_kind_is_at_its_number() {
        for (nr, kind) in RequestKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, nr, "{}", kind.name());
        }
    }
}
