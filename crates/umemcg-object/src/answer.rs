//! Recognises responses of stores. A success status alone proves nothing: a login page, a late
//! error or an empty body may have it. So a response is accepted by the root element of its XML,
//! or, without a body, by its headers.

use http::header::LAST_MODIFIED;
use http::{HeaderMap, StatusCode};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

/// The elements of a listing page that say whether another page follows.
#[derive(Debug, Default, PartialEq, Eq)]
struct Continuation {
    /// From S3 and Google.
    is_truncated: Option<String>,
    /// The continuation token; Azure's is empty at the end.
    token: Option<String>,
}

/// The root elements of listings, each with its continuation token element.
const LISTINGS: [(&str, &[u8]); 3] = [
    ("ListBucketResult", b"NextContinuationToken"),
    ("ListMultipartUploadsResult", b"NextKeyMarker"),
    // Azure's.
    ("EnumerationResults", b"NextMarker"),
];

/// Why a response to a LIST request is not a complete listing.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum NoListing {
    #[error("the store's answer to a LIST is no listing, but {0}")]
    Other(String),
    #[error("the store's listing ends in its middle")]
    Unfinished,
    #[error("the store's listing does not say whether it goes on, and where")]
    Contradiction,
}

/// The root elements of non-empty responses to mutating requests.
const CHANGES: [&str; 5] = [
    "CopyObjectResult",
    "CopyPartResult",
    "InitiateMultipartUploadResult",
    "CompleteMultipartUploadResult",
    "DeleteResult",
];

