//! Threads that meet on one object: each waits for what another does to it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::memory_bucket::ChangeFault;
use crate::common::object_world::{World, errno};
use rustix::io::Errno;
use umemcg_vfs::{OFlags, RenameFlags, SetAttr, VfsError, Volume};

const WAIT: Duration = Duration::from_secs(60);

/// Starts a thread, and returns when it sleeps: it waits for a request or for another thread.
fn start<R: Send + 'static>(act: impl FnOnce() -> R + Send + 'static) -> JoinHandle<R> {
    let (sender, receiver) = channel();
    let thread = std::thread::spawn(move || {
        sender.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
        act()
    });
    let stat = PathBuf::from("/proc").join(receiver.recv().unwrap()).join("stat");
    let until = Instant::now() + WAIT;
    // A look at a lock takes less than this.
    let mut nr_asleep = 0;
    while nr_asleep < 20 && !thread.is_finished() {
        assert!(Instant::now() < until, "it never waits");
        std::thread::sleep(Duration::from_millis(2));
        let text = std::fs::read_to_string(&stat).unwrap_or_default();
        nr_asleep = if text.contains(") S ") { nr_asleep + 1 } else { 0 };
    }
    thread
}

fn end<R>(thread: JoinHandle<R>) -> R {
    thread.join().unwrap()
}

#[test]
fn what_lost_while_others_waited_is_lost_once() {
    let w = World::new();
    let file = w.create("f").unwrap();
    w.write(&file, 0, b"ours").unwrap();
    w.bucket.gate.close();
    let flushing = start({
        let file = Arc::clone(&file);
        move || file.flush()
    });
    let syncing = start({
        let volume = Arc::clone(&w.volume);
        move || volume.syncfs()
    });
    w.bucket.put("f", "theirs");
    w.bucket.gate.open();
    assert_eq!(errno(end(flushing)), Some(Errno::IO));
    let _ = end(syncing);
    assert!(file.flush().is_ok(), "told once");
    let staged = w.staged();
    assert_eq!(staged.len(), 1, "{staged:?}");
    assert_eq!(std::fs::read(&staged[0].path).unwrap(), b"ours");
}

#[test]
fn of_two_renamings_of_a_directory_one_fails() {
    let w = World::new();
    w.bucket.put("x/f", "bytes");
    let file = w.open("x/f", OFlags::RDWR).unwrap();
    w.write(&file, 0, b"BYTES").unwrap();
    w.bucket.gate.close();
    let flushing = start({
        let file = Arc::clone(&file);
        move || file.flush()
    });
    let renaming = |to: &'static str, thread: u32| {
        let w = w.of_thread(thread);
        start(move || w.rename("x", to, RenameFlags::empty()))
    };
    let renamings = [renaming("y", 2), renaming("z", 3)];
    w.bucket.gate.open();
    end(flushing).unwrap();
    let renamed: Vec<Result<(), VfsError>> = renamings.into_iter().map(end).collect();
    assert_eq!(renamed.iter().filter(|renamed| renamed.is_ok()).count(), 1, "{renamed:?}");
    let to = if renamed[0].is_ok() { "y" } else { "z" };
    assert_eq!(w.bucket.keys(), [format!("{to}/f")]);
    w.write(&file, 0, b"again").unwrap();
    file.flush().unwrap();
    assert_eq!(w.stored(&format!("{to}/f")).unwrap(), b"again");
}

#[test]
fn a_file_follows_the_directory_that_it_is_renamed_to() {
    let w = World::new();
    w.mkdir("x").unwrap();
    let file = w.create("f").unwrap();
    w.write(&file, 0, b"bytes").unwrap();
    w.bucket.gate.close();
    let flushing = start({
        let file = Arc::clone(&file);
        move || file.flush()
    });
    let into = w.of_thread(2);
    let into = start(move || into.rename("f", "x/f", RenameFlags::empty()));
    let renaming = w.of_thread(3);
    let renaming = start(move || renaming.rename("x", "y", RenameFlags::empty()));
    w.bucket.gate.open();
    end(flushing).unwrap();
    end(renaming).unwrap();
    end(into).unwrap();
    assert_eq!(w.bucket.keys(), ["y/", "y/f"]);
    assert_eq!(w.get("y/f").unwrap(), b"bytes");
}

#[test]
fn what_is_renamed_while_it_is_cut_is_stored_as_renamed() {
    let w = World::new();
    let file = w.create("a").unwrap();
    w.write(&file, 0, b"bytes").unwrap();
    w.bucket.gate.close();
    let syncing = start({
        let volume = Arc::clone(&w.volume);
        move || volume.syncfs()
    });
    let renaming = w.of_thread(2);
    let renaming = start(move || renaming.rename("a", "b", RenameFlags::empty()));
    let cutting = start({
        let (file, me) = (Arc::clone(&file), w.me.clone());
        move || file.setattr(&me, &SetAttr { size: Some(3), ..SetAttr::default() })
    });
    w.bucket.gate.open();
    end(syncing).unwrap();
    end(renaming).unwrap();
    end(cutting).unwrap();
    file.fsync(false).unwrap();
    assert_eq!((w.bucket.keys(), w.stored("b").unwrap()), (vec!["b".to_owned()], b"byt".to_vec()));
    assert!(w.staged().is_empty());
}

#[test]
fn what_a_renaming_may_have_left_is_removed() {
    let w = World::new();
    for had_name in [true, false] {
        let source = w.create("from").unwrap();
        w.write(&source, 0, b"source").unwrap();
        let before = had_name.then(|| w.create("to").unwrap());
        w.bucket.fail_changes([ChangeFault::AnswerLost]);
        assert_eq!(errno(w.rename("from", "to", RenameFlags::empty())), Some(Errno::IO));
        assert_eq!(w.stored("to").unwrap(), b"source");
        let file = before.unwrap_or_else(|| w.create_with("to", OFlags::RDWR | OFlags::CREATE).unwrap());
        w.unlink("to").unwrap();
        assert_eq!(w.stored("to"), None, "it had a name: {had_name}");
        drop(file);
        w.unlink("from").unwrap();
    }
}

#[test]
fn a_removal_takes_no_name_that_another_program_made_anew() {
    let w = World::new();
    w.put("f", b"first").unwrap();
    let (other, (sender, receiver)) = (w.of_thread(2), channel());
    *w.bucket.after_delete.lock().unwrap() = Some(Box::new(move || {
        other.bucket.put("f", "theirs");
        let file = other.open("f", OFlags::RDWR).unwrap();
        other.write(&file, 0, b"THEIRS").unwrap();
        sender.send(file).unwrap();
    }));
    w.unlink("f").unwrap();
    receiver.recv().unwrap().flush().unwrap();
    assert_eq!(w.stored("f").unwrap(), b"THEIRS", "what is told to be stored is");
}
