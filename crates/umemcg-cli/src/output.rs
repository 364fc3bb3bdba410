//! What a command prints. Output that cannot be written, as on a full disk, is a failure of the
//! command.

use std::io::{self, Write};

use crate::exit::Failure;

/// Prints a text as it is.
///
/// # Errors
/// What the system says, unless the reader of a pipe has seen enough.
pub fn print(text: &str) -> Result<(), Failure> {
    // What has no newline at its end would be written when the program ends, and fail unseen.
    let mut stdout = io::stdout();
    told(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
}

/// Returns what a command makes of the attempt to print.
///
/// # Errors
/// As [`print`].
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
