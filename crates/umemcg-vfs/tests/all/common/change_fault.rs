//! How a change of a bucket in memory fails.

use umemcg_vfs::bucket::BucketError;

/// What becomes of a change.
#[derive(Debug, Clone)]
pub enum ChangeFault {
    /// The store does not take it.
    Refused(BucketError),
    /// It takes effect, but the answer is lost.
    AnswerLost,
    /// The daemon is killed before the end of an upload in parts, so to speak: the upload stays.
    Crash,
}
