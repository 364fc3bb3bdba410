//! The output of commands. A failed write, as on a full disk, is a failure of the command.

use std::io::{self, Write};

use crate::exit::Failure;

/// Prints a text as it is.
///
/// # Errors
/// The system's, except for a pipe without a reader.
pub fn print(text: &str) -> Result<(), Failure> {
    // Without the flush, text after the last newline would be written at exit, and an error would
    // go unseen.
    let mut stdout = io::stdout();
    told(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
}

/// Shows a text on stderr as it is, such as the progress of a command. A closed terminal or a full
/// disk ends no command.
pub fn show(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Returns the result of a command from the result of printing.
///
/// # Errors
/// As [`print()`].
pub fn told(printed: io::Result<()>) -> Result<(), Failure> {
    match printed {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Failed(format!("cannot print: {error}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_is_no_failure_and_a_full_disk_is_one() {
        assert!(told(Err(io::ErrorKind::BrokenPipe.into())).is_ok());
        assert_eq!(told(Err(io::ErrorKind::StorageFull.into())).unwrap_err().code(), 1);
    }
}
