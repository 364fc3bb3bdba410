//! The guarantees of a served mount, on real mounts.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use crate::common::{Memory, TIMEOUT, TestMount, can_mount, within};
use umemcg_fuse::{PoolLimits, SessionConfig, Unmount};

#[test]
fn a_file_can_be_read_through_a_mount() {
    if !can_mount() {
        return;
    }
    let mount = TestMount::new(Memory::with(&[("hello", b"hello, world\n")]));
    assert_eq!(std::fs::read(mount.path("hello")).unwrap(), b"hello, world\n");
    assert_eq!(std::fs::read(mount.path("absent")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    mount.unmount(Unmount::IfIdle).unwrap();
    assert!(mount.session.wait(Some(TIMEOUT)), "every thread ends with the mount");
}

#[test]
fn requests_of_a_mebibyte_arrive_whole() {
    if !can_mount() {
        return;
    }
    let memory = Memory::with(&[("big", b"")]);
    let mount = TestMount::new(memory.clone());
    let data: Vec<u8> = (0..3 << 20).map(|n: u32| (n * 7 / 3) as u8).collect();
    let mut file = std::fs::OpenOptions::new().read(true).write(true).open(mount.path("big")).unwrap();
    file.write_all(&data).unwrap();
    let mut back = vec![0; data.len()];
    file.read_exact_at(&mut back, 0).unwrap();
    assert!(data == back);
    assert_eq!(memory.largest_write.load(Ordering::Relaxed), 1 << 20);
    assert_eq!(memory.largest_read.load(Ordering::Relaxed), 1 << 20);
    assert_eq!(file.read(&mut back).unwrap(), 0, "the file ends where it was written to");
}

#[test]
fn a_handler_that_panics_costs_its_request_and_nothing_else() {
    if !can_mount() {
        return;
    }
    let mount = TestMount::new(Memory::with(&[("panic", b"x"), ("calm", b"y")]));
    assert_eq!(std::fs::read(mount.path("panic")).unwrap_err().raw_os_error(), Some(5));
    assert_eq!(std::fs::read(mount.path("calm")).unwrap(), b"y");
}

#[test]
fn threads_that_wait_for_an_answer_are_listed() {
    if !can_mount() {
        return;
    }
    let memory = Memory::with(&[("hang", b"x")]);
    let mount = TestMount::new(memory.clone());
    let path = mount.path("hang");
    let (sender, receiver) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        sender.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
        std::fs::read(path).unwrap()
    });
    let tid = receiver.recv().unwrap();
    assert!(within(TIMEOUT, || mount.session.waiting_threads() == [tid]).is_some());
    memory.gate.open();
    assert_eq!(reader.join().unwrap(), b"x");
    assert!(within(TIMEOUT, || mount.session.waiting_threads().is_empty()).is_some());
}

#[test]
fn a_hanging_store_does_not_keep_others_waiting() {
    if !can_mount() {
        return;
    }
    let memory = Memory::with(&[("hang", b"x"), ("calm", b"y")]);
    let mount = TestMount::new(memory.clone());
    let readers: Vec<_> = (0..100)
        .map(|_| {
            let path = mount.path("hang");
            std::thread::spawn(move || std::fs::read(path).unwrap())
        })
        .collect();
    let pool_counts = || mount.session.pool_counts();
    let counts = || (pool_counts().nr_running, pool_counts().nr_waiting);
    assert!(
        within(TIMEOUT, || counts() == (21, 79)).is_some(),
        "one group on one store has a quarter of the places, with those of what sleeps: {:?}",
        counts()
    );
    for _ in 0..100 {
        assert_eq!(std::fs::read(mount.path("calm")).unwrap(), b"y");
    }
    memory.gate.open();
    for reader in readers {
        assert_eq!(reader.join().unwrap(), b"x");
    }
}

#[test]
fn only_a_reader_that_does_not_come_back_is_stuck() {
    if !can_mount() {
        return;
    }
    let memory = Memory::with(&[("hang", b"x"), ("calm", b"y")]);
    let mount = TestMount::new(memory.clone());
    let mut watch = mount.session.watch_readers();
    // Each thread whose turn is over by then is well at every second look.
    let mut settled = |nr_stuck: usize| {
        within(TIMEOUT, || watch.look().len() == nr_stuck && watch.look().len() == nr_stuck)
    };
    assert!(settled(0).is_some(), "an idle mount is well");
    let hung = mount.path("hang");
    let slow = std::thread::spawn(move || std::fs::read(hung).unwrap());
    assert!(within(TIMEOUT, || mount.session.pool_counts().nr_running == 1).is_some());
    assert!(settled(0).is_some(), "a request that waits for its store is no stuck reader");
    // The file system answers lookups under this lock, on the thread that has read the request.
    let files = memory.files.lock().unwrap();
    let path = mount.path("calm");
    let blocked = std::thread::spawn(move || std::fs::read(path).unwrap());
    assert!(settled(1).is_some(), "a reader that hangs in a request is stuck");
    drop(files);
    assert_eq!(blocked.join().unwrap(), b"y");
    assert!(settled(0).is_some(), "it has come back");
    memory.gate.open();
    assert_eq!(slow.join().unwrap(), b"x");
}

