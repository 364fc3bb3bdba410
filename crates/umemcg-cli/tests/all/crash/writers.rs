//! A process of one group that writes in every way on many threads, and says on its standard output
//! what was acknowledged.
//!
//! It is this test program itself, started again with the environment that [`start`] sets. A line
//! says what it is about: `ack FILE NUMBER` (records up to that one, or that generation),
//! `cell FILE CELL GENERATION`, `try FILE` (from here on the file may be anything until it is
//! acknowledged again), `gone FILE`, and `error FILE ERRNO WHAT` at a thread's end.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::thread;

use crate::crash::record::{CELL_BYTES, RECORD_BYTES_MAX, Random, record, whole_records};
use crate::harness::Mount;

const DIRECTORY: &str = "UMEMCG_CRASH_WRITER_DIRECTORY";
const SEED: &str = "UMEMCG_CRASH_WRITER_SEED";
const LIFE: &str = "UMEMCG_CRASH_WRITER_LIFE";

const EIO: i32 = 5;
const O_DSYNC: i32 = 0o10_000;
const O_SYNC: i32 = 0o4_010_000;
/// Cells of a file of cells: 128 KiB.
pub const NR_CELLS: u64 = 256;
/// Names that are made and removed.
const NR_NAMES: u64 = 12;
/// Generations of one life of the daemon.
const GENERATIONS_OF_LIFE: u64 = 1 << 32;

/// Starts a process of writers in `directory`, in a group. Its output is the caller's to read.
///
/// The directory is the working directory of the process: a signal may detach the mount before a
/// thread has opened its file, and a path from the root would then lead to the directory below.
pub fn start(mount: &Mount, group: &str, directory: &Path, seed: u64, life: u64) -> Child {
    let joins = format!(
        "echo $$ > \"{}/{group}/tasks\"; cd \"${DIRECTORY}\"; exec \"$0\" \"$@\"",
        mount.cg().display()
    );
    let mut command = Command::new("bash");
    command.args(["-ec", &joins]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "crash::writers::of_one_group", "--nocapture", "--test-threads=1"]);
    command.env(DIRECTORY, directory).env(SEED, seed.to_string()).env(LIFE, life.to_string());
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
}

/// One thread of writers, of one file or one directory of files.
struct Writer {
    name: String,
    random: Random,
    life: u64,
}

type Write1 = fn(&mut Writer) -> io::Result<()>;

impl Writer {
    fn path(&self) -> PathBuf {
        PathBuf::from(&self.name)
    }

    fn say(&self, what: &str, number: impl std::fmt::Display) {
        println!("{what} {} {number}", self.name);
    }

    fn some_bytes(&mut self) -> usize {
        16 + self.random.below(RECORD_BYTES_MAX as u64 - 16) as usize
    }

    /// Returns the number of whole records of a log, and their end.
    fn recover(&self, file: &File) -> io::Result<(u64, u64)> {
        let (nr, end) = whole_records(&self.name, &fs::read(self.path())?);
        file.set_len(end as u64)?;
        file.sync_all()?;
        Ok((nr, end as u64))
    }

    /// A log to whose end records go, synced now and then.
    fn append(&mut self) -> io::Result<()> {
        let mut file = OpenOptions::new().append(true).create(true).open(self.path())?;
        let (from, _) = self.recover(&file)?;
        for number in from.. {
            let bytes = self.some_bytes();
            file.write_all(&record(&self.name, number, bytes))?;
            match self.random.below(4) {
                0 => file.sync_data()?,
                1 => file.sync_all()?,
                _ => continue,
            }
            self.say("ack", number);
        }
        Ok(())
    }

    /// A log of which every write is durable when it returns.
    fn write_through(&mut self, flag: i32) -> io::Result<()> {
        let mut open = OpenOptions::new();
        let file = open.write(true).create(true).truncate(false).custom_flags(flag).open(self.path())?;
        let (from, mut end) = self.recover(&file)?;
        for number in from.. {
            let bytes = self.some_bytes();
            file.write_all_at(&record(&self.name, number, bytes), end)?;
            end += bytes as u64;
            self.say("ack", number);
        }
        Ok(())
    }

