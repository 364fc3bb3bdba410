//! What a check of `umemcg doctor` has found.

use serde::Serialize;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It is as it should be.
    Ok,
    /// A daemon works, but not as well as it could.
    Warn,
    /// A daemon as it is wanted does not work.
    Fail,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was checked.
    pub check: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What was found, and what it means.
    pub finding: String,
    /// What to do; none if it is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}
