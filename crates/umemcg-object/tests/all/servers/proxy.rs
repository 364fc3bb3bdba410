//! A proxy before a store that counts, delays and fails.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What becomes of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The store does not get it; this is the answer's status.
    Status(u16),
    /// The store does not get it; the answer is that it is at this address.
    Redirect(u16, String),
    /// Half of the answer's body comes, then the connection ends.
    CutBody,
    /// A bit of the answer's body is another.
    DamagedBody,
    /// The answer has another ETag.
    OtherEtag,
    /// The answer's body is so many times as long.
    LongBody(usize),
    /// The answer comes this much later.
    Delay(Duration),
    /// The connection ends in the middle of the request's body. The store does not get it.
    CutRequest,
    /// A bit of the request's body is another when it comes to the store.
    DamagedRequest,
    /// The store has done what it was asked, but no answer comes.
    AnswerLost,
    /// An answer that began well tells this error. The store does not get the request.
    Belated(&'static str),
    /// Nothing.
    Pass,
}

/// How many requests are taken; the others are refused with 503.
#[derive(Debug)]
struct Throttle {
    per_second: f64,
    most_at_once: f64,
    left: f64,
    at: Instant,
    nr_refused: usize,
}

impl Throttle {
    fn refuses(&mut self) -> bool {
        let now = Instant::now();
        let more = self.per_second * (now - self.at).as_secs_f64();
        (self.left, self.at) = ((self.left + more).min(self.most_at_once), now);
        let refuses = self.left < 1.0;
        if refuses {
            self.nr_refused += 1
        } else {
            self.left -= 1.0
        }
        refuses
    }
}

#[derive(Debug, Default)]
struct Plan {
    throttle: Option<Throttle>,
    /// For the next requests with this method, one after another.
    faults: VecDeque<(&'static str, Fault)>,
    /// For all requests beside those.
    always: Option<Fault>,
    /// Methods, in the order of arrival.
    seen: Vec<String>,
    nr_listings: usize,
    last_head: String,
    nr_under_way: usize,
    most_under_way: usize,
}

pub struct Proxy {
    port: u16,
    plan: Arc<Mutex<Plan>>,
    is_over: Arc<AtomicBool>,
}

impl Proxy {
    /// Stands before a server with this address, such as `http://127.0.0.1:5801`.
    pub fn before(endpoint: &str) -> Self {
        let upstream = endpoint.strip_prefix("http://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (plan, is_over) = (Arc::<Mutex<Plan>>::default(), Arc::<AtomicBool>::default());
        let (shared, over) = (Arc::clone(&plan), Arc::clone(&is_over));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let (client, upstream, plan) = (client.unwrap(), upstream.clone(), Arc::clone(&shared));
                std::thread::spawn(move || serve(client, &upstream, &plan));
            }
        });
        Self { port, plan, is_over }
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Has the next `nr` requests with a method fail.
    pub fn fail_next(&self, nr: usize, method: &'static str, fault: &Fault) {
        let mut plan = self.plan.lock().unwrap();
        plan.faults.extend((0..nr).map(|_| (method, fault.clone())));
    }

    /// Has all requests fail, or none.
    pub fn fail_always(&self, fault: Option<Fault>) {
        self.plan.lock().unwrap().always = fault;
    }

    /// Takes so many requests in a second, and so many at once, from now on.
    pub fn throttle(&self, per_second: u32, most_at_once: u32) {
        let (per_second, left) = (per_second.into(), most_at_once.into());
        let throttle = Throttle { per_second, most_at_once: left, left, at: Instant::now(), nr_refused: 0 };
        self.plan.lock().unwrap().throttle = Some(throttle);
    }

    /// Returns how many requests were refused since then because they came too fast.
    pub fn nr_throttled(&self) -> usize {
        self.plan.lock().unwrap().throttle.as_ref().map_or(0, |throttle| throttle.nr_refused)
    }