#[test]
fn two_hundred_sleepers_leave_others_served_and_then_go() {
    if !can_mount() {
        return;
    }
    const NR_GROUPS: usize = 20;
    let names: Vec<String> = (0..NR_GROUPS).map(|nr| format!("hang{nr}")).collect();
    let mut files: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), b"x".as_slice())).collect();
    files.extend([("calm", b"y".as_slice()), ("same", b"y".as_slice())]);
    let memory = Memory::with(&files);
    let pool = PoolLimits {
        spare_life: Duration::from_millis(1),
        running_max: 64,
        all_max: 256,
        ..Default::default()
    };
    let mount = TestMount::with(memory.clone(), SessionConfig { pool, ..Default::default() });
    let readers: Vec<_> = (0..200)
        .map(|nr| {
            let path = mount.path(&names[nr % NR_GROUPS]);
            std::thread::spawn(move || std::fs::read(path).unwrap())
        })
        .collect();
    let counts = || mount.session.pool_counts();
    assert!(within(TIMEOUT, || counts().nr_running + counts().nr_waiting == 200).is_some(), "{:?}", counts());
    assert!(counts().nr_running >= NR_GROUPS, "each group has one running at least: {:?}", counts());
    // Another store, several requests at a time; and another group on the store that hangs.
    let (sender, done) = std::sync::mpsc::channel();
    for name in ["calm", "calm", "calm", "calm", "same"] {
        let (path, sender) = (mount.path(name), sender.clone());
        std::thread::spawn(move || {
            (0..100).for_each(|_| sender.send(std::fs::read(&path).unwrap()).unwrap())
        });
    }
    let nr_read = (0..500).take_while(|_| done.recv_timeout(TIMEOUT).is_ok()).count();
    memory.gate.open();
    readers.into_iter().for_each(|reader| assert_eq!(reader.join().unwrap(), b"x"));
    assert_eq!(nr_read, 500, "the others waited for what sleeps");
    let shrunk = within(TIMEOUT, || counts().nr_threads <= pool.readers_max);
    assert!(shrunk.is_some(), "threads that nothing needs stay: {:?}", counts());
}

#[test]
fn a_neighbour_on_a_store_that_is_busy_has_its_part_of_it() {
    if !can_mount() {
        return;
    }
    let memory = Memory::with(&[("hang", b"x"), ("same", b"y")]);
    let mount = TestMount::new(memory.clone());
    let readers: Vec<_> = (0..100)
        .map(|_| {
            let path = mount.path("hang");
            std::thread::spawn(move || std::fs::read(path).unwrap())
        })
        .collect();
    let pool_counts = || mount.session.pool_counts();
    assert!(within(TIMEOUT, || pool_counts().nr_running + pool_counts().nr_waiting == 100).is_some());
    let (sender, done) = std::sync::mpsc::channel();
    let path = mount.path("same");
    std::thread::spawn(move || (0..100).for_each(|_| sender.send(std::fs::read(&path).unwrap()).unwrap()));
    let nr_read = (0..100).take_while(|_| done.recv_timeout(TIMEOUT).is_ok()).count();
    memory.gate.open();
    readers.into_iter().for_each(|reader| assert_eq!(reader.join().unwrap(), b"x"));
    assert_eq!(nr_read, 100);
}

#[test]
fn asynchronous_reads_that_hang_leave_the_kernels_budget() {
    if !can_mount() {
        return;
    }
    let bytes = vec![7; 500 * 4096];
    let memory = Memory::with(&[("hang", &bytes), ("calm", &bytes)]);
    let mount = TestMount::new(memory.clone());
    let program = mount.point().with_extension("aio");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../umemcg-cli/tests/all/real_mount/aio_threads.c");
    let compiled = Command::new("gcc").args(["-pthread", "-o"]).arg(&program).arg(source).status();
    assert!(compiled.is_ok_and(|status| status.success()), "needs gcc");
    let start = |name: &str, nr_threads: &str| {
        let mut command = Command::new(&program);
        command
            .arg(mount.path(name))
            .args([nr_threads, "1", "4096"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (mut input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        input.write_all(b"begin\nread\nend\n").unwrap();
        (child, BufReader::new(output).lines())
    };
    let (mut hanging, _lines) = start("hang", "500");
    let pool_counts = || mount.session.pool_counts();
    let is_full = within(TIMEOUT, || pool_counts().nr_running + pool_counts().nr_waiting >= 500);
    let (mut calm, mut lines) = start("calm", "1");
    let (sender, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(lines.any(|line| line.unwrap() == "read 1")));
    let was_read = done.recv_timeout(TIMEOUT);
    memory.gate.open();
    let _ = (hanging.kill(), hanging.wait(), calm.wait(), std::fs::remove_file(&program));
    assert_eq!(was_read, Ok(true), "{:?}", pool_counts());
    assert!(is_full.is_some());
}
