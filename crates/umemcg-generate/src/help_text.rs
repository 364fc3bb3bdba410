//! The examples and the exit codes in the long help of the program, taken apart.

/// An example: the command, and the indented lines below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example<'a> {
    /// The command.
    pub command: &'a str,
    /// Its explanation, and further commands; without the common indentation.
    pub explanation: Vec<&'a str>,
}

impl Example<'_> {
    /// Returns whether it shows the command of this name, such as `umemcg volume add`.
    pub fn shows(&self, name: &str) -> bool {
        std::iter::once(&self.command)
            .chain(&self.explanation)
            .filter_map(|line| line.trim().strip_prefix(name))
            .any(|rest| rest.is_empty() || rest.starts_with(' '))
    }
}

/// Returns the lines below a heading, such as `Examples:`, up to the next one.
fn section<'a>(text: &'a str, heading: &str) -> impl Iterator<Item = &'a str> {
    let lines = text.lines().skip_while(move |line| line.strip_suffix(':') != Some(heading)).skip(1);
    lines.take_while(|line| line.is_empty() || line.starts_with(' '))
}

/// Returns the examples of a long help.
pub fn examples(text: &str) -> Vec<Example<'_>> {
    let mut found: Vec<Example<'_>> = Vec::new();
    for line in section(text, "Examples") {
        if let Some(command) = line.strip_prefix("  ").filter(|rest| rest.starts_with("umemcg")) {
            found.push(Example { command, explanation: Vec::new() });
        } else if let Some(last) = found.last_mut() {
            last.explanation.push(line.get(6..).unwrap_or_default());
        }
    }
    for example in &mut found {
        while example.explanation.last().is_some_and(|line| line.is_empty()) {
            example.explanation.pop();
        }
    }
    found
}

/// Returns the exit codes of a long help, with their meanings.
pub fn exit_codes(text: &str) -> Vec<(&str, &str)> {
    section(text, "Exit status").filter_map(|line| line.trim().split_once("  ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELP: &str = "Examples:\n  umemcg a\n      Does this.\n\n        umemcg b c   # that\n\n  umemcg d\n\nExit status:\n  0  good\n  1  bad";

    #[test]
    fn a_help_is_taken_apart() {
        let found = examples(HELP);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].explanation, ["Does this.", "", "  umemcg b c   # that"]);
        assert!(found[0].shows("umemcg a") && found[0].shows("umemcg b c"));
        assert!(!found[0].shows("umemcg d") && !found[1].shows("umemcg a"));
        assert_eq!(exit_codes(HELP), [("0", "good"), ("1", "bad")]);
    }
}
