//! Progress, on a terminal.

use std::cell::Cell;
use std::io::{self, IsTerminal};

/// A status line on a terminal; nothing in a pipe.
#[derive(Debug)]
pub struct Progress {
    on: bool,
    last_len: Cell<usize>,
}

impl Progress {
    /// Shows on standard error if that is a terminal.
    pub fn new() -> Self {
        Self { on: io::stderr().is_terminal(), last_len: Cell::new(0) }
    }

    /// Shows nothing.
    pub fn off() -> Self {
        Self { on: false, last_len: Cell::new(0) }
    }

    /// Replaces the line.
    pub fn show(&self, text: &str) {
        if self.on {
            let len = text.chars().count();
            let blanks = self.last_len.replace(len).saturating_sub(len);
            eprint!("\r{text}{:blanks$}", "");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.show("");
        if self.on {
            eprint!("\r");
        }
    }
}
