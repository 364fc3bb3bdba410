//! A failure with the HTTP status of the response. The status must not be searched for in the whole
//! text, because the text contains keys.

use std::error::Error as _;

use http::StatusCode;
use object_store::Error;
use umemcg_vfs::object::BucketError;

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

/// The start of the innermost error text of `object_store` for a failure with a response. The
/// status is available in no other way.
const STATUS: &str = "Server returned non-2xx status code: ";

fn status_of(error: &Error) -> Option<StatusCode> {
    let mut at = error.source();
    while let Some(cause) = at {
        if let Some(status) = cause.to_string().strip_prefix(STATUS) {
            return StatusCode::from_bytes(status.get(..3)?.as_bytes()).ok();
        }
        at = cause.source();
    }
    None
}
