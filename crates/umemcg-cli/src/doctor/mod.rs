//! `umemcg doctor`: whether this machine can run a daemon as it is wanted, and what to do if not.
//!
//! `facts` reads the machine, `checks` judges. So the checks can be tested with the facts of bad
//! machines. Nothing is changed: no mount, no staging directory is touched.

pub mod arguments;
mod checks;
mod facts;
mod finding;

use crate::exit::Failure;
use crate::volumes::print;

use arguments::DoctorArguments;
use facts::Facts;
use finding::{Finding, Severity};

/// Runs `umemcg doctor`.
///
/// # Errors
/// [`Failure::Failed`] if a check fails.
pub fn doctor(arguments: &DoctorArguments) -> Result<(), Failure> {
    let findings = checks::findings(&Facts::gather(arguments));
    print(arguments.json, &findings, || text(&findings))?;
    match findings.iter().filter(|finding| finding.severity == Severity::Fail).count() {
        0 => Ok(()),
        1 => Err(Failure::Failed("one check failed".into())),
        nr => Err(Failure::Failed(format!("{nr} checks failed"))),
    }
}

fn text(findings: &[Finding]) -> String {
    let lines = findings.iter().map(|Finding { check, severity, finding, advice }| {
        let severity = match severity {
            Severity::Ok => "ok",
            Severity::Warn => "warn",
            Severity::Fail => "FAIL",
        };
        let advice = advice.iter().map(|advice| format!("      {:16} -> {advice}\n", "")).collect::<String>();
        format!("{severity:5} {check:16} {finding}\n{advice}")
    });
    lines.collect()
}
