//! The result of a check of `umemcg doctor`.

use serde::Serialize;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// No problem.
    Ok,
    /// A daemon works, but not as well as it could.
    Warn,
    /// The requested daemon does not work.
    Fail,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the check.
    pub check: &'static str,
    /// Its severity.
    pub severity: Severity,
    /// The finding, and its meaning.
    pub finding: String,
    /// The advice; none if there is no problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}
