//! `memory.high` at the end of a request: a request that charged reclaims and is slowed, and no
//! other.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::by_thread::ByThread;
use crate::common::{Memory, TestMount, can_mount, within};
use rustix::process::{Pid, Signal, kill_process};
use umemcg::files::{DirtyBound, DirtyThreshold};
use umemcg::{Engine, EngineConfig, EventKind, Group, StatItem};
use umemcg_fuse::{Classifier, Daemon, DaemonConfig, Unmount};

const MIB: u64 = 1 << 20;
const SOON: Duration = crate::common::TIMEOUT;

fn engine(pool_bytes: u64) -> Arc<Engine> {
    Engine::new(EngineConfig::new(pool_bytes)).unwrap()
}

fn group(engine: &Engine, name: &str) -> Arc<Group> {
    engine.create_group(engine.root(), OsStr::new(name)).unwrap()
}

/// The kernel's own test of `memory.high`, with a reader.
#[test]
fn a_reader_over_high_ends_at_it_and_never_meets_the_limit() {
    if !can_mount() {
        return;
    }
    let (data, mnt) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(data.path().join("f"), vec![1; 50 << 20]).unwrap();
    let engine = engine(96 * MIB);
    let reader = group(&engine, "reader");
    engine.set_high(&reader, 30 * MIB);
    let classifier = ByThread::new(engine.root());
    let daemon =
        Daemon::start(&engine, classifier.clone(), &DaemonConfig::new(data.path(), mnt.path())).unwrap();
    let len = classifier.run(&reader, || fs::read(mnt.path().join("f")).unwrap().len());
    assert_eq!(len, 50 << 20);
    let usage = reader.usage_bytes();
    assert!((27 * MIB..=32 * MIB).contains(&usage), "{usage}");
    assert!(reader.event_count(EventKind::High) > 0);
    assert_eq!(reader.event_count(EventKind::Max), 0);
    assert_eq!(daemon.shut_down(Instant::now() + SOON), []);
}

#[test]
fn a_group_over_its_high_is_charged_for_what_it_reads_alone() {
    if !can_mount() {
        return;
    }
    let (data, mnt) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(data.path().join("f"), vec![1; 4 << 20]).unwrap();
    let engine = engine(64 * MIB);
    let reader = group(&engine, "reader");
    let classifier = ByThread::new(engine.root());
    let daemon =
        Daemon::start(&engine, classifier.clone(), &DaemonConfig::new(data.path(), mnt.path())).unwrap();
    // What cannot be reclaimed, a little over the limit: 5 % are answered after some milliseconds
    // for each page.
    let held = reader.charge_forced(MIB);
    engine.set_high(&reader, MIB * 20 / 21);
    let nr_charged = || reader.stat_local(StatItem::PgPgIn);
    let before = nr_charged();
    classifier.run(&reader, || {
        let file = fs::File::open(mnt.path().join("f")).unwrap();
        (0..8).for_each(|page| file.read_exact_at(&mut [0; 4096], page * 4096).unwrap());
    });
    let nr_charged = nr_charged() - before;
    assert!((8..64).contains(&nr_charged), "{nr_charged} pages for 8 reads");
    drop(held);
    assert_eq!(daemon.shut_down(Instant::now() + SOON), []);
}

#[test]
fn a_stream_of_writes_stays_near_a_small_high_and_arrives_whole() {
    if !can_mount() {
        return;
    }
    let (data, mnt) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let engine = engine(64 * MIB);
    let writer = group(&engine, "writer");
    engine.set_high(&writer, 4 * MIB);
    let classifier = ByThread::new(engine.root());
    let daemon =
        Daemon::start(&engine, classifier.clone(), &DaemonConfig::new(data.path(), mnt.path())).unwrap();
    let piece = |n: u32| n.wrapping_mul(0x9e37_79b1).to_ne_bytes().repeat(1 << 16);
    classifier.run(&writer, || {
        let mut file = fs::File::create(mnt.path().join("f")).unwrap();
        for n in 0..64 {
            file.write_all(&piece(n)).unwrap();
            if n % 4 == 3 {
                file.sync_data().unwrap();
            }
        }
    });
    let peak = writer.peak_bytes();
    assert!(peak <= 6 * MIB, "{peak}");
    assert!(writer.event_count(EventKind::High) > 0);
    assert_eq!(writer.event_count(EventKind::Max), 0);
    let written = fs::read(mnt.path().join("f")).unwrap();
    assert!(
        written.chunks(1 << 18).zip(0..).all(|(bytes, n)| bytes == piece(n)) && written.len() == 16 << 20
    );
    assert_eq!(daemon.shut_down(Instant::now() + SOON), []);
}

