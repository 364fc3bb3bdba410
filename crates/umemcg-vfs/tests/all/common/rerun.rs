//! Runs an ignored test of the same program again in other circumstances.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Runs the ignored test `claim` of this program under `wrapper`, in a directory of its own.
/// Returns `false` if the wrapper does not work here, which is said.
pub fn rerun(wrapper: &[&str], claim: &str, directory: &Path) -> bool {
    let program = std::env::current_exe().unwrap();
    let works = Command::new(wrapper[0])
        .args(&wrapper[1..])
        .arg(&program)
        .arg("--list")
        .current_dir("/")
        .output()
        .is_ok_and(|out| out.status.success());
    if !works {
        eprintln!("SKIPPED {claim}: cannot run {} under {}", program.display(), wrapper.join(" "));
        return false;
    }
    let output = Command::new(wrapper[0])
        .args(&wrapper[1..])
        .arg(&program)
        .args(["--exact", claim, "--include-ignored", "--nocapture", "--test-threads", "1"])
        .env("TMPDIR", directory)
        .env("UMEMCG_RERUN", "1")
        .current_dir(directory)
        .process_group(0)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    true
}

/// Returns whether this is such a second run; a plain `--include-ignored` must not take root's
/// place.
pub fn is_rerun() -> bool {
    std::env::var_os("UMEMCG_RERUN").is_some()
}
