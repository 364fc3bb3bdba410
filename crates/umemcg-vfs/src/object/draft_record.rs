//! The record beside a draft, for a daemon that finds the draft after a crash.
//!
//! Lines of a word and a value; a line break in a value is written as `\n`, a backslash as `\\`.
//! The last line is the state. The record of an accepted draft has everything needed to store it:
//! the version that it replaces, its metadata, its length, and the prefix of its upload marks. The
//! marks identify an upload whose answer was lost.

use std::sync::Arc;

use super::bucket::{Metadata, ObjectInfo};
use crate::attr::Timestamp;

/// The content of a record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct DraftRecord {
    /// The key it is stored under.
    pub(super) key: String,
    /// The base version, without attributes; `None` for a new object.
    pub(super) base: Option<ObjectInfo>,
    /// The key and the id of a multipart upload that has not ended.
    pub(super) upload: Option<(String, String)>,
    pub(super) state: DraftState,
}

/// The fate of a draft found by a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum DraftState {
    /// It is deleted: all of it is in the store, or its name was removed.
    #[default]
    Stored,
    /// It is kept: it was being written.
    Staged,
    /// It is stored: a close or an fsync has promised that.
    Accepted(Promise),
}

/// Everything needed to store an accepted draft.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Promise {
    /// The number of accepted changes.
    pub(super) nr_changes: u64,
    /// Its length in bytes at that time.
    pub(super) len: u64,
    /// The prefix of its upload marks.
    pub(super) mark: String,
    /// The metadata stored with its bytes.
    pub(super) metadata: Metadata,
}

/// The first line of every record.
const HEAD: &str = "umemcg draft 1";

impl DraftRecord {
    /// Returns it as the text of a file.
    pub(super) fn to_text(&self) -> String {
        let mut text = format!("{HEAD}\n");
        let mut put = |word: &str, value: &str| text += &format!("{word} {}\n", escaped(value));
        put("key", &self.key);
        if let Some(base) = &self.base {
            let Timestamp { seconds, nanoseconds } = base.modified;
            put("version", &format!("{} {seconds} {nanoseconds}", base.size));
            base.etag.iter().for_each(|etag| put("base", etag));
        }
        if let Some((key, upload)) = &self.upload {
            put("upload", upload);
            if *key != self.key {
                put("upload-key", key);
            }
        }
        let state = match &self.state {
            DraftState::Stored => "stored\n",
            DraftState::Staged => "staged\n",
            DraftState::Accepted(promise) => {
                put("changes", &promise.nr_changes.to_string());
                put("length", &promise.len.to_string());
                put("mark", &promise.mark);
                promise.metadata.iter().for_each(|(name, value)| put("metadata", &format!("{name} {value}")));
                "accepted\n"
            }
        };
        text + state
    }

    /// Reads a text; `None` unless it is whole.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.strip_prefix(HEAD)?.strip_prefix('\n')?.strip_suffix('\n')?.split('\n');
        let state = lines.next_back()?;
        let mut record = Self { key: unescaped(lines.next()?.strip_prefix("key ")?), ..Self::default() };
        let mut promise = Promise::default();
        for line in lines {
            let (word, value) = line.split_once(' ')?;
            let value = unescaped(value);
            match word {
                "version" => record.base = Some(version(&value)?),
                "base" => record.base.as_mut()?.etag = Some(value.into()),
                "upload" => record.upload = Some((record.key.clone(), value)),
                "upload-key" => record.upload.as_mut()?.0 = value,
                "changes" => promise.nr_changes = value.parse().ok()?,
                "length" => promise.len = value.parse().ok()?,
                "mark" => promise.mark = value,
                "metadata" => {
                    let (name, value) = value.split_once(' ')?;
                    promise.metadata.push((name.to_owned(), value.to_owned()));
                }
                _ => return None,
            }
        }
        record.state = match state {
            "stored" => DraftState::Stored,
            "staged" => DraftState::Staged,
            "accepted" if promise.nr_changes > 0 && !promise.mark.is_empty() => DraftState::Accepted(promise),
            _ => return None,
        };
        Some(record)
    }
}

/// Reads length and time of a version.
fn version(text: &str) -> Option<ObjectInfo> {
    let mut numbers = text.split(' ');
    let size = numbers.next()?.parse().ok()?;
    let (seconds, nanoseconds) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    let modified = Timestamp { seconds, nanoseconds };
    Some(ObjectInfo { size, modified, etag: None::<Arc<str>>, metadata: None, attributes: None })
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

    fn states() -> [DraftState; 3] {
        let metadata = vec![("mode".into(), "33188".into()), ("colour".into(), "two\nlines \\".into())];
        let promise = Promise { nr_changes: 3, len: 17, mark: "1-2-3-".into(), metadata };
        [DraftState::Stored, DraftState::Staged, DraftState::Accepted(promise)]
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let modified = Timestamp { seconds: -3, nanoseconds: 5 };
        let base = |etag: Option<&str>| ObjectInfo {
            size: 7,
            modified,
            etag: etag.map(Into::into),
            metadata: None,
            attributes: None,
        };
        let upload = |key: &str| Some((key.to_owned(), "id\n\\2".to_owned()));
        for key in ["a/b c", "", "back\\slash\\n", "line\nbreak"] {
            for state in states() {
                for (base, upload) in [
                    (None, None),
                    (Some(base(None)), upload(key)),
                    (Some(base(Some("\"e\""))), upload("other")),
                ] {
                    let record = DraftRecord { key: key.into(), base, upload, state: state.clone() };
                    let text = record.to_text();
                    assert_eq!(DraftRecord::parse(&text), Some(record));
                    assert_eq!(DraftRecord::parse(&text[..text.len() - 1]), None, "torn");
                }
            }
        }
        for text in ["", "umemcg draft 1\nstaged\n", "umemcg draft 1\nkey a\naccepted\n"] {
            assert_eq!(DraftRecord::parse(text), None, "{text}");
        }
    }
}
