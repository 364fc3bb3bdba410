//! Requests as the kernel sends them: their parsing and their handling, without a kernel.
//!
//! An input is lines. The first names the mounted file system (`data`, a tmpfs, or `control`) and
//! the minor number of the protocol. Each further line is a request: its opcode, its node, and its
//! body:
//!
//! | word | in the body |
//! |---|---|
//! | `#7`, `##7` | a number of 32 or of 64 bits |
//! | `@0`, `$0` | the first handle, or node, that an answer named |
//! | `=text`, `*9` | bytes without an end; that many bytes |
//! | `^2` | nothing: the last two units of 8 bytes are extensions |
//! | `text` | a name with its end |
//!
//! The text behind an opcode's digits is a comment; with a `!` in it, the answer finds no asker.
//! Requests follow each other as if one process made them. Each must be answered once.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use umemcg::Group;
use umemcg_control::{Style, parse_decimal};
use umemcg_fuse::transport::{Payload, ReceiveError, SendError};
use umemcg_fuse::wire::reply::{CreateOut, EntryOut, OpenOut};
use umemcg_fuse::wire::request::{ForgetList, shorten_write, write_payload};
use umemcg_fuse::wire::{
    Dialect, IN_HEADER_BYTES, INTERRUPT_BIT, InHeader, MAX_PAYLOAD_BYTES, Op, OutHeader, opcode,
};
use umemcg_fuse::{
    ControlFs, DataFs, Filesystem, Lifetimes, PoolLimits, RootOnly, Session, SessionConfig, Transport,
};
use umemcg_vfs::{Tmpfs, TmpfsConfig, Volumes};
use zerocopy::{FromBytes, IntoBytes};

use crate::hierarchy::Hierarchy;
use crate::outcome::Outcome;

/// Lines used of an input; further lines are ignored.
const NR_LINES_MAX: usize = 64;
/// The limit of a tenant, and the size of its volume.
const TENANT_BYTES: u64 = 2 << 20;
/// Longest `*9`.
const FILLED_BYTES_MAX: u64 = 64 << 10;

/// Parses the input itself as a request, then sends the requests described by its lines.
///
/// # Panics
/// When the product breaks a promise.
pub fn request(input: &[u8]) -> Outcome {
    parse(input);
    let mut lines = input.split(|&byte| byte == b'\n');
    let mut words = lines.next().unwrap_or_default().split(|&byte| byte == b' ');
    let is_control = words.next() == Some(b"control");
    let minor = words.next().and_then(parse_decimal).unwrap_or(45) as u32;

    let groups = Hierarchy::new(Style::Both);
    let tenant = groups.engine.create_group(groups.engine.root(), "tenant".as_ref()).unwrap();
    groups.engine.set_max(&tenant, TENANT_BYTES);
    let kernel = Arc::new(Kernel::new(minor, lines.take(NR_LINES_MAX)));
    if is_control {
        let classifier = Arc::new(RootOnly(Arc::clone(&tenant)));
        serve(&kernel, ControlFs::new(Arc::clone(&groups.tree), classifier), &groups);
    } else {
        let filesystem = tmpfs(&groups, &tenant);
        serve(&kernel, Arc::clone(&filesystem) as Arc<dyn Filesystem>, &groups);
        filesystem.close_all();
    }
    drop(tenant);
    groups.finish();
    std::mem::take(&mut kernel.state().outcome)
}

fn tmpfs(groups: &Hierarchy, tenant: &Arc<Group>) -> Arc<DataFs> {
    let config = TmpfsConfig { size_bytes: Some(TENANT_BYTES), ..TmpfsConfig::default() };
    let volumes = Volumes::single(Tmpfs::new(&groups.engine, &config, 0));
    let classifier = Arc::new(RootOnly(Arc::clone(tenant)));
    DataFs::new(&groups.engine, volumes, classifier, Lifetimes::default()).unwrap()
}

