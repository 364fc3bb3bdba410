//! A user: a thread in a group that does one random operation after another and compares each with
//! the model.
//!
//! Names are in `names.rs`, attributes in `attributes.rs`, data in `data.rs`, what is done without
//! privileges in `ordinary.rs`; all are methods of [`User`].

use std::fs;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;

use crate::together::disk::Random;
use crate::together::inode::Inode;
use crate::together::world::{GROUPS, Stop, World};

/// Files that a user has open at most.
const NR_OPEN_MAX: usize = 5;

/// An operation of users.
type Act = fn(&mut User) -> Result<(), Stop>;

/// Each operation, and how often it is done in shares.
const ACTS: [(Act, usize); 28] = [
    (User::write, 12),
    (User::append, 5),
    (User::read, 14),
    (User::read_all, 3),
    (User::map_read, 3),
    (User::map_write, 3),
    (User::read_asynchronously, 3),
    (User::write_asynchronously, 3),
    (User::truncate, 4),
    (User::punch, 4),
    (User::zero, 2),
    (User::allocate, 3),
    (User::sync, 4),
    (User::sync_directory, 1),
    (User::seek, 3),
    (User::open, 10),
    (User::close, 5),
    (User::make_file, 6),
    (User::make_nameless, 3),
    (User::make_directory, 2),
    (User::make_symlink, 2),
    (User::link, 4),
    (User::rename, 9),
    (User::unlink, 5),
    (User::list, 2),
    (User::stat, 6),
    (User::change_attributes, 8),
    (User::act_as_ordinary_user, 8),
];

/// One thread's state.
#[derive(Debug)]
pub struct User {
    pub world: Arc<World>,
    pub nr: usize,
    pub random: Random,
    /// The files that it has open for reading and writing.
    pub open: Vec<(Arc<Inode>, OwnedFd)>,
    acts: Vec<Act>,
    /// A description of the operation under way.
    pub what: String,
    pub operation: u64,
}

impl User {
    pub fn new(world: &Arc<World>, nr: usize, mut random: Random) -> Self {
        // What most users do seldom, some do all the time.
        let acts = ACTS.iter().flat_map(|&(act, share)| {
            let share = [0, share, share, share * 2, share * 6][random.below(5)].max(1);
            std::iter::repeat_n(act, share)
        });
        let acts = acts.collect();
        let world = Arc::clone(world);
        Self { world, nr, random, open: Vec::new(), acts, what: String::new(), operation: 0 }
    }

    /// Returns the index in [`GROUPS`] of its group.
    pub fn group(&self) -> usize {
        self.nr % GROUPS.len()
    }

    /// Works until the life is over.
    pub fn run(mut self) {
        self.join_group();
        self.work();
        // Closing is an operation, too.
        self.open.clear();
        self.world.end(self.nr);
    }

    fn join_group(&mut self) {
        self.world.begin(self.nr, "joins its group");
        let tasks = self.world.cg.join(GROUPS[self.group()]).join("tasks");
        let is_left_to_rules = self.world.has_rules && self.nr % 4 == 3;
        if !is_left_to_rules
            && let Err(error) = fs::write(tasks, rustix::thread::gettid().as_raw_nonzero().to_string())
        {
            self.world.fail(format!("user {} joins its group: {error}", self.nr));
        }
        self.world.have_joined.wait();
    }

    fn work(&mut self) {
        // What groups give is known from the group of an ordinary user alone.
        rustix::thread::set_thread_groups(&[]).expect("root may leave all groups");
        while !self.world.is_over() {
            let act = self.acts[self.random.below(self.acts.len())];
            match act(self) {
                Ok(()) => {}
                // Only the daemon's death ends a user so.
                Err(Stop::Over) => return,
                Err(Stop::Wrong(why)) => {
                    let (nr, operation, what) = (self.nr, self.operation, &self.what);
                    return self.world.fail(format!("user {nr}, operation {operation}: {what}: {why}"));
                }
            }
        }
    }

    /// Notes an operation that begins.
    pub fn begin(&mut self, what: String) {
        self.operation = self.world.begin(self.nr, &what);
        self.what = what;
    }

    /// Says how the operation ended, for the story of an inode.
    pub fn tell<T>(&self, inode: &Inode, result: &Result<T, Errno>) {
        inode.story.tell(self.line(result));
    }

    pub fn line<T>(&self, result: &Result<T, Errno>) -> String {
        let result = match result {
            Ok(_) => "done".to_owned(),
            Err(errno) => errno.to_string(),
        };
        let (began, now) =
            (self.operation, self.world.nr_operations.load(std::sync::atomic::Ordering::Relaxed));
        format!("{began}-{now} user {}: {}: {result}", self.nr, self.what)
    }

    /// A mismatch about an inode, with what was done to it last.
    pub fn wrong<T>(&self, inode: &Inode, why: impl std::fmt::Display) -> Result<T, Stop> {
        Stop::wrong(format!("{why}\n  inode {}:\n{}", inode.nr, inode.story.text()))
    }

    /// Keeps a file open.
    pub fn keep(&mut self, inode: Arc<Inode>, fd: OwnedFd) {
        if self.open.len() == NR_OPEN_MAX {
            let at = self.random.below(NR_OPEN_MAX);
            self.open.swap_remove(at);
        }
        self.open.push((inode, fd));
    }

    /// One of the open files.
    pub fn some_file(&mut self) -> Option<usize> {
        (!self.open.is_empty()).then(|| self.random.below(self.open.len()))
    }

    fn close(&mut self) -> Result<(), Stop> {
        if let Some(at) = self.some_file() {
            self.begin(format!("close of inode {}", self.open[at].0.nr));
            self.open.swap_remove(at);
        }
        Ok(())
    }
}
