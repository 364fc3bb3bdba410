//! Tenant A of `tenants`: its ways of pressing, each with threads of its own.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::fs::{Mode, OFlags};

use super::event_file::EventFile;
use super::ground::{
    COLD_FILE, Ground, MIB, NR_GROUPS, PAGE, RULE_FILE, Random, SHARED_FILE, StoppedStore, WRITE_FILE,
};
use crate::options::Failure;

/// How long the store of a rename goes on before it stands still again.
const GOES_ON: Duration = Duration::from_millis(10);
/// A look without a wait.
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The work of A.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Press {
    /// Two hundred threads of one group read and write mebibytes at its limit.
    OneGroup,
    /// Two threads of each of its groups do so.
    ManyGroups,
    /// Two threads in each of the directories to which a rule gives groups do so.
    ByRule,
    /// Two threads of each of its groups write a page and sync, again and again.
    Syncs,
    /// A program has thousands of asynchronous reads of a store that stands still under way.
    Reads,
    /// It holds names that B has looked up.
    Pins,
    /// It moves a file between directories of a store that mostly stands still.
    Renames,
    /// It is above its `memory.high`, and makes files in a directory that B uses.
    High,
    /// Each of its groups meets its limit all the time, and it polls for their events.
    Events,
    /// It rewrites a file that B has read.
    Rewrites,
}

impl Press {
    pub fn title(self) -> &'static str {
        match self {
            Self::OneGroup => "200 threads of one group, 1 MiB",
            Self::ManyGroups => "150 groups, 1 MiB",
            Self::ByRule => "150 directories of a rule, 1 MiB",
            Self::Syncs => "150 groups, write and fsync",
            Self::Reads => "asynchronous reads of a hung store",
            Self::Pins => "names pinned by O_PATH",
            Self::Renames => "mv on a slow store",
            Self::High => "memory.high in a shared directory",
            Self::Events => "150 changed event files",
            Self::Rewrites => "rewrites of pages that B pays for",
        }
    }

    /// Returns the number of its threads.
    pub fn nr_threads(self) -> usize {
        match self {
            Self::OneGroup => 200,
            Self::ManyGroups | Self::ByRule | Self::Syncs => 2 * NR_GROUPS,
            Self::Reads | Self::Pins => 0,
            Self::Renames => 2,
            Self::High => 8,
            Self::Events => NR_GROUPS,
            Self::Rewrites => 4,
        }
    }

    /// Sets up the state that exists before the threads start, until the end of the sample.
    pub fn begin(self, ground: &Ground) -> Result<Held, Failure> {
        match self {
            Self::Pins => std::thread::scope(|scope| {
                let pins = scope.spawn(|| pins(ground)).join();
                pins.map_err(|_| Failure::Setup("the thread that pins names has ended".into()))?
            }),
            Self::Reads => reads(ground),
            _ => Ok(Held::default()),
        }
    }

    /// Presses with one thread until the end. Returns the number of its calls.
    pub fn run(self, ground: &Ground, at: usize, ends: &AtomicBool) -> Result<u64, Failure> {
        let random = &mut Random(at as u64 + 1);
        let goes_on: &dyn Fn() -> bool = &|| !ends.load(Relaxed);
        match self {
            Self::OneGroup | Self::ManyGroups => {
                let below = format!("a/s{}", at / 2 % NR_GROUPS);
                ground.join(if self == Self::OneGroup { "a" } else { &below })?;
                let use_piece = mebibytes(ground, at, "local", ("cold", "written"), WRITE_FILE)?;
                let note = |piece: usize| ground.written[piece].store(true, Relaxed);
                use_pieces(use_piece, random, goes_on, note)
            }
            Self::ByRule => {
                let directory = format!("local/p/{}", at / 2);
                let use_piece = mebibytes(ground, at, &directory, ("read", "written"), RULE_FILE)?;
                use_pieces(use_piece, random, goes_on, |_| {})
            }
            Self::Syncs => syncs(ground, at, random, goes_on),
            Self::Renames if at == 0 => stops(ground, goes_on),
            Self::Renames => renames(ground, goes_on),
            Self::High => high(ground, at, random, goes_on),
            Self::Events => {
                let group = format!("a/e{at}");
                ground.join(&group)?;
                let events = EventFile::open(ground, &group)?;
                let mut use_piece = mebibytes(ground, 0, "local", ("cold", "written"), WRITE_FILE)?;
                let use_and_look: UsePiece = Box::new(move |random: &mut Random| {
                    let written = use_piece(random)?;
                    events.take()?;
                    events.wait(&AT_ONCE)?;
                    Ok(written)
                });
                use_pieces(use_and_look, random, goes_on, |_| {})
            }
            Self::Rewrites => {
                ground.join("a")?;
                let use_piece = mebibytes(ground, 1, "local", ("cold", "pages"), SHARED_FILE)?;
                use_pieces(use_piece, random, goes_on, |_| {})
            }
            Self::Reads | Self::Pins => Ok(0),
        }
    }
}

