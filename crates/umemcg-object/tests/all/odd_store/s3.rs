//! The objects of an odd store, and its answers.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};
use std::time::{SystemTime, UNIX_EPOCH};

use super::http::{Answer, Form, Request, decoded};
use super::{Asked, Character, Etags, Instead, Listing, Oddity};

/// An object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stored {
    pub bytes: Vec<u8>,
    /// With the type of the content as [`TYPE`].
    pub metadata: BTreeMap<String, String>,
    pub etag: String,
    /// Seconds since 1970.
    pub modified: i64,
}

/// An upload in parts.
#[derive(Debug, Default)]
struct Upload {
    key: String,
    metadata: BTreeMap<String, String>,
    parts: BTreeMap<u32, Vec<u8>>,
}

/// All that the store has.
#[derive(Debug, Default)]
pub struct State {
    pub objects: BTreeMap<String, Stored>,
    pub character: Character,
    uploads: BTreeMap<String, Upload>,
    nr_uploads: u32,
    nr_listings: u32,
}

pub const TYPE: &str = ":content-type";
/// The key to which redirections lead.
pub const ELSEWHERE: &str = "p/elsewhere";
pub const PAGE: &str = "<!DOCTYPE html><html><body>Password: <input></body></html>";

/// Returns the metadata and the type of the content in a request.
fn labels_in(request: &Request) -> BTreeMap<String, String> {
    let mut told = request.headers_with("x-amz-meta-");
    told.extend(request.header("content-type").map(|value| (TYPE.to_owned(), value.to_owned())));
    told
}

/// Returns an ETag: the same for the same bytes.
fn digest(bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    format!("{:016x}", hasher.finish())
}

fn error(status: u16, code: &str) -> Answer {
    Answer::new(
        status,
        format!("<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>odd</Message></Error>"),
    )
}

