//! The table of control files as a page of documentation.

use std::fmt::Write;

use crate::row::Scope;
use crate::style::Version;
use crate::table::ROWS;

/// Marks the beginning of the generated part of a document.
pub const BEGIN_MARK: &str =
    "<!-- control files: generated from the table in umemcg-control, do not edit -->";
/// Marks its end.
pub const END_MARK: &str = "<!-- control files: end -->";

/// Returns the table in Markdown, between its marks.
pub fn markdown() -> String {
    let mut text = format!(
        "{BEGIN_MARK}\n| file | names of | mode | on the root | what it is |\n|---|---|---|---|---|\n"
    );
    for row in ROWS {
        let version = match row.version {
            Version::V1 => "v1",
            Version::V2 => "v2",
            Version::Both => "both",
            Version::Own => "—",
        };
        let on_root = match row.scope {
            Scope::Everywhere => "yes",
            Scope::NotRoot => "no",
            Scope::RootOnly => "only",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| `{}` | {version} | {:04o} | {on_root} | {} |", row.name, row.mode, row.doc);
    }
    text + END_MARK + "\n"
}

/// Returns `document` with its generated part replaced; `None` if it has no such part.
pub fn refresh(document: &str) -> Option<String> {
    let (before, rest) = document.split_once(BEGIN_MARK)?;
    let (_, after) = rest.split_once(END_MARK)?;
    Some(format!("{before}{}{}", markdown(), after.strip_prefix('\n').unwrap_or(after)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refreshed_document_keeps_what_people_wrote() {
        let document = format!("# Files\n\n{BEGIN_MARK}\nold\n{END_MARK}\n\nMore.\n");
        let fresh = refresh(&document).unwrap();
        assert_eq!(fresh, format!("# Files\n\n{}\nMore.\n", markdown()));
        assert_eq!(refresh(&fresh).as_deref(), Some(&*fresh));
        assert_eq!(refresh("# Files\n"), None);
    }

    /// Compares the document with the table. With `UPDATE_DOCS` in the environment, brings the
    /// document up to date instead.
    #[test]
    fn the_document_shows_the_table_as_it_is() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/semantics/control-files.md");
        let Ok(document) = std::fs::read_to_string(path) else { return };
        let fresh = refresh(&document).unwrap_or_else(|| {
            panic!("control-files.md has no table of control files; put in\n{BEGIN_MARK}\n{END_MARK}")
        });
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, fresh).unwrap();
        } else {
            assert!(
                fresh == document,
                "control-files.md is out of date: UPDATE_DOCS=1 cargo test -p umemcg-control doc"
            );
        }
    }
}
