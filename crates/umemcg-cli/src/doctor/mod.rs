//! `umemcg doctor`: checks whether this machine can run the requested daemon, with advice if not.
//!
//! `facts` inspects the machine, `checks` judges the facts. So tests can run the checks on facts of
//! broken machines. The command changes nothing: it touches no mount and no staging directory.

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
