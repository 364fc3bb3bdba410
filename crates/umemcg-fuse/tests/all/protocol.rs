//! The session against a kernel that says whatever the test wants: a socket that keeps messages
//! apart stands in for the device.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::common::{Memory, TIMEOUT, within};
use proptest::prelude::*;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use umemcg_fuse::wire::request::InitShortIn;
use umemcg_fuse::wire::{InHeader, OutHeader, opcode};
use umemcg_fuse::{Device, PoolLimits, Session, SessionConfig, SessionError};
use zerocopy::{FromBytes, IntoBytes};

/// The other end of a session.
struct Kernel {
    socket: OwnedFd,
}

fn message(opcode: u32, unique: u64, body: &[u8]) -> Vec<u8> {
    let len = (size_of::<InHeader>() + body.len()) as u32;
    let header = InHeader { len, opcode, unique, nodeid: 2, ..Default::default() };
    [header.as_bytes(), body].concat()
}

impl Kernel {
    fn pair() -> (Self, Device) {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::sockopt::set_socket_timeout(&ours, rustix::net::sockopt::Timeout::Recv, Some(TIMEOUT))
            .unwrap();
        (Self { socket: ours }, Device::new(theirs))
    }

    fn say(&self, bytes: &[u8]) {
        send(self.socket.as_fd(), bytes, SendFlags::empty()).unwrap();
    }

    fn hear(&self) -> (OutHeader, Vec<u8>) {
        let mut buffer = vec![0; 1 << 16];
        let (len, _) = recv(self.socket.as_fd(), &mut buffer[..], RecvFlags::empty()).unwrap();
        let (header, body) = OutHeader::read_from_prefix(&buffer[..len]).unwrap();
        assert_eq!(header.len as usize, len);
        (header, body.to_vec())
    }

    fn init(&self, major: u32, minor: u32) {
        let init = InitShortIn { major, minor, max_readahead: 1 << 17, flags: 0 };
        self.say(&message(opcode::INIT, 2, init.as_bytes()));
    }

    fn serve(memory: &Arc<Memory>) -> (Self, Session) {
        let (kernel, device) = Self::pair();
        kernel.init(7, 31);
        let pool = PoolLimits { readers_max: 1, ..Default::default() };
        let session =
            Session::start(device, memory.clone(), SessionConfig { pool, ..SessionConfig::default() })
                .unwrap();
        assert_eq!(kernel.hear().0.error, 0);
        (kernel, session)
    }

    /// Asks for the attributes of a file, which always works while the session lives.
    fn is_served(&self) {
        self.say(&message(opcode::GETATTR, 998, &[0; 16]));
        loop {
            let (header, _) = self.hear();
            if header.unique == 998 {
                assert_eq!(header.error, 0);
                return;
            }
        }
    }
}

fn errno(errno: Errno) -> i32 {
    -errno.raw_os_error()
}

#[test]
fn unknown_requests_are_answered_with_enosys() {
    let (kernel, _session) = Kernel::serve(&Memory::with(&[("f", b"x")]));
    for unknown in [7, 19, 31, 37, 99, 4096, u32::MAX] {
        kernel.say(&message(unknown, 10, b"whatever"));
        let (header, body) = kernel.hear();
        assert_eq!((header.unique, header.error, body.len()), (10, errno(Errno::NOSYS), 0), "{unknown}");
    }
    kernel.is_served();
}

#[test]
fn a_request_without_its_argument_is_answered_with_einval() {
    let (kernel, _session) = Kernel::serve(&Memory::with(&[("f", b"x")]));
    for (opcode, body) in
        [(opcode::READ, &[0u8; 39][..]), (opcode::LOOKUP, b"no end"), (opcode::WRITE, &[255; 40])]
    {
        kernel.say(&message(opcode, 12, body));
        let (header, _) = kernel.hear();
        assert_eq!((header.unique, header.error), (12, errno(Errno::INVAL)), "{opcode}");
    }
    kernel.is_served();
}

#[test]
fn what_is_no_request_is_passed_over() {
    let (kernel, _session) = Kernel::serve(&Memory::with(&[("f", b"x")]));
    kernel.say(b"x");
    kernel.say(&[0; 39]);
    let mut long = message(opcode::STATFS, 14, &[]);
    long.push(0);
    kernel.say(&long);
    // Nothing to answer, whatever they hold.
    kernel.say(&message(opcode::FORGET, 16, &[]));
    kernel.say(&message(opcode::BATCH_FORGET, 18, &[255; 8]));
    kernel.is_served();
}

#[test]
fn an_interrupt_of_an_unknown_request_is_to_be_repeated() {
    let (kernel, _session) = Kernel::serve(&Memory::with(&[("f", b"x")]));
    kernel.say(&message(opcode::INTERRUPT, 21, &20u64.to_ne_bytes()));
    let (header, _) = kernel.hear();
    assert_eq!((header.unique, header.error), (21, errno(Errno::AGAIN)));
}

#[test]
fn an_interrupted_request_of_an_unseen_thread_ends_after_a_time() {
    let memory = Memory::with(&[("hang", b"x")]);
    let (kernel, session) = Kernel::serve(&memory);
    kernel.say(&message(opcode::READ, 30, &[0; 40]));
    assert!(within(TIMEOUT, || session.nr_inflight() == 1).is_some());
    kernel.say(&message(opcode::INTERRUPT, 31, &30u64.to_ne_bytes()));
    let (header, _) = kernel.hear();
    assert_eq!((header.unique, header.error), (30, errno(Errno::INTR)));
    memory.gate.open();
    assert!(within(TIMEOUT, || session.pool_counts().nr_running == 0).is_some());
    kernel.is_served();
}

#[test]
fn a_protocol_that_is_not_spoken_is_refused() {
    let (kernel, device) = Kernel::pair();
    kernel.init(7, 12);
    let error = Session::start(device, Memory::with(&[]), SessionConfig::default()).unwrap_err();
    assert!(matches!(error, SessionError::Protocol { major: 7, minor: 12 }), "{error}");
    assert_eq!(kernel.hear().0.error, errno(Errno::PROTO));
}

#[test]
fn a_newer_kernel_is_asked_to_come_down() {
    let (kernel, device) = Kernel::pair();
    kernel.init(8, 0);
    kernel.init(7, 31);
    let _session = Session::start(device, Memory::with(&[]), SessionConfig::default()).unwrap();
    let (header, body) = kernel.hear();
    assert_eq!((header.error, &body[..4]), (0, &7u32.to_ne_bytes()[..]));
    assert_eq!(kernel.hear().0.error, 0);
}

#[test]
fn the_session_ends_with_its_kernel() {
    let (kernel, session) = Kernel::serve(&Memory::with(&[]));
    drop(kernel);
    assert!(session.wait_gone(Some(TIMEOUT)));
    assert!(session.wait(Some(TIMEOUT)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]
    #[test]
    fn no_bytes_whatever_stop_the_session(
        messages in prop::collection::vec((0u32..60, prop::collection::vec(any::<u8>(), 0..100)), 1..40),
    ) {
        let memory = Memory::with(&[("f", b"x")]);
        memory.gate.open();
        let (kernel, _session) = Kernel::serve(&memory);
        for (opcode, body) in messages {
            // A write may make the file as long as it likes, and an interrupt may ask to be
            // repeated.
            if !matches!(opcode, opcode::WRITE | opcode::INIT) {
                kernel.say(&message(opcode, 40, &body));
            }
        }
        kernel.is_served();
    }
}
