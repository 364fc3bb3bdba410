//! The file of `umemcg mount --config`, applied to a hierarchy up to the step of mounting.

use umemcg_control::Style;

use crate::hierarchy::Hierarchy;
use crate::outcome::Outcome;

/// Upper bound of the groups: more are not worth the time.
const NR_GROUPS_MAX: usize = 32;

/// Applies a file. An error must name the place in the file.
///
/// # Panics
/// When the product breaks a promise.
pub fn config(input: &[u8]) -> Outcome {
    let mut outcome = Outcome::default();
    let Ok(text) = std::str::from_utf8(input) else { return outcome };
    if text.matches("groups").count() > NR_GROUPS_MAX {
        return outcome;
    }
    let groups = Hierarchy::new(Style::Both);
    match umemcg_cli::fuzzing::apply_config(text, &groups.tree) {
        Ok(volumes) => outcome.note(volumes.len()),
        Err(error) => {
            let said = error.strip_prefix("fuzz.toml:").unwrap_or_else(|| panic!("names no file: {error}"));
            assert!(said.contains("line ") || said.starts_with(|at: char| at.is_ascii_digit()), "{error}");
            // Without words from the file itself.
            let words = said.split(' ').filter(|word| word.bytes().all(|byte| byte.is_ascii_lowercase()));
            outcome.note(words.collect::<Vec<_>>());
        }
    }
    groups.finish();
    outcome
}
