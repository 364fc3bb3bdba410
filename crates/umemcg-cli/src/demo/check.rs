//! The checks at the end of a demo.

use serde::Serialize;

use crate::exit::Failure;

/// A claim, and whether it holds.
#[derive(Debug, Serialize)]
pub(super) struct Check {
    pub(super) what: String,
    pub(super) holds: bool,
}

/// Fails if a check does not hold.
pub(super) fn end_with(checks: &[Check]) -> Result<(), Failure> {
    let broken: Vec<&str> =
        checks.iter().filter(|check| !check.holds).map(|check| check.what.as_str()).collect();
    if broken.is_empty() {
        Ok(())
    } else {
        Err(Failure::Failed(format!("does not hold: {}", broken.join("; "))))
    }
}

/// Returns a line for each check.
pub(super) fn shown(checks: &[Check]) -> String {
    checks.iter().map(|check| format!("{:<5}{}\n", yes(check.holds), check.what)).collect()
}

pub(super) fn yes(holds: bool) -> &'static str {
    if holds { "yes" } else { "NO" }
}
