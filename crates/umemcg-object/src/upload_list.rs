//! Parses S3's lists of multipart uploads, which `object_store` does not support.

use std::cell::RefCell;

use quick_xml::Reader;
use quick_xml::events::Event;

tokio::task_local! {
    /// The uploads in the list requested by this task.
    pub(crate) static UPLOADS: RefCell<Vec<ListedUpload>>;
}

/// A multipart upload in a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ListedUpload {
    /// The whole key.
    pub(crate) key: String,
    pub(crate) id: String,
}

/// Returns the uploads of a list; none if the text is no list.
pub(crate) fn uploads_of(body: &[u8]) -> Vec<ListedUpload> {
    let mut reader = Reader::from_reader(body);
    let (mut uploads, mut text) = (Vec::new(), String::new());
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
                _ => {}
            },
            Event::Eof => break,
            _ => {}
        }
    }
    uploads
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
        assert_eq!(uploads_of(list), [upload("a&b", "1"), upload("a", "2")]);
        for other in ["", "x", "<Upload><Key>a", "<R><Upload/></R>", "<Upload><Key>&nothing;</Key"] {
            assert_eq!(uploads_of(other.as_bytes()), [], "{other}");
        }
    }
}
