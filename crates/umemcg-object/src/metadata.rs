//! The user metadata of an object, as the library has them, and a token among them by which an
//! upload knows its own object again.
//!
//! A PUT whose answer is lost is sent again, and its condition then fails on the object that the
//! first one stored. An ETag does not tell whose object that is: two writers may store the same
//! bytes, and with encryption it is no function of the bytes at all. So every upload has a token of
//! its own, which the store keeps with the object.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use object_store::{Attribute, Attributes};
use umemcg_vfs::object::Metadata;

/// The name of the token: one that S3, Google and Azure allow and that proxies let through.
const TOKEN_NAME: &str = "umemcgupload";
/// What is kept of an object's metadata, in bytes: S3 allows 2 KiB.
const METADATA_BYTES_MAX: usize = 8 << 10;

/// Returns a token that no other upload has, of this process or of another.
pub(crate) fn new_token() -> String {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // The standard library's hashers begin with random numbers of the system.
    let process = PROCESS.get_or_init(|| RandomState::new().hash_one(std::process::id()));
    let nr = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{process:016x}{nr:08x}")
}

/// Returns metadata and a token as the library sends them; `None` if no header can have them.
pub(crate) fn attributes_of(metadata: &Metadata, token: &str) -> Option<Attributes> {
    let is_name = |name: &str| {
        !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte))
    };
    let is_value = |value: &str| value.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    if !metadata.iter().all(|(name, value)| is_name(name) && is_value(value)) {
        return None;
    }
    let pairs = metadata.iter().filter(|(name, _)| name != TOKEN_NAME).cloned();
    let pairs = pairs.chain([(TOKEN_NAME.to_owned(), token.to_owned())]);
    Some(pairs.map(|(name, value)| (Attribute::Metadata(name.into()), value)).collect())
}

/// Returns the metadata and the token of an object that was asked for. Metadata that take more
/// memory than any have reason to are left out.
pub(crate) fn metadata_of(attributes: &Attributes) -> (Option<Arc<Metadata>>, Option<String>) {
    let (mut metadata, mut token, mut len) = (Metadata::new(), None, 0);
    for (attribute, value) in attributes {
        let Attribute::Metadata(name) = attribute else { continue };
        if name == TOKEN_NAME {
            token = Some(value.to_string());
        } else {
            len += name.len() + value.len();
            metadata.push((name.to_string(), value.to_string()));
        }
    }
    metadata.sort();
    ((len <= METADATA_BYTES_MAX).then(|| Arc::new(metadata)), token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Metadata {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn what_is_sent_comes_back_without_the_token() {
        let metadata = pairs(&[("mode", "33188"), ("xattr", "{\"user.a\":\"YQ==\"}")]);
        let attributes = attributes_of(&metadata, "t1").unwrap();
        let (found, token) = metadata_of(&attributes);
        assert_eq!((found.as_deref(), token.as_deref()), (Some(&metadata), Some("t1")));
        let stale = pairs(&[(TOKEN_NAME, "t0")]);
        assert_eq!(metadata_of(&attributes_of(&stale, "t1").unwrap()).1.as_deref(), Some("t1"));
    }

    #[test]
    fn what_no_header_can_have_is_refused() {
        for (name, value) in
            [("", "x"), ("Mode", "x"), ("a b", "x"), ("a:", "x"), ("a", "ü"), ("a", "x\r\nb: c")]
        {
            assert!(attributes_of(&pairs(&[(name, value)]), "t").is_none(), "{name:?} {value:?}");
        }
    }

    #[test]
    fn metadata_without_end_are_not_kept() {
        let long = "x".repeat(METADATA_BYTES_MAX);
        let attributes = attributes_of(&pairs(&[("a", &long)]), "t").unwrap();
        assert_eq!(metadata_of(&attributes), (None, Some("t".into())));
    }

    #[test]
    fn no_two_tokens_are_the_same() {
        let tokens: std::collections::HashSet<_> = (0..1000).map(|_| new_token()).collect();
        assert_eq!(tokens.len(), 1000);
    }
}
