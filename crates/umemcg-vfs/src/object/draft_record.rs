//! The record beside a draft: what a daemon that finds the draft after a crash has to know of it.
//!
//! Lines of a word and a value; a line break in a value is written as `\n`, a backslash as `\\`.

/// What is known of a draft.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct DraftRecord {
    /// The key that it is stored under.
    pub(super) key: String,
    /// The ETag of the version that it stands on; none for a new object.
    pub(super) base: Option<String>,
    /// An upload in parts that was begun and has not ended.
    pub(super) upload: Option<String>,
    /// All of it is in the store.
    pub(super) is_stored: bool,
}

/// The first line of every record.
const HEAD: &str = "umemcg draft 1";

impl DraftRecord {
    /// Returns it as the text of a file.
    pub(super) fn to_text(&self) -> String {
        let mut text = format!("{HEAD}\nkey {}\n", escaped(&self.key));
        for (word, value) in [("base", &self.base), ("upload", &self.upload)] {
            if let Some(value) = value {
                text += &format!("{word} {}\n", escaped(value));
            }
        }
        text + if self.is_stored { "stored\n" } else { "staged\n" }
    }

    /// Reads a text; `None` unless it is whole.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.strip_prefix(HEAD)?.strip_prefix('\n')?.strip_suffix('\n')?.split('\n');
        let is_stored = match lines.next_back()? {
            "stored" => true,
            "staged" => false,
            _ => return None,
        };
        let mut record = Self { is_stored, ..Self::default() };
        record.key = unescaped(lines.next()?.strip_prefix("key ")?);
        for line in lines {
            let (word, value) = line.split_once(' ')?;
            let value = Some(unescaped(value));
            match word {
                "base" => record.base = value,
                "upload" => record.upload = value,
                _ => return None,
            }
        }
        Some(record)
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('\n', "\\n")
}

fn unescaped(value: &str) -> String {
    let (mut plain, mut chars) = (String::with_capacity(value.len()), value.chars());
    while let Some(next) = chars.next() {
        match next {
            '\\' if chars.next() == Some('n') => plain.push('\n'),
            next => plain.push(next),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for key in ["a/b c", "", "back\\slash\\n", "line\nbreak"] {
            for (base, upload) in [(None, None), (Some("\"e\""), Some("id\n\\2"))] {
                let record = DraftRecord {
                    key: key.into(),
                    base: base.map(Into::into),
                    upload: upload.map(Into::into),
                    is_stored: base.is_none(),
                };
                let text = record.to_text();
                assert_eq!(DraftRecord::parse(&text), Some(record));
                assert_eq!(DraftRecord::parse(&text[..text.len() - 1]), None, "torn");
            }
        }
        assert_eq!(DraftRecord::parse(""), None);
        assert_eq!(DraftRecord::parse("umemcg draft 1\nstaged\n"), None);
    }
}
