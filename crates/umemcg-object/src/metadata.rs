//! The user metadata of an object in the form of `object_store`. They include the upload mark: an
//! upload recognises its own object by this mark.
//!
//! A PUT with a lost response is sent again, and its precondition then fails on the object stored
//! by the first attempt. An ETag does not identify the writer: two writers may store the same
//! bytes, and with encryption the ETag is not a function of the bytes. So every upload has a mark
//! of its own, and the store keeps it with the object.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use object_store::{Attribute, Attributes};
use umemcg_vfs::bucket::{Metadata, UNREADABLE, UPLOAD_MARK};

/// The headers of an object kept when its bytes change, and their names among its metadata: no user
/// metadata name has a colon.
const HEADERS: [(&str, Attribute); 6] = [
    (":cache-control", Attribute::CacheControl),
    (":content-disposition", Attribute::ContentDisposition),
    (":content-encoding", Attribute::ContentEncoding),
    (":content-language", Attribute::ContentLanguage),
    (":content-type", Attribute::ContentType),
    (":storage-class", Attribute::StorageClass),
];

/// Most metadata kept of an object, in bytes: S3 allows 2 KiB.
const METADATA_BYTES_MAX: usize = 8 << 10;

/// Returns the metadata with an upload mark. Adds a new mark, unique across uploads and processes,
/// if there is none.
pub(crate) fn marked(metadata: &Metadata) -> Metadata {
    let mut marked = metadata.clone();
    if mark_of(metadata).is_none() {
        marked.push((UPLOAD_MARK.to_owned(), new_mark()));
    }
    marked.sort();
    marked
}

/// Returns the mark of the upload that stored an object.
pub(crate) fn mark_of(metadata: &Metadata) -> Option<&str> {
    metadata.iter().find(|(name, _)| name == UPLOAD_MARK).map(|(_, mark)| mark.as_str())
}

fn new_mark() -> String {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // The standard library seeds its hashers with random numbers from the system.
    let process = PROCESS.get_or_init(|| RandomState::new().hash_one(std::process::id()));
    let nr = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{process:016x}{nr:08x}")
}

/// Returns metadata in the form of `object_store`; `None` if they are not valid in headers.
pub(crate) fn attributes_of(metadata: &Metadata) -> Option<Attributes> {
    // The characters of an HTTP token (RFC 9110, 5.6.2), in lower case, as stores return names.
    let is_in_name =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"!#$%&'*+-.^_`|~".contains(&byte);
    // This name stands for unreadable metadata, which storing the object anew would lose.
    let is_name = |name: &str| !name.is_empty() && name != UNREADABLE && name.bytes().all(is_in_name);
    let is_value = |value: &str| value.bytes().all(|byte| byte == b'\t' || (0x20..0x7f).contains(&byte));
    let attribute = |(name, value): &(String, String)| {
        let header = HEADERS.iter().find(|(header, _)| header == name);
        let attribute = match header {
            Some((_, attribute)) => attribute.clone(),
            None => is_name(name).then(|| Attribute::Metadata(name.clone().into()))?,
        };
        is_value(value).then(|| (attribute, value.clone()))
    };
    metadata.iter().map(attribute).collect()
}

/// Returns the metadata from a response. Metadata longer than `METADATA_BYTES_MAX` are unreadable.
pub(crate) fn metadata_of(attributes: &Attributes) -> Metadata {
    let mut metadata = Metadata::new();
    for (attribute, value) in attributes {
        let header = HEADERS.iter().find(|(_, header)| header == attribute);
        match (attribute, header) {
            (Attribute::Metadata(name), _) => metadata.push((name.to_string(), value.to_string())),
            (_, Some((name, _))) => metadata.push(((*name).to_owned(), value.to_string())),
            _ => {}
        }
    }
    metadata.sort();
    let len: usize = metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
    if len <= METADATA_BYTES_MAX { metadata } else { vec![(UNREADABLE.to_owned(), "1".to_owned())] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Metadata {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn what_is_sent_comes_back_with_a_mark() {
        let metadata =
            pairs(&[("xattr", "{\"user.a\":\"YQ==\"}"), ("mode", "33188"), ("a.b+c~", "another's")]);
        let sent = marked(&metadata);
        let found = metadata_of(&attributes_of(&sent).unwrap());
        assert_eq!(found, sent);
        assert!(metadata.iter().all(|pair| found.contains(pair)) && found.len() == 4);
        assert_ne!(mark_of(&found), mark_of(&marked(&metadata)), "of another upload");
        assert_eq!(mark_of(&marked(&sent)), mark_of(&sent), "one that is given stays");
    }

    #[test]
    fn what_no_header_can_have_is_refused() {
        for (name, value) in [
            ("", "x"),
            (UNREADABLE, "1"),
            ("Mode", "x"),
            ("a b", "x"),
            ("a:", "x"),
            ("a", "ü"),
            ("a", "x\r\nb: c"),
        ] {
            assert!(attributes_of(&pairs(&[(name, value)])).is_none(), "{name:?} {value:?}");
        }
    }

    #[test]
    fn headers_are_among_the_metadata() {
        let sent = pairs(&[(":content-type", "text/html"), ("a", "b")]);
        let attributes = attributes_of(&sent).unwrap();
        assert_eq!(attributes.get(&Attribute::ContentType).map(|value| &**value), Some("text/html"));
        assert_eq!(metadata_of(&attributes), sent);
        assert!(attributes_of(&pairs(&[(":content-length", "1")])).is_none());
    }

    #[test]
    fn metadata_too_long_to_keep_are_told() {
        let long = "x".repeat(METADATA_BYTES_MAX);
        let attributes = attributes_of(&pairs(&[("a", &long)])).unwrap();
        assert_eq!(metadata_of(&attributes), pairs(&[(UNREADABLE, "1")]));
    }

    #[test]
    fn no_two_marks_are_the_same() {
        let marks: std::collections::HashSet<_> = (0..1000).map(|_| new_mark()).collect();
        assert_eq!(marks.len(), 1000);
    }
}
