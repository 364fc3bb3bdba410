use super::traces::Trace;
use crate::options::Failure;
use std::path::Path;
pub(super) fn record(_scale: f64, _place: &Path, _notes: &mut Vec<String>) -> Result<Vec<Trace>, Failure> {
    Ok(Vec::new())
}
