//! S3's lists of multipart uploads, which `object_store` does not support.

use object_store::Error;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use quick_xml::Reader;
use quick_xml::events::Event;

use crate::request_extensions::{Tenant, filtered_of};
use crate::request_patch::RequestPatch;

/// Most pages of a list.
const NR_PAGES_MAX: usize = 100;

/// A page of a list: an extension of the response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct UploadPage {
    uploads: Vec<ListedUpload>,
    /// The next page begins after this upload; `None` in the last page.
    next: Option<ListedUpload>,
}

/// A multipart upload in a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ListedUpload {
    /// The whole key.
    pub(crate) key: String,
    pub(crate) id: String,
}

/// Returns the ids of the unfinished uploads of a whole key.
pub(crate) async fn uploads_of(
    tenant: Tenant,
    store: &dyn PaginatedListStore,
    key: &str,
) -> Result<Vec<String>, Error> {
    let (mut ids, mut after) = (Vec::new(), None);
    for _ in 0..NR_PAGES_MAX {
        let page = page_after(tenant, store, key, after.clone()).await?;
        let of_key = page.uploads.into_iter().filter(|upload| upload.key == key);
        ids.extend(of_key.map(|upload| upload.id));
        if page.next.is_none() {
            return Ok(ids);
        }
        if page.next == after {
            break;
        }
        after = page.next;
    }
    Err(Error::Generic { store: "LIST", source: "the list of uploads has no end".into() })
}

async fn page_after(
    tenant: Tenant,
    store: &dyn PaginatedListStore,
    prefix: &str,
    after: Option<ListedUpload>,
) -> Result<UploadPage, Error> {
    let (offset, page_token) = after.map(|after| (after.key, after.id)).unzip();
    // S3 refuses an empty one.
    let page_token = page_token.filter(|id| !id.is_empty());
    let extensions = tenant.extensions_with(RequestPatch { lists_uploads: true, ..RequestPatch::default() });
    let options = PaginatedListOptions { offset, page_token, extensions, ..PaginatedListOptions::default() };
    let mut listed = store.list_paginated(Some(prefix), options).await?.result;
    filtered_of(&mut listed.extensions)
}

/// Returns a page from its text; an empty one if the text is no list.
pub(crate) fn page_of(body: &[u8]) -> UploadPage {
    let mut reader = Reader::from_reader(body);
    let (mut uploads, mut text) = (Vec::new(), String::new());
    let (mut next, mut is_truncated) = (ListedUpload::default(), false);
    let mut upload: Option<ListedUpload> = None;
    while let Ok(event) = reader.read_event() {
        match event {
            Event::Start(start) => {
                text.clear();
                if start.local_name().as_ref() == b"Upload" {
                    upload = Some(ListedUpload::default());
                }
            }
            Event::Text(part) => text.push_str(&part.decode().unwrap_or_default()),
            Event::CData(part) => text.push_str(&part.decode().unwrap_or_default()),
            Event::GeneralRef(part) => match part.resolve_char_ref() {
                Ok(Some(char)) => text.push(char),
                _ => {
                    let name = part.decode().unwrap_or_default();
                    text.push_str(quick_xml::escape::resolve_predefined_entity(&name).unwrap_or_default());
                }
            },
            Event::End(end) => match (end.local_name().as_ref(), &mut upload) {
                (b"Key", Some(upload)) => upload.key = std::mem::take(&mut text),
                (b"UploadId", Some(upload)) => upload.id = std::mem::take(&mut text),
                (b"Upload", _) => uploads.extend(upload.take()),
                (b"NextKeyMarker", None) => next.key = std::mem::take(&mut text),
                (b"NextUploadIdMarker", None) => next.id = std::mem::take(&mut text),
                (b"IsTruncated", None) => is_truncated = text.trim() == "true",
                _ => {}
            },
            Event::Eof => break,
            _ => {}
        }
    }
    UploadPage { uploads, next: is_truncated.then_some(next) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_keys_and_ids() {
        let list = b"<?xml version=\"1.0\"?><ListMultipartUploadsResult><Bucket>b</Bucket><Prefix>a</Prefix>
            <Upload><Key>a&amp;&#98;</Key><UploadId>1</UploadId><Owner><ID>x</ID></Owner></Upload>
            <Upload><UploadId><![CDATA[2]]></UploadId><Key>a</Key></Upload></ListMultipartUploadsResult>";
        let upload = |key: &str, id: &str| ListedUpload { key: key.into(), id: id.into() };
        assert_eq!(page_of(list).uploads, [upload("a&b", "1"), upload("a", "2")]);
        for other in ["", "x", "<Upload><Key>a", "<R><Upload/></R>", "<Upload><Key>&nothing;</Key"] {
            assert_eq!(page_of(other.as_bytes()), UploadPage::default(), "{other}");
        }
    }

    #[test]
    fn a_page_says_where_the_next_one_begins() {
        let next = |is_truncated: bool| {
            let list = format!(
                "<L><NextKeyMarker>a&amp;</NextKeyMarker><NextUploadIdMarker>1</NextUploadIdMarker>\
                 <IsTruncated>{is_truncated}</IsTruncated></L>"
            );
            page_of(list.as_bytes()).next
        };
        assert_eq!(next(true), Some(ListedUpload { key: "a&".into(), id: "1".into() }));
        assert_eq!(next(false), None);
    }
}
