//! A failure with the HTTP status of the response. The status is read from its place in the error
//! text: a search of the whole text could find the digits in a key.

use std::error::Error as _;

use http::StatusCode;
use object_store::Error;
use umemcg_vfs::bucket::BucketError;

/// See the module text.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) error: BucketError,
    /// `None` without a response from the store.
    status: Option<StatusCode>,
}

impl Refusal {
    /// Returns a failure of `object_store`, reported as `error`.
    pub(crate) fn new(error: BucketError, cause: &Error) -> Self {
        Self { error, status: status_of(cause) }
    }

    /// Returns whether the store does not support a header of the request.
    pub(crate) fn is_unknown_to_store(&self) -> bool {
        self.status == Some(StatusCode::METHOD_NOT_ALLOWED)
    }

    /// Returns whether the store was busy with another change of the same object.
    pub(crate) fn is_conflict(&self) -> bool {
        self.status == Some(StatusCode::CONFLICT)
    }
}

impl From<BucketError> for Refusal {
    fn from(error: BucketError) -> Self {
        Self { error, status: None }
    }
}

impl From<Refusal> for BucketError {
    fn from(refusal: Refusal) -> Self {
        refusal.error
    }
}

/// Returns whether the store says that there is no such multipart upload: a 404 alone may come from
/// a gateway that has lost its route.
pub(crate) fn says_no_upload(error: &Error) -> bool {
    answer_of(error).is_some_and(|answer| answer.split(": ").nth(1) == Some("NoSuchUpload"))
}

/// The start of the innermost error text of `object_store` for a failure with a response. The
/// status is available in no other way.
const STATUS: &str = "Server returned non-2xx status code: ";

fn status_of(error: &Error) -> Option<StatusCode> {
    StatusCode::from_bytes(answer_of(error)?.get(..3)?.as_bytes()).ok()
}

/// Returns the response behind a failure: the status, the store's code and its message, with colons
/// between them.
fn answer_of(error: &Error) -> Option<String> {
    let mut at = error.source();
    while let Some(cause) = at {
        if let Some(answer) = cause.to_string().strip_prefix(STATUS) {
            return Some(answer.to_owned());
        }
        at = cause.source();
    }
    None
}
