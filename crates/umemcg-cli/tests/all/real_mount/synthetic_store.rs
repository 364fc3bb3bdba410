//! A server of the S3 protocol whose bucket is made up: ten million keys take no room in it. It
//! lists, and returns objects of one byte.
//!
//! The keys are `vN/f` for each number N, and as many of `huge/many/00000000` as were asked for.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const ATTRIBUTES: &str =
    "<LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>\"e\"</ETag><Size>1</Size>";
const MANY: &str = "huge/many/";

pub struct SyntheticStore {
    pub endpoint: String,
    shared: Arc<Shared>,
}

struct Shared {
    nr_keys: usize,
    nr_connections: AtomicUsize,
    nr_listings: AtomicUsize,
    nr_heads: AtomicUsize,
}

impl SyntheticStore {
    /// Starts one, which runs as long as the process.
    pub fn start(nr_keys: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let [nr_connections, nr_listings, nr_heads] = [0; 3].map(AtomicUsize::new);
        let shared = Arc::new(Shared { nr_keys, nr_connections, nr_listings, nr_heads });
        let of_server = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, shared) = (client.unwrap(), Arc::clone(&of_server));
                shared.nr_connections.fetch_add(1, Ordering::Relaxed);
                std::thread::spawn(move || serve(client, &shared));
            }
        });
        Self { endpoint, shared }
    }

    /// Returns the number of connections that were made.
    pub fn nr_connections(&self) -> usize {
        self.shared.nr_connections.load(Ordering::Relaxed)
    }

    /// Returns the number of parts of listings that were asked for.
    pub fn nr_listings(&self) -> usize {
        self.shared.nr_listings.load(Ordering::Relaxed)
    }

    /// Returns the number of objects whose attributes were asked for.
    pub fn nr_heads(&self) -> usize {
        self.shared.nr_heads.load(Ordering::Relaxed)
    }
}

/// Serves the requests of one connection, none of which has a body.
fn serve(client: TcpStream, shared: &Shared) {
    client.set_nodelay(true).unwrap();
    let (mut reader, mut client) = (BufReader::new(client.try_clone().unwrap()), client);
    loop {
        let mut request = String::new();
        if reader.read_line(&mut request).unwrap_or(0) == 0 {
            return;
        }
        let mut header = String::new();
        while reader.read_line(&mut header).is_ok_and(|len| len > 2) {
            header.clear();
        }
        let mut words = request.split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        shared.nr_heads.fetch_add(usize::from(method == "HEAD"), Ordering::Relaxed);
        let answer = match target.split_once('?') {
            Some((_, query)) => answer("200 OK", &shared.listing(query)),
            None if !shared.has(target.trim_start_matches("/bucket/")) => answer("404 Not Found", ""),
            None if method == "HEAD" => answer("200 OK", "x"),
            // Bytes are always asked for as a range, and there is but one.
            None => answer("206 Partial Content\r\nContent-Range: bytes 0-0/1", "x"),
        };
        let head_len = answer.find("\r\n\r\n").unwrap() + 4;
        let answer = if method == "HEAD" { &answer[..head_len] } else { &answer };
        if client.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn answer(status: &str, body: &str) -> String {
    let attributes = "Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\nETag: \"e\"";
    format!("HTTP/1.1 {status}\r\n{attributes}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

impl Shared {
    fn has(&self, key: &str) -> bool {
        let is_one_of_many =
            |name: &str| name.len() == 8 && name.parse().is_ok_and(|nr: usize| nr < self.nr_keys);
        key.strip_prefix(MANY).is_some_and(is_one_of_many) || is_of_small(key)
    }

    /// Returns the answer to a request for a part of a listing, with the slash as delimiter.
    fn listing(&self, query: &str) -> String {
        self.nr_listings.fetch_add(1, Ordering::Relaxed);
        let value = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        let prefix = value("prefix").unwrap_or_default().replace("%2F", "/");
        let from: usize = value("continuation-token").map_or(0, |token| token.parse().unwrap());
        let max: usize = value("max-keys").map_or(1000, |max| max.parse().unwrap()).min(1000);
        let (mut names, mut next) = (String::new(), None);
        if prefix == MANY {
            let until = (from + max).min(self.nr_keys);
            for nr in from..until {
                write!(names, "<Contents><Key>{MANY}{nr:08}</Key>{ATTRIBUTES}</Contents>").unwrap();
            }
            next = (until < self.nr_keys).then_some(until);
        } else if MANY.starts_with(&prefix) {
            names = format!("<CommonPrefixes><Prefix>{MANY}</Prefix></CommonPrefixes>");
        } else if let Some(key) = Some(&prefix).filter(|key| self.has(key)) {
            names = format!("<Contents><Key>{key}</Key>{ATTRIBUTES}</Contents>");
        } else if is_of_small(&format!("{prefix}f")) {
            names = format!("<Contents><Key>{prefix}f</Key>{ATTRIBUTES}</Contents>");
        }
        let next = next.map(|next| format!("<NextContinuationToken>{next}</NextContinuationToken>"));
        format!(
            "<ListBucketResult><Name>bucket</Name><Prefix>{prefix}</Prefix><IsTruncated>{}</IsTruncated>{}{names}\
             </ListBucketResult>",
            next.is_some(),
            next.unwrap_or_default()
        )
    }
}

/// Returns whether it is the key of a small volume.
fn is_of_small(key: &str) -> bool {
    let number = key.strip_prefix('v').and_then(|rest| rest.strip_suffix("/f"));
    number.is_some_and(|number| number.parse::<u64>().is_ok())
}
