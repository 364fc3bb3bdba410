//! Just enough of HTTP for a test server: requests whose bodies have a length, and answers in the
//! forms of servers and proxies.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A request.
#[derive(Debug, Default)]
pub struct Request {
    pub method: String,
    /// Below the bucket, with nothing encoded any more.
    pub key: String,
    pub query: BTreeMap<String, String>,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    #[default]
    Plain,
    Chunked,
    /// The connection ends in the middle of the body.
    Cut,
    /// In an encoding that was not asked for.
    Gzip,
    /// More bytes come than the answer says.
    Long,
    /// Of the first version of the protocol: the connection ends with the body.
    Old,
    /// The connection ends after the answer, without a word.
    LastOfConnection,
    /// The request is served late: others may come before it.
    Late(Duration),
    /// Nothing comes.
    Lost,
}

/// An answer.
#[derive(Debug, Default)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into() }
    }

    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.into(), value.to_string()));
        self
    }

    /// Sends it; false when the connection is over.
    pub fn send(self, form: Form, is_head: bool, stream: &mut TcpStream) -> bool {
        if form == Form::Lost {
            return false;
        }
        let is_gzip = form == Form::Gzip && self.status != 204 && !is_head;
        let answer = if is_gzip { self.with("Content-Encoding", "gzip").encoded() } else { self };
        answer.send_as(form, is_head, stream)
    }

    /// Wraps the body in one block of gzip that is not compressed, with a wrong sum.
    fn encoded(mut self) -> Self {
        let len = self.body.len() as u16;
        let mut encoded = b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x01".to_vec();
        encoded.extend([len.to_le_bytes(), (!len).to_le_bytes()].concat());
        encoded.extend_from_slice(&self.body);
        encoded.extend([0; 8]);
        self.body = encoded;
        self
    }

    fn send_as(self, form: Form, is_head: bool, stream: &mut TcpStream) -> bool {
        let version = if form == Form::Old { "1.0" } else { "1.1" };
        let mut head = format!("HTTP/{version} {} Odd\r\n", self.status).into_bytes();
        for (name, value) in &self.headers {
            head.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        let says_len = self.headers.iter().any(|(name, _)| name == "Content-Length");
        let is_chunked = form == Form::Chunked && !is_head && self.status != 204;
        if is_chunked {
            head.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        } else if !says_len && self.status != 204 {
            head.extend_from_slice(format!("Content-Length: {}\r\n", self.body.len()).as_bytes());
        }
        head.extend_from_slice(b"\r\n");
        let mut body = if is_head { Vec::new() } else { self.body };
        let is_cut = form == Form::Cut && body.len() > 1;
        if is_chunked {
            let mut chunks = Vec::new();
            for chunk in body.chunks(1000) {
                chunks.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                chunks.extend_from_slice(chunk);
                chunks.extend_from_slice(b"\r\n");
            }
            chunks.extend_from_slice(b"0\r\n\r\n");
            body = chunks;
        } else if is_cut {
            body.truncate(body.len() / 2);
        } else if form == Form::Long && !is_head && self.status == 200 {
            body.extend_from_slice(b"more");
        }
        head.extend_from_slice(&body);
        let is_sent = stream.write_all(&head).is_ok();
        is_sent && !is_cut && !matches!(form, Form::Old | Form::LastOfConnection | Form::Long)
    }
}

impl Request {
    /// Reads the next one; `None` at the end of the connection.
    pub fn read(reader: &mut BufReader<TcpStream>) -> Option<Self> {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|len| *len > 0)?;
        let mut words = line.split(' ');
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let (_, key) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let query = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let query = query.map(|(name, value)| (name.to_owned(), decoded(&value.replace('+', " "))));
        let mut request = Self { method, key: decoded(key), query: query.collect(), ..Self::default() };
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|len| *len > 0)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            request.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let len = request.header("content-length").map_or(0, |len| len.parse().unwrap());
        request.body = vec![0; len];
        reader.read_exact(&mut request.body).ok()?;
        Some(request)
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns the headers whose names begin so, with the rest of their names.
    pub fn headers_with(&self, start: &str) -> BTreeMap<String, String> {
        let named =
            |(name, value): &(String, String)| Some((name.strip_prefix(start)?.to_owned(), value.clone()));
        self.headers.iter().filter_map(named).collect()
    }
}

/// Returns a text without the encoding of URLs.
pub fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, behind @ ..] = rest {
        let hex = |at: usize| char::from(*behind.get(at)?).to_digit(16);
        match (*first, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                rest = &behind[2..];
            }
            _ => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8(bytes).unwrap()
}
