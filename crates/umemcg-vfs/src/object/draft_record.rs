//! The record beside a draft, for a daemon that finds the draft after a crash.
//!
//! Lines of a word and a value; a line break in a value is written as `\n`, a backslash as `\\`.
//! The last line is the state. Unknown words are skipped: another release may have written them.

/// The content of a record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct DraftRecord {
    /// The key it is stored under.
    pub(super) key: String,
    /// The key and the id of a multipart upload that has not ended.
    pub(super) upload: Option<(String, String)>,
    pub(super) state: DraftState,
}

/// The fate of a draft found by a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum DraftState {
    /// It is deleted: all of it is in the store, or its name was removed.
    #[default]
    Stored,
    /// It is kept: changes of it are not in the store.
    Staged,
}

/// The first line of every record.
const HEAD: &str = "umemcg draft 1";

impl DraftRecord {
    /// Returns it as the text of a file.
    pub(super) fn to_text(&self) -> String {
        let mut text = format!("{HEAD}\n");
        let mut put = |word: &str, value: &str| text += &format!("{word} {}\n", escaped(value));
        put("key", &self.key);
        if let Some((key, upload)) = &self.upload {
            put("upload", upload);
            if *key != self.key {
                put("upload-key", key);
            }
        }
        let state = match self.state {
            DraftState::Stored => "stored\n",
            DraftState::Staged => "staged\n",
        };
        text + state
    }

    /// Reads a text; `None` unless it is whole.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.strip_prefix(HEAD)?.strip_prefix('\n')?.strip_suffix('\n')?.split('\n');
        let state = lines.next_back()?;
        let mut record = Self { key: unescaped(lines.next()?.strip_prefix("key ")?), ..Self::default() };
        for line in lines {
            let (word, value) = line.split_once(' ')?;
            let value = unescaped(value);
            match word {
                "upload" => record.upload = Some((record.key.clone(), value)),
                "upload-key" => record.upload.as_mut()?.0 = value,
                _ => {}
            }
        }
        record.state = match state {
            "stored" => DraftState::Stored,
            "staged" => DraftState::Staged,
            _ => return None,
        };
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
        let upload = |key: &str| Some((key.to_owned(), "id\n\\2".to_owned()));
        for key in ["a/b c", "", "back\\slash\\n", "line\nbreak"] {
            for state in [DraftState::Stored, DraftState::Staged] {
                for upload in [None, upload(key), upload("other")] {
                    let record = DraftRecord { key: key.into(), upload, state };
                    let text = record.to_text();
                    assert_eq!(DraftRecord::parse(&text), Some(record));
                    assert_eq!(DraftRecord::parse(&text[..text.len() - 1]), None, "torn");
                }
            }
        }
        let record = DraftRecord { key: "a".into(), upload: upload("a"), state: DraftState::Staged };
        let of_another_release = record.to_text().replace("staged", "base \"etag\" 7\nstaged");
        assert_eq!(DraftRecord::parse(&of_another_release), Some(record));
        for text in ["", "umemcg draft 1\nstaged\n", "umemcg draft 1\nkey a\nkept\n"] {
            assert_eq!(DraftRecord::parse(text), None, "{text}");
        }
    }
}