/// Returns whether a body is a store's response to a mutating request.
pub(crate) fn is_of_change(body: &[u8]) -> bool {
    let mut reader = Reader::from_reader(body);
    loop {
        match reader.read_event() {
            Ok(Event::Start(root) | Event::Empty(root)) => return CHANGES.contains(&name_of(&root).as_str()),
            Ok(Event::Eof) => return true,
            Ok(Event::Text(text)) if !text.iter().all(u8::is_ascii_whitespace) => return false,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}

/// Returns whether a successful HEAD response may describe an object: an object has a modification
/// time, most pages of gateways have none. An ETag proves nothing: web servers compute one for any
/// page, and some stores send none.
pub(crate) fn is_of_object(headers: &HeaderMap) -> bool {
    headers.contains_key(LAST_MODIFIED)
}

/// A header of each response from Azure.
const AZURE_REQUEST: &str = "x-ms-request-id";

/// Returns whether a success status is a store's response to a DELETE request: 204, or Azure's 202.
/// Any other success may come from a gateway without a store.
pub(crate) fn is_of_deletion(status: StatusCode, headers: &HeaderMap) -> bool {
    status == StatusCode::NO_CONTENT || status == StatusCode::ACCEPTED && headers.contains_key(AZURE_REQUEST)
}

/// Returns the element's name without a namespace prefix.
fn name_of(start: &BytesStart<'_>) -> String {
    String::from_utf8_lossy(start.local_name().as_ref()).chars().take(40).collect()
}

/// Checks that a body is a complete listing page, of objects or of multipart uploads, and says
/// whether another page follows.
///
/// # Errors
/// [`NoListing`].
pub(crate) fn check_listing(body: &[u8]) -> Result<(), NoListing> {
    let mut reader = Reader::from_reader(body);
    let (mut root, mut depth, mut continuation) = (String::new(), 0, Continuation::default());
    let mut text = String::new();
    let mut token: Option<&[u8]> = None;
    loop {
        match reader.read_event() {
            Ok(Event::Start(start)) => {
                if depth == 0 && root.is_empty() {
                    root = name_of(&start);
                    token = LISTINGS.iter().find(|(name, _)| *name == root).map(|(_, token)| *token);
                }
                depth += 1;
                text.clear();
            }
            Ok(Event::Empty(empty)) if depth == 0 && root.is_empty() => root = name_of(&empty),
            Ok(Event::Empty(empty)) if depth == 1 => {
                continuation.take(empty.local_name().as_ref(), token, String::new());
            }
            Ok(Event::Text(part)) => text.push_str(&part.decode().unwrap_or_default()),
            Ok(Event::CData(part)) => text.push_str(&part.decode().unwrap_or_default()),
            // Any character will do here.
            Ok(Event::GeneralRef(_)) => text.push('&'),
            Ok(Event::End(end)) => {
                depth -= 1;
                if depth == 1 {
                    continuation.take(end.local_name().as_ref(), token, std::mem::take(&mut text));
                }
            }
            Ok(Event::Eof) | Err(_) => break,
            Ok(_) => {}
        }
    }
    match root.as_str() {
        "" => Err(NoListing::Other("no XML".into())),
        _ if token.is_none() => Err(NoListing::Other(format!("<{root}>"))),
        _ if depth > 0 => Err(NoListing::Unfinished),
        "EnumerationResults" => continuation.token.map(drop).ok_or(NoListing::Contradiction),
        _ => continuation.check_of_s3(),
    }
}

impl Continuation {
    fn take(&mut self, name: &[u8], token: Option<&[u8]>, text: String) {
        let text = text.trim().to_owned();
        if name == b"IsTruncated" {
            self.is_truncated = Some(text);
        } else if Some(name) == token {
            self.token = Some(text);
        }
    }

    /// A page with both `IsTruncated` false and a token is complete: S3 and Ceph send both in lists
    /// of uploads. fake-gcs-server omits `IsTruncated`.
    fn check_of_s3(&self) -> Result<(), NoListing> {
        let has_token = self.token.as_ref().is_some_and(|token| !token.is_empty());
        match self.is_truncated.as_deref() {
            None | Some("false") => Ok(()),
            Some("true") if has_token => Ok(()),
            _ => Err(NoListing::Contradiction),
        }
    }
}

/// Returns the code of an error body, whatever the status of the response.
pub(crate) fn error_code(body: &[u8]) -> Option<String> {
    let mut reader = Reader::from_reader(body);
    let (mut is_error, mut is_in_code, mut code) = (false, false, String::new());
    while let Ok(event) = reader.read_event() {
        match event {
            Event::Start(start) if !is_error => {
                if start.local_name().as_ref() != b"Error" {
                    return None;
                }
                is_error = true;
            }
            Event::Start(start) => is_in_code = start.local_name().as_ref() == b"Code",
            Event::Empty(empty) if !is_error => {
                return (empty.local_name().as_ref() == b"Error").then(String::new);
            }
            Event::Text(part) if is_in_code => code.push_str(&part.decode().unwrap_or_default()),
            Event::End(end) if end.local_name().as_ref() == b"Code" => break,
            Event::Eof => break,
            _ => {}
        }
    }
    is_error.then(|| code.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S3: &str = "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://x/\"><Name>b</Name>";

    #[test]
    fn a_listing_says_that_it_is_one_and_whether_it_goes_on() {
        for good in [
            format!("{S3}<IsTruncated>false</IsTruncated></ListBucketResult>"),
            format!("{S3}<IsTruncated>false</IsTruncated><NextContinuationToken/></ListBucketResult>"),
            format!("{S3}</ListBucketResult>"),
            format!("{S3}<NextContinuationToken>t&amp;</NextContinuationToken><IsTruncated>true</IsTruncated></ListBucketResult>"),
            "<ns:ListBucketResult xmlns:ns=\"x\"><ns:IsTruncated>false</ns:IsTruncated></ns:ListBucketResult>".into(),
            "<EnumerationResults><Blobs/><NextMarker /></EnumerationResults>".into(),
            "<EnumerationResults><Blobs/><NextMarker>2</NextMarker></EnumerationResults>".into(),
            "<ListMultipartUploadsResult><NextKeyMarker>k</NextKeyMarker><IsTruncated>true</IsTruncated>\
             </ListMultipartUploadsResult>"
                .into(),
            "<ListMultipartUploadsResult><NextKeyMarker>k</NextKeyMarker><IsTruncated>false</IsTruncated>\
             </ListMultipartUploadsResult>"
                .into(),
        ] {
            assert_eq!(check_listing(good.as_bytes()), Ok(()), "{good}");
        }
    }

    #[test]
    fn what_is_no_listing_is_no_empty_one() {
        let other = |what: &str| Err(NoListing::Other(what.into()));
        assert_eq!(check_listing(b""), other("no XML"));
        assert_eq!(check_listing(b"it works"), other("no XML"));
        assert_eq!(check_listing(b"{\"error\": 1}"), other("no XML"));
        assert_eq!(check_listing(b"<!DOCTYPE html><html><body>log in</body></html>"), other("<html>"));
        assert_eq!(check_listing(b"<Error xmlns=\"x\"><Code>InternalError</Code></Error>"), other("<Error>"));
        for (text, expected) in [
            ("", NoListing::Unfinished),
            ("<IsTruncated>false</IsTruncated>", NoListing::Unfinished),
            ("<IsTruncated>true</IsTruncated></ListBucketResult>", NoListing::Contradiction),
            ("<IsTruncated>maybe</IsTruncated></ListBucketResult>", NoListing::Contradiction),
            // `object_store` would stop there.
            (
                "<IsTruncated>true</IsTruncated><NextMarker>t</NextMarker></ListBucketResult>",
                NoListing::Contradiction,
            ),
        ] {
            assert_eq!(check_listing(format!("{S3}{text}").as_bytes()), Err(expected), "{text}");
        }
        assert_eq!(
            check_listing(b"<EnumerationResults><Blobs/></EnumerationResults>"),
            Err(NoListing::Contradiction)
        );
    }

    #[test]
    fn an_error_is_one_in_any_form() {
        let code = |body: &str| error_code(body.as_bytes());
        assert_eq!(
            code("<?xml version=\"1.0\"?>\n <Error><Code>SlowDown</Code></Error>").unwrap(),
            "SlowDown"
        );
        assert_eq!(
            code("<Error xmlns=\"http://x/\"><Message>m</Message><Code>\nA </Code></Error>").unwrap(),
            "A"
        );
        assert_eq!(code("<a:Error xmlns:a='x'><a:Code>B</a:Code></a:Error>").unwrap(), "B");
        assert_eq!(code("<Error/>").unwrap(), "");
        for other in ["", "x", "<CopyObjectResult><Error><Code>x</Code></Error></CopyObjectResult>"] {
            assert_eq!(code(other), None, "{other}");
        }
    }

    #[test]
    fn what_a_store_does_not_answer_to_a_change_is_recognised() {
        for known in
            ["", " \n", "<?xml version=\"1.0\"?>\n<CopyObjectResult/>", "<a:DeleteResult xmlns:a='x'>"]
        {
            assert!(is_of_change(known.as_bytes()), "{known}");
        }
        for other in
            ["<html>", "<!DOCTYPE html><html/>", "it works", "{}", "<ListBucketResult/>", "<", "<Error/>"]
        {
            assert!(!is_of_change(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_page_is_no_object() {
        let headers =
            |name: http::HeaderName| HeaderMap::from_iter([(name, http::HeaderValue::from_static("x"))]);
        assert!(is_of_object(&headers(LAST_MODIFIED)));
        assert!(!is_of_object(&headers(http::header::CONTENT_TYPE)));
        assert!(!is_of_object(&headers(http::header::ETAG)));
    }

    #[test]
    fn only_a_stores_own_answer_is_a_deletion() {
        let of_azure = http::HeaderName::from_static(AZURE_REQUEST);
        let of_azure = HeaderMap::from_iter([(of_azure, http::HeaderValue::from_static("x"))]);
        let is = |status| [&HeaderMap::new(), &of_azure].map(|headers| is_of_deletion(status, headers));
        assert_eq!(is(StatusCode::NO_CONTENT), [true, true]);
        assert_eq!(is(StatusCode::ACCEPTED), [false, true]);
        assert_eq!(is(StatusCode::OK), [false, false]);
    }

    proptest! {
        /// A listing cut off anywhere is refused.
        #[test]
        fn a_listing_that_is_cut_is_none(at in 0usize..120) {
            let whole = format!("{S3}<IsTruncated>false</IsTruncated></ListBucketResult>");
            if let Some(cut) = whole.as_bytes().get(..at.min(whole.len() - 1)) {
                prop_assert!(check_listing(cut).is_err());
            }
        }
    }
}