/// Reads or writes a mebibyte at random; returns its place if it was written.
type UsePiece = Box<dyn FnMut(&mut Random) -> Result<Option<usize>, Failure>>;

/// Returns the call of a thread: for an even number it reads mebibytes of one file, for an odd
/// number it writes mebibytes of another file of this length.
fn mebibytes(
    ground: &Ground,
    at: usize,
    directory: &str,
    (read, written): (&str, &str),
    written_bytes: u64,
) -> Result<UsePiece, Failure> {
    let writes = at % 2 == 1;
    let path = ground.at(directory).join(if writes { written } else { read });
    let file = File::options().read(!writes).write(writes).open(path);
    let file = file.map_err(Failure::at("A cannot open a file"))?;
    let mut buffer = vec![1_u8; MIB as usize];
    let bytes = if writes { written_bytes } else { COLD_FILE };
    Ok(Box::new(move |random: &mut Random| {
        let piece = random.below(bytes / MIB);
        if writes {
            file.write_all_at(&buffer, piece * MIB).map_err(Failure::at("A cannot write"))?;
            return Ok(Some(piece as usize));
        }
        file.read_exact_at(&mut buffer, piece * MIB).map_err(Failure::at("A cannot read"))?;
        if (buffer[0], buffer[buffer.len() - 1]) != (0, 0) {
            return Err(Failure::Wrong("a hole that is not empty".into()));
        }
        Ok(None)
    }))
}

/// Uses mebibytes until the end; `note` gets the places of the written ones. Returns the number of
/// used ones.
fn use_pieces(
    mut use_piece: UsePiece,
    random: &mut Random,
    goes_on: &dyn Fn() -> bool,
    note: impl Fn(usize),
) -> Result<u64, Failure> {
    let mut nr = 0;
    while goes_on() {
        use_piece(random)?.into_iter().for_each(&note);
        nr += 1;
    }
    Ok(nr)
}

fn syncs(
    ground: &Ground,
    at: usize,
    random: &mut Random,
    goes_on: &dyn Fn() -> bool,
) -> Result<u64, Failure> {
    ground.join(&format!("a/s{}", at / 2))?;
    let made = File::create(ground.at(&format!("local/synced/{at}")));
    let (file, mut nr) = (made.map_err(Failure::at("A cannot make a file"))?, 0);
    while goes_on() {
        let written = file.write_all_at(&[1; PAGE as usize], random.below(MIB / PAGE) * PAGE);
        written.and_then(|()| file.sync_all()).map_err(Failure::at("A cannot write and sync"))?;
        nr += 1;
    }
    Ok(nr)
}

/// Has the store stand still most of the time.
fn stops(ground: &Ground, goes_on: &dyn Fn() -> bool) -> Result<u64, Failure> {
    while goes_on() {
        let (stopped, since) = (ground.stop_store()?, Instant::now());
        while goes_on() && since.elapsed() < ground.stands_still {
            std::thread::sleep(GOES_ON);
        }
        drop(stopped);
        std::thread::sleep(GOES_ON);
    }
    Ok(0)
}

fn renames(ground: &Ground, goes_on: &dyn Fn() -> bool) -> Result<u64, Failure> {
    ground.join("a")?;
    // Begun: the first look may be delayed for longer than a sample lasts.
    let (mut nr, mut here, mut there) = (1, ground.at("slow/one/f"), ground.at("slow/two/f"));
    // It is where an earlier sample has left it.
    if !here.exists() {
        std::mem::swap(&mut here, &mut there);
    }
    while goes_on() {
        fs::rename(&here, &there).map_err(Failure::at("A cannot move a file"))?;
        std::mem::swap(&mut here, &mut there);
        nr += 1;
    }
    Ok(nr)
}