    /// Small parts of a file written again and again.
    fn cells(&mut self) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(self.path())?;
        let mut unsynced = Vec::new();
        for step in 1.. {
            let generation = self.life * GENERATIONS_OF_LIFE + step;
            let first = self.random.below(NR_CELLS);
            let cells = first..NR_CELLS.min(first + 1 + self.random.below(16));
            let bytes: Vec<u8> = cells
                .clone()
                .flat_map(|cell| record(&format!("{}{cell}", self.name), generation, CELL_BYTES))
                .collect();
            file.write_all_at(&bytes, first * CELL_BYTES as u64)?;
            unsynced.extend(cells.map(|cell| (cell, generation)));
            match self.random.below(12) {
                0 => file.sync_data()?,
                1 => file.sync_all()?,
                // As another process would: another open of the same file.
                2 => File::open(self.path())?.sync_all()?,
                _ => continue,
            }
            for (cell, generation) in unsynced.drain(..) {
                self.say("cell", format_args!("{cell} {generation}"));
            }
        }
        Ok(())
    }

    /// A new file at `path`, durable.
    fn make(&mut self, path: &Path, generation: u64) -> io::Result<()> {
        let bytes = self.some_bytes();
        let mut file = File::create(path).during("create")?;
        file.write_all(&record(&self.name, generation, bytes)).during("write")?;
        file.sync_all().during("fsync")
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(".").during("open of the directory")?.sync_all().during("fsync of the directory")
    }

    /// A file replaced by a whole new one.
    fn rename(&mut self) -> io::Result<()> {
        let new = PathBuf::from(format!("{}.new", self.name));
        for step in 1.. {
            let generation = self.life * GENERATIONS_OF_LIFE + step;
            self.make(&new, generation)?;
            fs::rename(&new, self.path()).during("rename")?;
            self.sync_directory()?;
            self.say("ack", generation);
        }
        Ok(())
    }

    /// Files that come and go.
    fn names(&mut self) -> io::Result<()> {
        let stem = self.name.clone();
        for step in 1.. {
            let generation = self.life * GENERATIONS_OF_LIFE + step;
            self.name = format!("{stem}{}", self.random.below(NR_NAMES));
            println!("try {}", self.name);
            if self.random.below(3) == 0 {
                match fs::remove_file(self.path()) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    removed => removed.during("unlink")?,
                }
                self.sync_directory()?;
                println!("gone {}", self.name);
            } else {
                self.make(&self.path(), generation)?;
                self.sync_directory()?;
                self.say("ack", generation);
            }
        }
        Ok(())
    }
}

/// The failed call, so that a failure explains itself.
#[derive(Debug)]
struct Failed {
    what: String,
    errno: i32,
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.what, io::Error::from_raw_os_error(self.errno))
    }
}

impl std::error::Error for Failed {}

fn errno_of(error: &io::Error) -> i32 {
    let failed = error.get_ref().and_then(|inner| inner.downcast_ref::<Failed>());
    failed.map(|failed| failed.errno).or(error.raw_os_error()).unwrap_or_default()
}

trait During<T> {
    fn during(self, what: &str) -> io::Result<T>;
}

impl<T> During<T> for io::Result<T> {
    fn during(self, what: &str) -> io::Result<T> {
        self.map_err(|error| {
            let errno = error.raw_os_error().unwrap_or_default();
            io::Error::other(Failed { what: what.to_owned(), errno })
        })
    }
}

const WAYS: [(&str, Write1); 8] = [
    ("append", Writer::append),
    ("append-too", Writer::append),
    ("osync", |writer| writer.write_through(O_SYNC)),
    ("odsync", |writer| writer.write_through(O_DSYNC)),
    ("cells", Writer::cells),
    ("cells-too", Writer::cells),
    ("rename", Writer::rename),
    ("names", Writer::names),
];

/// Not a test: the process that [`start`] starts. Without its environment it does nothing.
#[test]
fn of_one_group() {
    if std::env::var_os(DIRECTORY).is_none() {
        return;
    }
    let number = |name| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let (seed, life) = (number(SEED), number(LIFE));
    // The test runner has begun a line.
    println!();
    let begin = Arc::new(Barrier::new(WAYS.len()));
    let threads = WAYS.iter().zip(0..).map(|(&(name, write), at)| {
        let random = Random(seed ^ at << 56);
        let mut writer = Writer { name: name.to_owned(), random, life };
        let begin = Arc::clone(&begin);
        thread::spawn(move || {
            begin.wait();
            // They write until the daemon dies under them.
            let error = write(&mut writer).expect_err("no writer ends by itself");
            let mut errno = errno_of(&error);
            if errno == EIO {
                // What the daemon was about to fetch when it was killed ends so; then there is no
                // daemon for the next, either.
                let probe = File::create(format!("probe-{}", writer.name));
                errno = probe.err().map_or(EIO, |error| errno_of(&error));
            }
            writer.say("error", format_args!("{errno} {error}"));
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
