//! Removes keys unusable as paths from a listing. `object_store` refuses them: one such key would
//! fail the listing of all others.

use quick_xml::Reader;
use quick_xml::events::Event;

/// The prefix of a listing of objects: an extension of the request.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListingPrefix(pub(crate) String);

/// The keys removed from a listing, or left out by `object_store`: an extension of the response.
#[derive(Debug, Clone)]
pub(crate) struct HiddenKeys(pub(crate) Vec<String>);

/// A listing's element for one key, and its child element containing the key.
type EntryNames = (&'static [u8], &'static [u8]);

/// The elements of S3 and Google, then of Azure.
const ENTRIES: [EntryNames; 4] =
    [(b"Contents", b"Key"), (b"CommonPrefixes", b"Prefix"), (b"Blob", b"Name"), (b"BlobPrefix", b"Name")];

/// Returns whether each name in a key is valid in a path. A trailing slash stands for a directory.
pub(crate) fn is_path(key: &str) -> bool {
    let names = key.strip_suffix('/').unwrap_or(key);
    let is_name = |name: &str| {
        !name.is_empty() && name != "." && name != ".." && !name.chars().any(|c| c.is_ascii_control())
    };
    names.split('/').all(is_name)
}

/// Returns a listing without such keys, and adds the keys to `hidden`; `None` if there are none, or
/// the body is no listing.
///
/// On Azure, also adds the object whose key is the listed prefix: `object_store` leaves it out.
/// Also adds an object whose key ends with a slash: only the listed directory's own object is
/// listed as a `Blob`.
pub(crate) fn without_hidden(body: &[u8], prefix: &str, hidden: &mut Vec<String>) -> Option<Vec<u8>> {
    // The reader does not count a byte order mark.
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let mut reader = Reader::from_reader(body);
    let mut kept: Vec<u8> = Vec::new();
    // The body is processed up to here.
    let mut done = 0;
    // The start of an entry, and its element names.
    let mut entry: Option<(usize, EntryNames)> = None;
    let mut key: Option<String> = None;
    let mut is_in_key = false;
    loop {
        let before = reader.buffer_position() as usize;
        match reader.read_event().ok()? {
            Event::Start(start) => match entry {
                None => {
                    let found = ENTRIES.iter().find(|(name, _)| *name == start.name().as_ref());
                    entry = found.map(|names| (before, *names));
                    key = None;
                }
                Some((_, (_, inside))) if start.name().as_ref() == inside && key.is_none() => {
                    (is_in_key, key) = (true, Some(String::new()));
                }
                Some(_) => {}
            },
            Event::Text(text) if is_in_key => key.as_mut()?.push_str(&text.decode().ok()?),
            Event::GeneralRef(reference) if is_in_key => {
                let resolved = match reference.resolve_char_ref().ok()? {
                    Some(char) => char.to_string(),
                    None => {
                        quick_xml::escape::resolve_predefined_entity(&reference.decode().ok()?)?.to_owned()
                    }
                };
                key.as_mut()?.push_str(&resolved);
            }
            Event::CData(text) if is_in_key => key.as_mut()?.push_str(&text.decode().ok()?),
            Event::End(end) => match entry {
                Some((_, (_, inside))) if is_in_key && end.name().as_ref() == inside => is_in_key = false,
                Some((start, (name, _))) if ENTRIES.iter().any(|(name, _)| *name == end.name().as_ref()) => {
                    entry = None;
                    let is_left_out = |key: &String| name == b"Blob" && (key.ends_with('/') || key == prefix);
                    if let Some(key) = key.take().filter(|key| !is_path(key) || is_left_out(key)) {
                        kept.extend_from_slice(&body[done..start]);
                        done = reader.buffer_position() as usize;
                        hidden.push(key);
                    }
                }
                _ => {}
            },
            Event::Eof => break,
            _ => {}
        }
    }
    (done > 0).then(|| {
        kept.extend_from_slice(&body[done..]);
        kept
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_has_names_and_nothing_else() {
        for good in ["a", "a/", "a/b", "...", "a b/ü", "a/.b"] {
            assert!(is_path(good), "{good}");
        }
        for bad in ["", "/", "/a", "a//b", "a//", "./a", "a/..", "a/../b", "a\nb"] {
            assert!(!is_path(bad), "{bad:?}");
        }
    }

    #[test]
    fn keys_that_are_no_path_leave_the_listing() {
        let listing = "<?xml version=\"1.0\"?><R><Prefix>x//</Prefix>\
            <Contents><Key>a&amp;b</Key><Size>1</Size></Contents>\
            <Contents><Key>a//b</Key><Owner><DisplayName>n</DisplayName></Owner></Contents>\
            <Contents><Key>c/&#46;&#46;/d</Key></Contents>\
            <CommonPrefixes><Prefix>p/</Prefix></CommonPrefixes>\
            <CommonPrefixes><Prefix>//</Prefix></CommonPrefixes></R>";
        let mut hidden = Vec::new();
        let kept = without_hidden(listing.as_bytes(), "", &mut hidden).unwrap();
        assert_eq!(hidden, ["a//b", "c/../d", "//"]);
        assert_eq!(
            String::from_utf8(kept).unwrap(),
            "<?xml version=\"1.0\"?><R><Prefix>x//</Prefix>\
            <Contents><Key>a&amp;b</Key><Size>1</Size></Contents>\
            <CommonPrefixes><Prefix>p/</Prefix></CommonPrefixes></R>"
        );
    }

    #[test]
    fn azure_lists_otherwise() {
        let listing = "<E><Blobs><Blob><Name>ok</Name><Properties><Etag>1</Etag></Properties></Blob>\
            <Blob><Name>d/</Name></Blob><BlobPrefix><Name>a//</Name></BlobPrefix>\
            <BlobPrefix><Name>a/</Name></BlobPrefix></Blobs></E>";
        let mut hidden = Vec::new();
        without_hidden(listing.as_bytes(), "ok", &mut hidden).unwrap();
        assert_eq!(hidden, ["ok", "d/", "a//"]);
        hidden.clear();
        let kept = without_hidden(listing.as_bytes(), "o", &mut hidden).unwrap();
        assert_eq!(hidden, ["d/", "a//"]);
        let kept = String::from_utf8(kept).unwrap();
        assert!(kept.contains("<Blob><Name>ok</Name>") && !kept.contains("d/"), "{kept}");
        assert!(kept.ends_with("</Blob><BlobPrefix><Name>a/</Name></BlobPrefix></Blobs></E>"), "{kept}");
    }

    proptest! {
        /// For any keys, the valid paths stay in order, and the others are reported as hidden.
        #[test]
        fn each_key_stays_or_is_told(keys in prop::collection::vec("[a./&<]{0,6}", 0..12)) {
            let entry = |key: &String| {
                let key = quick_xml::escape::escape(key.as_str());
                format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>")
            };
            let list = |keys: &[String]| format!("<R>{}</R>", keys.iter().map(entry).collect::<String>());
            let (paths, others): (Vec<_>, Vec<_>) = keys.iter().cloned().partition(|key| is_path(key));
            let (mut hidden, whole) = (Vec::new(), list(&keys));
            let with_mark = format!("\u{feff}{whole}");
            let kept = without_hidden(with_mark.as_bytes(), "", &mut hidden);
            let kept = kept.map_or(whole, |kept| String::from_utf8(kept).unwrap());
            prop_assert_eq!((kept, hidden), (list(&paths), others));
        }

        /// A damaged listing, or another body, passes unchanged or without some of its entries.
        #[test]
        fn a_damaged_listing_harms_nothing(at in 0usize..200, with: u8, text in "[<>/a-zA-Z&;#x0-9 ]{0,80}") {
            let mut listing = b"<R><Contents><Key>a//b</Key></Contents><Blob><Name>&#47;</Name></Blob></R>".to_vec();
            if let Some(byte) = listing.get_mut(at) {
                *byte = with;
            }
            let mut hidden = Vec::new();
            for listing in [listing.as_slice(), text.as_bytes()] {
                let kept = without_hidden(listing, "", &mut hidden);
                prop_assert!(kept.is_none_or(|kept| kept.len() < listing.len()));
            }
        }
    }

    #[test]
    fn what_needs_no_change_gets_none() {
        let mut hidden = Vec::new();
        let listing = b"<R><Contents><Key>a</Key></Contents></R>";
        assert_eq!(without_hidden(listing, "", &mut hidden), None);
        assert_eq!(without_hidden(b"no xml at all <", "", &mut hidden), None);
        assert!(hidden.is_empty());
    }
}
