//! Membership rules: the first line is a rule, each further line a subject to match.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use umemcg_control::is_control_file_name;
use umemcg_fuse::Rule;

use crate::outcome::Outcome;

/// Places subjects by a rule. Every name returned must be valid for a group.
///
/// # Panics
/// When the product breaks a promise.
pub fn rules(input: &[u8]) -> Outcome {
    let mut outcome = Outcome::default();
    let mut lines = input.split(|&byte| byte == b'\n');
    let Ok(text) = std::str::from_utf8(lines.next().unwrap_or_default()) else { return outcome };
    let rule: Rule = match text.parse() {
        Ok(rule) => rule,
        Err(error) => {
            let reason = format!("{error}").replacen(text, "", 1);
            outcome.note(reason);
            return outcome;
        }
    };
    for subject in lines {
        let names = rule.place(subject);
        outcome.note((rule.kind() as u8, names.as_ref().map(Vec::len)));
        for name in names.unwrap_or_default() {
            assert!(can_name_a_group(&name), "'{text}' makes {subject:?} the group {name:?}");
        }
    }
    outcome
}

fn can_name_a_group(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    let is_name = !matches!(bytes, b"" | b"." | b"..") && bytes.len() <= 255;
    is_name && !bytes.iter().any(|byte| b"/\n\0".contains(byte)) && !is_control_file_name(name)
}