/// Returns a refusal; a redirection has a place to go to, as of a bucket in another region.
fn refusal(status: u16, request: &Request) -> Answer {
    let answer = error(status, "Odd");
    if !matches!(status, 301 | 307) {
        return answer;
    }
    let place = format!("http://{}/bucket/{ELSEWHERE}", request.header("host").unwrap_or_default());
    answer.with("Location", place).with("x-amz-bucket-region", "eu-central-1")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns a time as a header or, in ISO's form, a listing has it.
fn written(seconds: i64, in_iso: bool) -> String {
    let (days, second) = (seconds.div_euclid(86400), seconds.rem_euclid(86400));
    // Days since 1 March of the year 0: years end with the day that some of them have more.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * shifted_month + 2) / 5 + 1, (shifted_month + 2) % 12 + 1);
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    if in_iso {
        return format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.000Z");
    }
    let weekday = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"][days.rem_euclid(7) as usize];
    let names = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let name = names[month as usize - 1];
    format!("{weekday}, {day:02} {name} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

impl State {
    fn now(&self) -> i64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        now as i64 + self.character.seconds_ahead
    }

    /// Stores an object, as another program does.
    pub fn put(&mut self, key: &str, bytes: &[u8], metadata: &[(&str, &str)]) {
        let metadata = metadata.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        self.store(key, bytes.to_vec(), metadata, None);
    }

    /// Returns how many uploads in parts are not over.
    pub fn nr_uploads_open(&self) -> usize {
        self.uploads.len()
    }

    fn store(
        &mut self,
        key: &str,
        bytes: Vec<u8>,
        metadata: BTreeMap<String, String>,
        etag: Option<String>,
    ) -> String {
        let etag = etag.unwrap_or_else(|| digest(&bytes));
        let modified = self.now();
        self.objects.insert(key.into(), Stored { bytes, metadata, etag: etag.clone(), modified });
        etag
    }

    fn shown_etag(&self, etag: &str) -> Option<String> {
        match self.character.etags {
            Etags::Digest => Some(format!("\"{etag}\"")),
            Etags::Empty => Some("\"\"".into()),
            Etags::Weak => Some(format!("W/\"{etag}\"")),
            Etags::Missing => None,
            Etags::Const => Some("\"const\"".into()),
        }
    }

    fn with_etag(&self, answer: Answer, etag: &str) -> Answer {
        match self.shown_etag(etag) {
            Some(etag) => answer.with("ETag", etag),
            None => answer,
        }
    }

    /// Returns whether the conditions of a request hold for the object of its key.
    fn meets(&self, request: &Request, there: Option<&Stored>) -> bool {
        if !self.character.takes_conditions {
            return true;
        }
        let etag = there.and_then(|there| self.shown_etag(&there.etag));
        let is_absent_where_it_must = request.header("if-none-match") != Some("*") || there.is_none();
        let has_the_version = request
            .header("if-match")
            .is_none_or(|wanted| there.is_some() && etag.as_deref() == Some(wanted));
        is_absent_where_it_must && has_the_version
    }

    /// Serves a request, and returns the answer and its form.
    pub fn answer(&mut self, request: &Request, asked: Asked, oddity: Option<Oddity>) -> (Answer, Form) {
        let form = if let Some(Oddity::Form(form)) = oddity { form } else { Form::Plain };
        let answer = match oddity {
            Some(Oddity::Status(status)) => refusal(status, request),
            Some(Oddity::Instead(Instead::PageWithEtag)) => Answer::new(200, PAGE).with("ETag", "\"page\""),
            Some(Oddity::Instead(Instead::DatedPage)) => {
                Answer::new(200, PAGE).with("ETag", "\"page\"").with("Last-Modified", written(0, false))
            }
            Some(Oddity::Instead(Instead::Accepted)) => Answer::new(202, ""),
            Some(Oddity::Instead(instead)) if instead != Instead::CutShort => Answer::new(
                200,
                match instead {
                    Instead::Error => "<?xml version=\"1.0\"?>\n<Error><Code>InternalError</Code></Error>",
                    Instead::ErrorWithNamespace => {
                        "\n <Error xmlns=\"http://s3.amazonaws.com/doc/\"><Code>ServiceUnavailable</Code></Error>"
                    }
                    Instead::Html | Instead::PageWithEtag | Instead::DatedPage => PAGE,
                    Instead::Nothing | Instead::Accepted | Instead::CutShort => "",
                },
            ),
            _ => {
                let mut answer = self.done(request, asked, oddity);
                match oddity {
                    Some(Oddity::StatusAfter(status)) => error(status, "Odd"),
                    Some(Oddity::Instead(_)) => {
                        answer.body.truncate(answer.body.len() * 2 / 3);
                        answer
                    }
                    _ => answer,
                }
            }
        };
        (answer, form)
    }

    fn done(&mut self, request: &Request, asked: Asked, oddity: Option<Oddity>) -> Answer {
        match asked {
            Asked::Head | Asked::Get => self.object(request, oddity == Some(Oddity::WholeObject)),
            Asked::List if request.query.contains_key("uploads") => self.uploads(request),
            Asked::List => {
                let listing = if let Some(Oddity::Listing(listing)) = oddity { Some(listing) } else { None };
                self.list(request, listing)
            }
            Asked::Put => self.put_object(request),
            Asked::Copy => self.copy(request),
            Asked::Delete => self.delete(request),
            Asked::Begin => {
                self.nr_uploads += 1;
                let (id, metadata) = (format!("u{}", self.nr_uploads), labels_in(request));
                let upload = Upload { key: request.key.clone(), metadata, parts: BTreeMap::new() };
                self.uploads.insert(id.clone(), upload);
                let key = escaped(&request.key);
                Answer::new(
                    200,
                    format!(
                        "<InitiateMultipartUploadResult><Bucket>bucket</Bucket><Key>{key}</Key>\
                         <UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
                    ),
                )
            }
            Asked::Complete => self.complete(request),
        }
    }

    fn object(&self, request: &Request, is_whole: bool) -> Answer {
        let Some(object) = self.objects.get(&request.key) else { return error(404, "NoSuchKey") };
        if !self.meets(request, Some(object)) {
            return error(412, "PreconditionFailed");
        }
        let len = object.bytes.len();
        let range = request.header("range").filter(|_| !is_whole).map(|range| {
            let (from, to) = range.trim_start_matches("bytes=").split_once('-').unwrap();
            let to = to.parse().unwrap_or(len.saturating_sub(1));
            (from.parse::<usize>().unwrap(), to.min(len.saturating_sub(1)))
        });
        let mut answer = match range {
            Some((from, _)) if from >= len => return error(416, "InvalidRange"),
            Some((from, to)) => Answer::new(206, &object.bytes[from..=to])
                .with("Content-Range", format!("bytes {from}-{to}/{len}")),
            None => Answer::new(200, object.bytes.clone()),
        };
        answer = self.with_etag(answer, &object.etag);
        answer = answer.with("Last-Modified", written(object.modified, false));
        for (name, value) in &object.metadata {
            answer = match name.as_str() {
                TYPE => answer.with("Content-Type", value),
                name => answer.with(&format!("x-amz-meta-{name}"), value),
            };
        }
        if request.method == "HEAD" { answer.with("Content-Length", len) } else { answer }
    }

    fn put_object(&mut self, request: &Request) -> Answer {
        if let Some(id) = request.query.get("uploadId") {
            let Some(upload) = self.uploads.get_mut(id) else { return error(404, "NoSuchUpload") };
            upload.parts.insert(request.query["partNumber"].parse().unwrap(), request.body.clone());
            return Answer::new(200, "").with("ETag", format!("\"{}\"", digest(&request.body)));
        }
        if !self.meets(request, self.objects.get(&request.key)) {
            return error(412, "PreconditionFailed");
        }
        let metadata = labels_in(request);
        let etag = self.store(&request.key, request.body.clone(), metadata, None);
        self.with_etag(Answer::new(200, ""), &etag)
    }

    fn copy(&mut self, request: &Request) -> Answer {
        let source = decoded(request.header("x-amz-copy-source").unwrap());
        let key = source.trim_start_matches('/').split_once('/').unwrap().1;
        let Some(from) = self.objects.get(key).cloned() else { return error(404, "NoSuchKey") };
        let wanted = request.header("x-amz-copy-source-if-match").filter(|_| self.character.takes_conditions);
        if wanted.is_some_and(|wanted| self.shown_etag(&from.etag).as_deref() != Some(wanted))
            || !self.meets(request, self.objects.get(&request.key))
        {
            return error(412, "PreconditionFailed");
        }
        let is_replaced = request.header("x-amz-metadata-directive") == Some("REPLACE");
        let metadata = if is_replaced { labels_in(request) } else { from.metadata };
        let etag = self.store(&request.key, from.bytes, metadata, None);
        let (etag, time) = (self.shown_etag(&etag).unwrap_or_default(), written(self.now(), true));
        let etag = escaped(&etag);
        Answer::new(
            200,
            format!(
                "<CopyObjectResult><ETag>{etag}</ETag><LastModified>{time}</LastModified></CopyObjectResult>"
            ),
        )
    }

    fn delete(&mut self, request: &Request) -> Answer {
        if let Some(id) = request.query.get("uploadId") {
            let is_gone = self.uploads.remove(id).is_some();
            return if is_gone { Answer::new(204, "") } else { error(404, "NoSuchUpload") };
        }
        let there = self.objects.get(&request.key);
        if there.is_some() && !self.meets(request, there) {
            return error(412, "PreconditionFailed");
        }
        self.objects.remove(&request.key);
        Answer::new(204, "")
    }

    fn complete(&mut self, request: &Request) -> Answer {
        let id = &request.query["uploadId"];
        let Some(upload) = self.uploads.get(id) else { return error(404, "NoSuchUpload") };
        if !self.meets(request, self.objects.get(&upload.key)) {
            return error(412, "PreconditionFailed");
        }
        let Some(upload) = self.uploads.remove(id) else { unreachable!() };
        let digests: String = upload.parts.values().map(|part| digest(part)).collect();
        let etag = format!("{}-{}", digest(digests.as_bytes()), upload.parts.len());
        let bytes = upload.parts.into_values().collect::<Vec<_>>().concat();
        let etag = self.store(&upload.key, bytes, upload.metadata, Some(etag));
        let (key, etag) = (escaped(&upload.key), escaped(&self.shown_etag(&etag).unwrap_or_default()));
        Answer::new(
            200,
            format!(
                "<CompleteMultipartUploadResult><Bucket>bucket</Bucket><Key>{key}</Key><ETag>{etag}</ETag>\
                 </CompleteMultipartUploadResult>"
            ),
        )
    }

    fn uploads(&self, request: &Request) -> Answer {
        let of = |name: &str| request.query.get(name).cloned().unwrap_or_default();
        let (prefix, after) = (of("prefix"), (of("key-marker"), of("upload-id-marker")));
        let there = self.uploads.iter().map(|(id, upload)| (upload.key.clone(), id.clone()));
        let there: BTreeSet<_> = there.filter(|(key, _)| key.starts_with(&prefix)).collect();
        let mut page: Vec<_> = there.range(after.clone()..).filter(|place| **place != after).collect();
        let is_truncated = page.len() > self.character.page;
        page.truncate(self.character.page);
        let listed = page.iter().map(|(key, id)| {
            format!("<Upload><Key>{}</Key><UploadId>{id}</UploadId></Upload>", escaped(key))
        });
        let listed: String = listed.collect();
        // With a place to go on, also at the end, as S3 and Ceph say it.
        let next = page.last().map_or_else(String::new, |(key, id)| {
            format!(
                "<NextKeyMarker>{}</NextKeyMarker><NextUploadIdMarker>{id}</NextUploadIdMarker>",
                escaped(key)
            )
        });
        Answer::new(
            200,
            format!(
                "<ListMultipartUploadsResult><Bucket>bucket</Bucket><IsTruncated>{is_truncated}</IsTruncated>\
                 {next}{listed}</ListMultipartUploadsResult>"
            ),
        )
    }

    fn list(&mut self, request: &Request, odd: Option<Listing>) -> Answer {
        let of = |name: &str| request.query.get(name).cloned().unwrap_or_default();
        let delimiter = of("delimiter");
        let prefix = if odd == Some(Listing::AnyPrefix) { String::new() } else { of("prefix") };
        let token = of("continuation-token");
        let max = request.query.get("max-keys").map_or(1000, |max| max.parse().unwrap());
        let max = self.character.page.min(max);
        self.nr_listings += 1;
        let turn = self.nr_listings % 2;
        // By their names, so that objects and prefixes are in one order.
        let mut names: BTreeMap<String, Option<&Stored>> = BTreeMap::new();
        for (key, object) in self.objects.iter().filter(|(key, _)| key.starts_with(&prefix)) {
            match key[prefix.len()..].find(&delimiter).filter(|_| !delimiter.is_empty()) {
                Some(at) => names.insert(key[..prefix.len() + at + delimiter.len()].to_owned(), None),
                None => names.insert(key.clone(), Some(object)),
            };
        }
        let after = token.strip_prefix("after:").unwrap_or_default();
        let mut page: Vec<_> = names.range(after.to_owned()..).filter(|(key, _)| *key != after).collect();
        let mut is_truncated = page.len() > max;
        page.truncate(max);
        let mut next = page.last().map(|(key, _)| format!("after:{key}"));
        match odd {
            Some(Listing::Endless) => {
                page.clear();
                (is_truncated, next) = (true, Some(format!("turn {turn}")));
            }
            Some(Listing::EmptyParts) if self.nr_listings <= 1000 => {
                page.clear();
                (is_truncated, next) = (true, Some(format!("listing {}", self.nr_listings)));
            }
            Some(Listing::EmptyFirst) if token.is_empty() => {
                page.clear();
                (is_truncated, next) = (true, Some("after:".into()));
            }
            Some(Listing::Twice) => page = page.iter().flat_map(|listed| [*listed, *listed]).collect(),
            Some(Listing::Unsorted) => page.reverse(),
            _ => {}
        }
        let mut text = format!(
            "<?xml version=\"1.0\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
             <Name>bucket</Name><IsTruncated>{is_truncated}</IsTruncated>"
        );
        if let Some(next) = next.filter(|_| is_truncated && odd != Some(Listing::NoToken)) {
            let name = if odd == Some(Listing::OldToken) { "NextMarker" } else { "NextContinuationToken" };
            text += &format!("<{name}>{}</{name}>", escaped(&next));
        }
        for (key, object) in page {
            let key = escaped(key);
            text += &match object {
                None => format!("<CommonPrefixes><Prefix>{key}</Prefix></CommonPrefixes>"),
                Some(object) => {
                    let etag = self.shown_etag(&object.etag).filter(|_| odd != Some(Listing::NoEtags));
                    let etag =
                        etag.map_or_else(String::new, |etag| format!("<ETag>{}</ETag>", escaped(&etag)));
                    let (time, len) = (written(object.modified, true), object.bytes.len());
                    format!(
                        "<Contents><Key>{key}</Key><LastModified>{time}</LastModified>{etag}<Size>{len}</Size>\
                         </Contents>"
                    )
                }
            };
        }
        Answer::new(200, text + "</ListBucketResult>")
    }
}
