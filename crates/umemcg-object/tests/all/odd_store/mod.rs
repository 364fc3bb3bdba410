//! An S3 server in memory with the faults of gateways, proxies and small servers. A test chooses
//! the fault for each kind of request.

mod death;
mod dice;
pub mod http;
mod model;
mod recognised;
mod s3;
mod volume_faults;

use std::collections::VecDeque;
use std::io::BufReader;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;
use umemcg_object::{ObjectOptions, open};
use umemcg_vfs::bucket::Bucket;

use death::Death;
use http::{Answer, Form, Request};
pub use s3::State;

/// A wrong body under a status of success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instead {
    Error,
    /// With a namespace, and spaces before it.
    ErrorWithNamespace,
    /// A page that asks for a password.
    Html,
    /// The same, with an ETag.
    PageWithEtag,
    /// The same, with an ETag and a time, as of a web server's file: at an open it is taken for the
    /// object.
    DatedPage,
    Nothing,
    /// Nothing under another status of success.
    Accepted,
    /// The first two thirds of it.
    CutShort,
}

/// All of them, but the one that no program can see through.
pub const INSTEAD: [Instead; 7] = [
    Instead::Error,
    Instead::ErrorWithNamespace,
    Instead::Html,
    Instead::PageWithEtag,
    Instead::Nothing,
    Instead::Accepted,
    Instead::CutShort,
];

/// A pause that is longer than most answers take.
const LATE: Duration = Duration::from_millis(300);

/// The forms that are not plain.
pub const FORMS: [Form; 8] = [
    Form::Chunked,
    Form::Cut,
    Form::Gzip,
    Form::Long,
    Form::Old,
    Form::LastOfConnection,
    Form::Late(LATE),
    Form::Lost,
];

/// The fault of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    /// It says that it goes on, and not where.
    NoToken,
    /// It goes on for ever, with two places in turns and nothing there.
    Endless,
    /// It goes on for a thousand parts, each at a new place, and nothing there.
    EmptyParts,
    /// The keys have any prefix.
    AnyPrefix,
    /// With `NextMarker`, as of the first version of the protocol.
    OldToken,
    /// Each key comes twice.
    Twice,
    /// The keys of a part are in no order.
    Unsorted,
    /// No object has an ETag.
    NoEtags,
    /// Nothing in one part, and all in the next.
    EmptyFirst,
}

/// The fault of one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Oddity {
    /// Nothing was done.
    Instead(Instead),
    Listing(Listing),
    Form(Form),
    /// This status; nothing was done.
    Status(u16),
    /// It was done, and then fails with this status.
    StatusAfter(u16),
    /// The whole object, whatever part was asked for.
    WholeObject,
}

/// The ETags of all answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Etags {
    #[default]
    Digest,
    Empty,
    Weak,
    Missing,
    /// One for all objects.
    Const,
}

/// Properties of the server that last until a test changes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Character {
    pub etags: Etags,
    pub takes_conditions: bool,
    /// Keys in a part of a listing.
    pub page: usize,
    /// Its clock is ahead.
    pub seconds_ahead: i64,
}

impl Default for Character {
    fn default() -> Self {
        Self { etags: Etags::Digest, takes_conditions: true, page: 1000, seconds_ahead: 0 }
    }
}

/// The kinds of requests that oddities are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    Head,
    Get,
    List,
    Put,
    Copy,
    Delete,
    /// The begin of an upload in parts.
    Begin,
    /// Its end.
    Complete,
}

impl Asked {
    fn of(request: &Request) -> Self {
        let has = |name: &str| request.query.contains_key(name);
        match request.method.as_str() {
            "HEAD" => Self::Head,
            "GET" if request.key.is_empty() => Self::List,
            "GET" => Self::Get,
            "PUT" if request.header("x-amz-copy-source").is_some() => Self::Copy,
            "PUT" => Self::Put,
            "POST" if has("uploads") => Self::Begin,
            "POST" => Self::Complete,
            _ => Self::Delete,
        }
    }
}

#[derive(Debug, Default)]
struct Plan {
    state: State,
    /// For the next requests of a kind, one after another.
    next: VecDeque<(Asked, Oddity)>,
    /// For all others of a kind.
    always: Vec<(Asked, Oddity)>,
    /// Of the daemon that makes the requests.
    death: Option<Death>,
}