/// Other processes are in a group of theirs; threads of this one are not.
#[derive(Debug)]
struct Others(Arc<Group>, Arc<Group>);

impl Classifier for Others {
    fn classify(&self, tid: u32, _uid: u32, _gid: u32) -> Arc<Group> {
        let ours = tid == 0 || fs::exists(format!("/proc/self/task/{tid}")).unwrap();
        if ours { self.0.clone() } else { self.1.clone() }
    }
}

#[test]
fn a_group_stuck_over_its_high_waits_alone_and_can_be_killed() {
    if !can_mount() {
        return;
    }
    // A store that takes nothing: what is written stays.
    let memory = Memory::with(&[("hang-a", b""), ("hang-b", b""), ("calm", &[b'y'; 4096])]);
    let below = TestMount::new(memory.clone());
    let mnt = tempfile::tempdir().unwrap();
    let engine = engine(64 * MIB);
    let (we, slowed) = (group(&engine, "we"), group(&engine, "slowed"));
    engine.set_high(&slowed, MIB);
    // So that it is not its dirty limit that it meets.
    let limits = engine.cache().dirty_limits();
    limits.set_bound(&slowed, DirtyThreshold::Foreground, DirtyBound::Bytes(32 * MIB));
    let classifier = Arc::new(Others(Arc::clone(&we), Arc::clone(&slowed)));
    let daemon = Daemon::start(&engine, classifier, &DaemonConfig::new(below.point(), mnt.path())).unwrap();

    let file = fs::File::options().write(true).open(mnt.path().join("hang-a")).unwrap();
    file.write_all_at(&[1; 2 << 20], 0).unwrap();
    assert_eq!(daemon.filesystem().nr_delayed(), 0, "without a high no answer waits");

    let output = format!("of={}", mnt.path().join("hang-b").display());
    let mut writer = Command::new("dd")
        .args(["if=/dev/zero", &output, "bs=512k", "count=1000", "conv=notrunc"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let parked = within(SOON, || daemon.filesystem().nr_delayed() == 1);
    let calm = fs::read(mnt.path().join("calm"));
    let usage = slowed.usage_bytes();
    kill_process(Pid::from_child(&writer), Signal::KILL).unwrap();
    let ended = within(SOON, || writer.try_wait().unwrap().is_some());
    memory.gate.open();
    assert!(parked.is_some());
    assert_eq!(calm.unwrap().len(), 4096);
    assert!(usage <= 4 * MIB, "{usage}");
    assert!(ended.is_some(), "it ends while the store hangs");
    assert!(slowed.event_count(EventKind::High) > 0);
    let pressure = [&slowed, &we].map(|group| umemcg::internal::pressure(group).full.total);
    assert!(pressure[0] > Duration::ZERO && pressure[1].is_zero(), "{pressure:?}");
    drop(daemon);
    let _ = below.unmount(Unmount::ByForce);
}

#[test]
fn a_request_that_holds_a_directory_is_not_delayed() {
    if !can_mount() {
        return;
    }
    let (data, mnt) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(data.path().join("there"), "text").unwrap();
    let engine = engine(64 * MIB);
    let slowed = group(&engine, "slowed");
    let classifier = ByThread::new(engine.root());
    let daemon =
        Daemon::start(&engine, classifier.clone(), &DaemonConfig::new(data.path(), mnt.path())).unwrap();
    engine.set_high(&slowed, MIB);
    // Nothing can bring it below.
    let held = engine.charge(&slowed, 2 * MIB).unwrap();
    let stalled = || umemcg::internal::pressure(&slowed).some.total;
    classifier.run(&slowed, || {
        for nr in 0..20 {
            let (made, link) = (mnt.path().join(format!("made {nr}")), mnt.path().join(format!("link {nr}")));
            fs::create_dir(&made).unwrap();
            std::os::unix::fs::symlink("anywhere", &link).unwrap();
            fs::remove_dir(&made).unwrap();
        }
    });
    assert!(stalled().is_zero(), "{:?}", stalled());
    // It charges little itself: without what was deferred it would be delayed by less.
    classifier.run(&slowed, || fs::read_link(mnt.path().join("link 3")).unwrap());
    classifier.run(&slowed, || fs::read(mnt.path().join("there")).unwrap());
    assert!(!stalled().is_zero());
    assert!(slowed.event_count(EventKind::High) > 0);
    drop(held);
    assert_eq!(daemon.shut_down(Instant::now() + SOON), []);
}