fn serve(kernel: &Arc<Kernel>, filesystem: Arc<dyn Filesystem>, groups: &Hierarchy) {
    let pool = PoolLimits { readers_max: 1, ..PoolLimits::default() };
    let config = SessionConfig { pool, ..SessionConfig::default() };
    let transport = Arc::clone(kernel) as Arc<dyn Transport>;
    let Ok(session) = Session::start_on(vec![transport], filesystem, config) else { return };
    session.wait(None);
    assert!(session.failure().is_none());
    groups.check();
}

/// Parses bytes as one message, whatever length and extensions they claim to have.
fn parse(input: &[u8]) {
    let mut message = input.to_vec();
    message.resize(message.len().max(IN_HEADER_BYTES), 0);
    message.truncate(MAX_PAYLOAD_BYTES);
    let len = message.len() as u32;
    message[..4].copy_from_slice(&len.to_ne_bytes());
    for setxattr_ext in [false, true] {
        let dialect = Dialect { setxattr_ext };
        let _ = Op::parse(input, dialect);
        let parsed = Op::parse(&message, dialect);
        if let Ok(Op::BatchForget(list)) = parsed {
            let _: (ForgetList<'_>, usize) = (list, list.iter().count());
        }
        if let Ok(Op::Write { data, arg }) = parsed {
            let header = InHeader::parse(&message).unwrap();
            let payload = write_payload(&header, &message).expect("a write has a payload");
            assert_eq!((payload.offset, &message[payload.at..][..data.len()]), (arg.offset, data));
            let nr_kept = payload.at + data.len() / 2;
            shorten(header, message[..nr_kept].to_vec(), dialect, &data[..data.len() / 2]);
        }
    }
}

fn shorten(mut header: InHeader, mut beginning: Vec<u8>, dialect: Dialect, expected: &[u8]) {
    // A write has no extensions to lose.
    header.total_extlen = 0;
    shorten_write(&mut header, &mut beginning);
    match Op::parse(&beginning, dialect) {
        Ok(Op::Write { data, .. }) => assert_eq!(data, expected),
        other => panic!("a shortened write is {other:?}"),
    }
}

/// The other end of a session: sends the requests of the lines, one after the other.
#[derive(Debug)]
struct Kernel {
    state: Mutex<State>,
    answered: Condvar,
}

#[derive(Debug)]
struct State {
    lines: VecDeque<Vec<u8>>,
    nr_sent: u64,
    /// The request that waits for an answer.
    due: Option<Due>,
    /// The nodes named by answers.
    nodes: Vec<u64>,
    handles: Vec<u64>,
    outcome: Outcome,
}

#[derive(Debug)]
struct Due {
    unique: u64,
    opcode: u32,
    /// No process waits for the answer.
    is_gone: bool,
}

impl Kernel {
    fn new<'a>(minor: u32, lines: impl Iterator<Item = &'a [u8]>) -> Self {
        let init = format!("26 0 #7 #{minor} #131072 #4294967295 #4294967295");
        let lines = std::iter::once(init.into_bytes()).chain(lines.map(<[u8]>::to_vec)).collect();
        let (nodes, handles) = (vec![1], Vec::new());
        let state = State { lines, nr_sent: 0, due: None, nodes, handles, outcome: Outcome::default() };
        Self { state: Mutex::new(state), answered: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Transport for Kernel {
    fn receive(&self, buffer: &mut [u8]) -> Result<usize, ReceiveError> {
        // The driver reports an input that never ends.
        let waited = self.answered.wait_while(self.state(), |state| state.due.is_some());
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        let line = state.lines.pop_front().ok_or(ReceiveError::Ended)?;
        let message = state.message(&line);
        buffer[..message.len()].copy_from_slice(&message);
        Ok(message.len())
    }

    fn send(&self, header: &[u8], payload: Payload<'_>) -> Result<(), SendError> {
        let header = OutHeader::read_from_bytes(header).expect("an answer begins with its header");
        assert_eq!(header.len as usize, size_of::<OutHeader>() + payload.len(), "length of an answer");
        assert!((-4095..=0).contains(&header.error) || header.unique == 0, "error {}", header.error);
        // Notifications, and interrupts. An interrupt is answered only to have it repeated.
        if header.unique == 0 || header.unique & INTERRUPT_BIT != 0 {
            return Ok(());
        }
        let mut state = self.state();
        let due = match state.due.take() {
            Some(due) if due.unique == header.unique => due,
            other => panic!("an answer to {}, but due is {other:?}", header.unique),
        };
        state.outcome.note((due.opcode, header.error, due.is_gone));
        if let (Payload::Bytes(bytes), false, 0) = (payload, due.is_gone, header.error) {
            state.learn(due.opcode, bytes);
        }
        self.answered.notify_all();
        if due.is_gone { Err(SendError::Gone) } else { Ok(()) }
    }
}

impl State {
    /// Keeps the node and the handle named by an answer.
    fn learn(&mut self, opcode: u32, answer: &[u8]) {
        let entry = EntryOut::read_from_prefix(answer).ok().map(|(entry, _)| entry.nodeid);
        let (node, handle) = match opcode {
            opcode::LOOKUP | opcode::MKNOD | opcode::MKDIR | opcode::SYMLINK | opcode::LINK => (entry, None),
            opcode::OPEN | opcode::OPENDIR => {
                (None, OpenOut::read_from_prefix(answer).ok().map(|(open, _)| open.fh))
            }
            opcode::CREATE | opcode::TMPFILE => {
                (entry, CreateOut::read_from_prefix(answer).ok().map(|(created, _)| created.open.fh))
            }
            _ => return,
        };
        self.nodes.extend(node.filter(|&node| node != 0 && !self.nodes.contains(&node)));
        self.handles.extend(handle);
    }

    /// Returns the request of a line, and records that its answer is due.
    fn message(&mut self, line: &[u8]) -> Vec<u8> {
        let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
        let first = words.next().unwrap_or_default();
        let nr_digits = first.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let opcode = parse_decimal(&first[..nr_digits]).unwrap_or(0) as u32;
        let node = words.next().and_then(parse_decimal).unwrap_or(0);
        let mut header = InHeader {
            opcode,
            unique: 2 + 2 * self.nr_sent,
            nodeid: nth(&self.nodes, node),
            ..InHeader::default()
        };
        let mut body = Vec::new();
        for word in words {
            self.add_word(word, &mut body, &mut header);
        }
        body.truncate(MAX_PAYLOAD_BYTES);
        header.len = (IN_HEADER_BYTES + body.len()) as u32;
        self.nr_sent += 1;
        let is_answered = !matches!(
            opcode,
            opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT | opcode::NOTIFY_REPLY
        );
        // A known request that is interrupted would be answered twice; there is no other thread.
        let is_gone = first.contains(&b'!') && opcode != opcode::INIT;
        self.due = is_answered.then_some(Due { unique: header.unique, opcode, is_gone });
        [header.as_bytes(), &body].concat()
    }

    fn add_word(&self, word: &[u8], body: &mut Vec<u8>, header: &mut InHeader) {
        let number = |text: &[u8]| parse_decimal(text).unwrap_or(0);
        match word {
            [b'#', b'#', text @ ..] => body.extend(number(text).to_ne_bytes()),
            [b'#', text @ ..] => body.extend((number(text) as u32).to_ne_bytes()),
            [b'@', text @ ..] => body.extend(nth(&self.handles, number(text)).to_ne_bytes()),
            [b'$', text @ ..] => body.extend(nth(&self.nodes, number(text)).to_ne_bytes()),
            [b'*', text @ ..] => body.resize(body.len() + number(text).min(FILLED_BYTES_MAX) as usize, b'x'),
            [b'^', text @ ..] => header.total_extlen = number(text) as u16,
            [b'=', text @ ..] => body.extend(text),
            name => {
                body.extend(name);
                body.push(0);
            }
        }
    }
}

/// Returns the nth learned number, or `number` itself if there are fewer.
fn nth(learned: &[u64], number: u64) -> u64 {
    usize::try_from(number).ok().and_then(|at| learned.get(at)).copied().unwrap_or(number)
}