    /// Returns the number of requests with a method so far.
    pub fn nr_seen(&self, method: &str) -> usize {
        self.plan.lock().unwrap().seen.iter().filter(|seen| *seen == method).count()
    }

    /// Returns the number of listings so far, which are requests of the method GET, too.
    pub fn nr_listings(&self) -> usize {
        self.plan.lock().unwrap().nr_listings
    }

    /// Returns the first lines of the last request.
    pub fn last_head(&self) -> String {
        self.plan.lock().unwrap().last_head.clone()
    }

    /// Returns the most requests that were under way at one time.
    pub fn most_under_way(&self) -> usize {
        self.plan.lock().unwrap().most_under_way
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// Serves the requests of one connection.
fn serve(mut client: TcpStream, upstream: &str, plan: &Mutex<Plan>) {
    // Otherwise an answer in two writes waits for the client's delayed acknowledgement, 40 ms.
    client.set_nodelay(true).unwrap();
    while let Some((head, mut body)) = read_head(&mut client) {
        let method = head.split(' ').next().unwrap_or_default().to_owned();
        let fault = {
            let mut plan = plan.lock().unwrap();
            plan.seen.push(method.clone());
            plan.nr_listings += usize::from(is_listing(&head));
            plan.last_head.clone_from(&head);
            plan.nr_under_way += 1;
            plan.most_under_way = plan.most_under_way.max(plan.nr_under_way);
            let is_throttled = plan.throttle.as_mut().is_some_and(Throttle::refuses);
            match plan.faults.iter().position(|(of, _)| *of == method) {
                Some(at) => plan.faults.remove(at).map(|(_, fault)| fault),
                None if is_throttled => Some(Fault::Status(503)),
                None => plan.always.clone(),
            }
        };
        if has_header(&head, "expect:") && client.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").is_err() {
            return;
        }
        let has_body = fault != Some(Fault::CutRequest) && read_body(&mut client, &head, &mut body).is_some();
        if fault == Some(Fault::DamagedRequest)
            && let Some(byte) = body.last_mut()
        {
            *byte ^= 1;
        }
        let goes_on = has_body && answer(&mut client, upstream, (&method, &head, &body), fault.as_ref());
        plan.lock().unwrap().nr_under_way -= 1;
        if !goes_on {
            let _ = client.shutdown(Shutdown::Both);
            return;
        }
    }
}

/// Answers one request; false when the connection is over.
fn answer(
    client: &mut TcpStream,
    upstream: &str,
    (method, head, body): (&str, &str, &[u8]),
    fault: Option<&Fault>,
) -> bool {
    if let Some(Fault::Status(status)) = fault {
        let code = if matches!(status, 429 | 503) { "SlowDown" } else { "Fault" };
        let text = format!("<Error><Code>{code}</Code></Error>");
        let body = if method == "HEAD" { "" } else { text.as_str() };
        let head = format!("HTTP/1.1 {status} Fault\r\nContent-Length: {}\r\n\r\n", text.len());
        return client.write_all((head + body).as_bytes()).is_ok();
    }
    if let Some(Fault::Redirect(status, to)) = fault {
        let head = format!("HTTP/1.1 {status} Elsewhere\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n");
        return client.write_all(head.as_bytes()).is_ok();
    }
    if let Some(Fault::Belated(code)) = fault {
        let text = format!("<Error><Code>{code}</Code></Error>");
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", text.len());
        return client.write_all((head + &text).as_bytes()).is_ok();
    }
    let Some((mut head, mut body)) = ask(upstream, method, head, body) else { return false };
    match fault {
        Some(Fault::AnswerLost) => return false,
        Some(Fault::Delay(time)) => std::thread::sleep(*time),
        Some(Fault::OtherEtag) => head = with_other_etag(&head),
        Some(Fault::DamagedBody) => body.iter_mut().take(1).for_each(|byte| *byte ^= 1),
        Some(Fault::CutBody) => body.truncate(body.len() / 2),
        Some(Fault::LongBody(times)) => {
            let len = body.len();
            body = body.repeat(*times);
            head =
                head.replace(&format!("Content-Length: {len}"), &format!("Content-Length: {}", body.len()));
        }
        _ => {}
    }
    let is_sent = client.write_all(head.as_bytes()).is_ok() && client.write_all(&body).is_ok();
    is_sent && fault != Some(&Fault::CutBody)
}

fn has_header(head: &str, name: &str) -> bool {
    head.split("\r\n").any(|line| line.to_ascii_lowercase().starts_with(name))
}

fn is_listing(head: &str) -> bool {
    let line = head.split("\r\n").next().unwrap_or_default();
    line.starts_with("GET ") && ["list-type=", "prefix=", "delimiter="].iter().any(|part| line.contains(part))
}

fn with_other_etag(head: &str) -> String {
    let lines = head.split("\r\n").map(|line| match line.split_once(':') {
        Some((name, _)) if name.eq_ignore_ascii_case("etag") => format!("{name}: \"another\""),
        _ => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\r\n")
}

/// Asks the server; returns its answer, with the length of the body in it.
fn ask(upstream: &str, method: &str, head: &str, body: &[u8]) -> Option<(String, Vec<u8>)> {
    let mut server = TcpStream::connect(upstream).ok()?;
    server.set_nodelay(true).ok()?;
    let head = head.trim_end_matches("\r\n").split("\r\n");
    // The client was told to go on by the proxy.
    let is_passed = |line: &&str| !has_header(line, "connection:") && !has_header(line, "expect:");
    let head: Vec<&str> = head.filter(is_passed).collect();
    let head = head.join("\r\n") + "\r\nConnection: close\r\n\r\n";
    server.write_all(head.as_bytes()).ok()?;
    server.write_all(body).ok()?;
    let mut whole = Vec::new();
    server.read_to_end(&mut whole).ok()?;
    let end = whole.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let (head, body) = whole.split_at(end);
    let head = String::from_utf8(head.to_vec()).ok()?;
    let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if is_chunked { unchunked(body)? } else { body.to_vec() };
    let lines = head.trim_end_matches("\r\n").split("\r\n").filter(|line| {
        let line = line.to_ascii_lowercase();
        !["connection:", "transfer-encoding:"].iter().any(|name| line.starts_with(name))
            && (method == "HEAD" || !line.starts_with("content-length:"))
    });
    let mut head = lines.collect::<Vec<_>>().join("\r\n");
    if method != "HEAD" {
        head += &format!("\r\nContent-Length: {}", body.len());
    }
    Some((head + "\r\n\r\n", body))
}

fn unchunked(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let end = body.windows(2).position(|window| window == b"\r\n")?;
        let len = usize::from_str_radix(std::str::from_utf8(&body[..end]).ok()?.trim(), 16).ok()?;
        body = &body[end + 2..];
        if len == 0 {
            return Some(whole);
        }
        whole.extend_from_slice(&body[..len]);
        body = &body[len + 2..];
    }
}

/// Reads the head of a request, and what has come of its body; `None` at the end of the connection.
fn read_head(client: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut whole = Vec::new();
    let mut part = [0; 64 << 10];
    let end = loop {
        if let Some(at) = whole.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        let len = client.read(&mut part).ok().filter(|len| *len > 0)?;
        whole.extend_from_slice(&part[..len]);
    };
    Some((String::from_utf8(whole[..end].to_vec()).ok()?, whole[end..].to_vec()))
}

/// Reads the rest of its body.
fn read_body(client: &mut TcpStream, head: &str, body: &mut Vec<u8>) -> Option<()> {
    let len = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let mut part = [0; 64 << 10];
    while body.len() < len.unwrap_or(0) {
        let len = client.read(&mut part).ok().filter(|len| *len > 0)?;
        body.extend_from_slice(&part[..len]);
    }
    Some(())
}