impl Plan {
    /// Returns the oddity of a request of a kind.
    fn due(&mut self, asked: Asked) -> Option<Oddity> {
        match self.next.iter().position(|(of, _)| *of == asked) {
            Some(at) => self.next.remove(at).map(|(_, oddity)| oddity),
            None => self.always.iter().find(|(of, _)| *of == asked).map(|(_, oddity)| *oddity),
        }
    }

    /// Serves a request, and returns the answer and its form.
    fn answer(&mut self, request: &Request, asked: Asked, oddity: Option<Oddity>) -> (Answer, Form) {
        let of_death = self.death.as_mut().and_then(|death| death.meet(asked));
        self.state.answer(request, asked, of_death.or(oddity))
    }
}

/// The server; it ends when this is dropped.
pub struct OddStore {
    port: u16,
    plan: Arc<Mutex<Plan>>,
    is_over: Arc<AtomicBool>,
}

fn lock(plan: &Mutex<Plan>) -> MutexGuard<'_, Plan> {
    plan.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OddStore {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (plan, is_over) = (Arc::<Mutex<Plan>>::default(), Arc::<AtomicBool>::default());
        let (shared, over) = (Arc::clone(&plan), Arc::clone(&is_over));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let (client, plan) = (client.unwrap(), Arc::clone(&shared));
                std::thread::spawn(move || serve(client, &plan));
            }
        });
        Self { port, plan, is_over }
    }

    /// Returns the bucket as a volume sees it.
    pub fn bucket(&self) -> Arc<dyn Bucket> {
        let (endpoint, region) = (Some(format!("http://127.0.0.1:{}", self.port)), Some("us-east-1".into()));
        open("s3://bucket/p", &ObjectOptions { endpoint, region, anonymous: true }).unwrap()
    }

    /// Changes the objects, or looks at them, without a request. Keys have the prefix `p/`.
    pub fn state<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        act(&mut lock(&self.plan).state)
    }

    pub fn set_character(&self, character: Character) {
        lock(&self.plan).state.character = character;
    }

    /// Has the next `nr` requests of a kind get odd answers.
    pub fn next(&self, nr: usize, asked: Asked, oddity: Oddity) {
        lock(&self.plan).next.extend((0..nr).map(|_| (asked, oddity)));
    }

    /// Has all requests of a kind get odd answers.
    pub fn always(&self, asked: Asked, oddity: Oddity) {
        lock(&self.plan).always.push((asked, oddity));
    }

    /// Has the daemon die at one of its changes.
    pub fn kill_at(&self, death: Death) {
        lock(&self.plan).death = Some(death);
    }

    /// Kills the daemon, unless it is dead; returns what was on its disk then. The next daemon
    /// makes its requests after [`be_calm`](Self::be_calm).
    pub fn kill(&self) -> TempDir {
        lock(&self.plan).death.as_mut().expect("a death").end()
    }

    /// Puts a page with an ETag and a time in place of the store, for listings, too, or for all
    /// else.
    pub fn be_behind_a_page(&self, hides_listings: bool) {
        let page = Oddity::Instead(Instead::DatedPage);
        self.always(Asked::Head, page);
        for asked in [Asked::Put, Asked::Copy, Asked::Delete, Asked::Begin, Asked::Complete] {
            self.always(asked, Oddity::Status(405));
        }
        if hides_listings {
            self.always(Asked::List, page);
        }
    }

    /// Ends the faults of single answers, and the death of a daemon.
    pub fn be_calm(&self) {
        let mut plan = lock(&self.plan);
        plan.next.clear();
        plan.always.clear();
        plan.death = None;
    }

    /// Ends all of that.
    pub fn be_right(&self) {
        self.be_calm();
        self.set_character(Character::default());
    }
}

impl Drop for OddStore {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// Serves the requests of one connection.
fn serve(client: TcpStream, plan: &Mutex<Plan>) {
    client.set_nodelay(true).unwrap();
    let mut out = client.try_clone().unwrap();
    let mut reader = BufReader::new(client);
    while let Some(request) = Request::read(&mut reader) {
        let asked = Asked::of(&request);
        let oddity = lock(plan).due(asked);
        if let Some(Oddity::Form(Form::Late(pause))) = oddity {
            std::thread::sleep(pause);
        }
        let (answer, form) = lock(plan).answer(&request, asked, oddity);
        if !answer.send(form, request.method == "HEAD", &mut out) {
            let _ = out.shutdown(Shutdown::Both);
            return;
        }
    }
}