fn high(ground: &Ground, at: usize, random: &mut Random, goes_on: &dyn Fn() -> bool) -> Result<u64, Failure> {
    ground.join("a/high")?;
    let mut use_piece = mebibytes(ground, 0, "local", ("cold", "written"), WRITE_FILE)?;
    let (mut nr, made) = (0, ground.at(&format!("local/shared/a{at}")));
    while goes_on() {
        // Begun: an answer may be delayed for longer than a sample lasts.
        nr += 1;
        use_piece(random)?;
        drop(File::create(&made).map_err(Failure::at("A cannot make a file"))?);
        fs::remove_file(&made).map_err(Failure::at("A cannot remove a file"))?;
    }
    Ok(nr)
}

/// The resources held by A during a sample.
#[derive(Default)]
pub struct Held {
    _descriptors: Vec<OwnedFd>,
    /// Before the reads, which it keeps from ending.
    stopped: Option<StoppedStore>,
    reads: Option<Reads>,
}

impl Held {
    pub fn end(mut self) -> Result<(), Failure> {
        drop(self.stopped.take());
        self.reads.take().map_or(Ok(()), Reads::end)
    }
}

fn pins(ground: &Ground) -> Result<Held, Failure> {
    ground.join("a")?;
    let pin = |nr| {
        let pinned = rustix::fs::open(ground.name(nr), OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        pinned.map_err(Failure::at("A cannot pin a name"))
    };
    let pins = (0..ground.nr_pinned).map(pin).collect::<Result<_, Failure>>()?;
    Ok(Held { _descriptors: pins, ..Held::default() })
}

fn reads(ground: &Ground) -> Result<Held, Failure> {
    let mut reads = Reads::start(ground)?;
    reads.hears("open")?;
    let stopped = ground.stop_store()?;
    reads.tell()?;
    reads.hears("submitted")?;
    Ok(Held { stopped: Some(stopped), reads: Some(reads), ..Held::default() })
}

/// The program that reads asynchronously.
struct Reads {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Reads {
    fn start(ground: &Ground) -> Result<Self, Failure> {
        let (source, program) = (ground.outside("aio_reads.c"), ground.outside("aio_reads"));
        if !program.exists() {
            fs::write(&source, include_str!("aio_reads.c")).map_err(Failure::at("cannot write a program"))?;
            let built = Command::new("cc").arg("-O2").arg("-o").arg(&program).arg(&source).status();
            if !built.as_ref().is_ok_and(|status| status.success()) {
                return Err(Failure::Setup(format!("cannot build a C program: {built:?}")));
            }
        }
        // A shell that joins the group, and becomes the program.
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(ground.control("a/cgroup.procs"));
        command.arg(program).arg(ground.at("slow/cold")).arg(ground.nr_reads.to_string());
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(Failure::at("cannot start the program that reads"))?;
        let Some(says) = child.stdout.take().map(BufReader::new) else {
            return Err(Failure::Setup("the program that reads has no output".into()));
        };
        Ok(Self { child, says })
    }

    fn hears(&mut self, expected: &str) -> Result<(), Failure> {
        let mut line = String::new();
        self.says.read_line(&mut line).map_err(Failure::at("cannot hear the program that reads"))?;
        match line.trim() {
            said if said == expected => Ok(()),
            said => Err(Failure::Setup(format!("the program that reads says {said:?}"))),
        }
    }

    fn tell(&mut self) -> Result<(), Failure> {
        let Some(stdin) = &mut self.child.stdin else { return Ok(()) };
        stdin.write_all(b"\n").map_err(Failure::at("cannot speak to the program that reads"))
    }

    /// Has it wait for its reads, the store going on.
    fn end(mut self) -> Result<(), Failure> {
        self.tell()?;
        let status = self.child.wait().map_err(Failure::at("cannot wait for the program that reads"))?;
        if status.success() {
            return Ok(());
        }
        Err(Failure::Wrong(format!("the program that reads ended with {status}")))
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
