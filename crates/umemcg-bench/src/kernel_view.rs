//! The kernel's own view of its page cache: a separate program, built on demand. It counts the
//! cached pages of files with cachestat(2) and times reads through a mapping.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::options::Failure;

/// The program.
#[derive(Debug)]
pub struct KernelView(PathBuf);

/// Pages of files in the kernel's cache, counted again and again.
#[derive(Debug, Clone, Copy)]
pub struct Counts {
    /// The least of all counts.
    pub least: u64,
    /// The most.
    pub most: u64,
    /// The number of counts.
    pub nr: u64,
}

/// Nanoseconds of a page read through a mapping.
#[derive(Debug, Clone, Copy)]
pub struct Mapped {
    /// The first time, with its share of a page fault.
    pub first_ns: f64,
    /// Later.
    pub later_ns: f64,
    /// The sum of the first words of all pages.
    pub sum: u64,
}

impl KernelView {
    /// Builds the program in a directory.
    ///
    /// # Errors
    /// [`Failure::Setup`] without a C compiler.
    pub fn build(directory: &Path) -> Result<Self, Failure> {
        let (source, program) = (directory.join("kernel_view.c"), directory.join("kernel_view"));
        std::fs::write(&source, include_str!("kernel_view.c"))
            .map_err(Failure::at("cannot write a program"))?;
        let built = Command::new("cc").arg("-O2").arg("-o").arg(&program).arg(&source).status();
        match built {
            Ok(status) if status.success() => Ok(Self(program)),
            other => Err(Failure::Setup(format!("cannot build a C program: {other:?}"))),
        }
    }

    /// Begins to count.
    pub fn watch(&self, files: &[PathBuf]) -> Result<Watch, Failure> {
        let mut child = Command::new(&self.0)
            .arg("watch")
            .args(files)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Failure::at("cannot start the counting program"))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let Some(stdout) = stdout.map(BufReader::new) else {
            return Err(Failure::Setup("the counting program has no output".into()));
        };
        let mut watch = Watch { child, stdin, stdout };
        match watch.line()?.trim() {
            "ready" => Ok(watch),
            said => Err(Failure::Setup(format!("the counting program says {said:?} (cachestat(2)?)"))),
        }
    }

    /// Returns the number of pages of files in the kernel's cache.
    pub fn count(&self, files: &[PathBuf]) -> Result<u64, Failure> {
        Ok(self.watch(files)?.end()?.least)
    }

    /// Reads all pages of a file through a mapping, once and `loops` times more.
    pub fn map(&self, file: &Path, loops: u32) -> Result<Mapped, Failure> {
        let output = Command::new(&self.0)
            .arg("map")
            .arg(file)
            .arg(loops.to_string())
            .stderr(Stdio::inherit())
            .output()
            .map_err(Failure::at("cannot run a program"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut words = text.split_whitespace();
        let mapped = (|| {
            let (first, later, sum) = (words.next()?, words.next()?, words.next()?);
            Some(Mapped {
                first_ns: first.parse().ok()?,
                later_ns: later.parse().ok()?,
                sum: sum.parse().ok()?,
            })
        })();
        mapped.ok_or_else(|| Failure::Wrong(format!("reads of a mapping: {}; {text:?}", output.status)))
    }
}

/// A running count.
pub struct Watch {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Watch {
    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).map_err(Failure::at("cannot hear the counting program"))?;
        Ok(line)
    }

    /// Ends it.
    pub fn end(mut self) -> Result<Counts, Failure> {
        drop(self.stdin.take());
        let line = self.line()?;
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        match numbers[..] {
            [least, most, nr] => Ok(Counts { least, most, nr }),
            _ => Err(Failure::Wrong(format!("the counting program says {line:?}"))),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
