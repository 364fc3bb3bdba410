//! An accept loop. It ends only when the socket is shut down, and survives all other errors of
//! `accept`.
//!
//! `umemcg sync` and `umemcg umount` must work even if the daemon has no descriptor left and
//! `accept` fails with `EMFILE`. So the acceptor holds a spare descriptor, and closes it to accept
//! one connection. Without a spare, it waits and tries again. Then `accept` does not get as far as
//! to see that the socket is shut down, so the wait says whether to go on.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::io::Errno;

/// The pause of the accepting thread after an error.
pub const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// See the module text. Generic over the fallible calls, so tests can replace them.
pub struct Acceptor<A, S, W> {
    accept: A,
    new_spare: S,
    wait: W,
    spare: Option<OwnedFd>,
    /// The last `accept` failed, and the error has been logged.
    has_failed: bool,
}

impl<A, S, W> Acceptor<A, S, W>
where
    A: FnMut() -> io::Result<UnixStream>,
    S: FnMut() -> Option<OwnedFd>,
    W: FnMut() -> bool,
{
    /// Creates an acceptor. It accepts with `accept`, gets spare descriptors from `new_spare`, and
    /// calls `wait` after an error. If that returns false, the socket has been shut down.
    pub fn new(accept: A, mut new_spare: S, wait: W) -> Self {
        let spare = new_spare();
        Self { accept, new_spare, wait, spare, has_failed: false }
    }

    /// Returns the next connection; `None` when the socket has been shut down.
    pub fn next(&mut self) -> Option<UnixStream> {
        loop {
            self.spare = self.spare.take().or_else(&mut self.new_spare);
            let error = match (self.accept)() {
                Ok(stream) => {
                    self.has_failed = false;
                    return Some(stream);
                }
                Err(error) => error,
            };
            match Errno::from_io_error(&error) {
                // A listening socket returns EINVAL only once it is shut down.
                Some(Errno::INVAL) => return None,
                // The peer has closed the connection already.
                Some(Errno::CONNABORTED | Errno::INTR) => continue,
                Some(Errno::MFILE | Errno::NFILE) if self.spare.is_some() => {
                    drop(self.spare.take());
                    if let Ok(stream) = (self.accept)() {
                        return Some(stream);
                    }
                }
                _ => {}
            }
            if !std::mem::replace(&mut self.has_failed, true) {
                tracing::warn!(%error, "cannot accept a connection on the socket; trying again");
            }
            if !(self.wait)() {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepting_goes_on_after_every_error_but_shutdown() {
        let errors = [
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOBUFS,
            Errno::NOMEM,
            Errno::CONNABORTED,
            Errno::INTR,
            Errno::PERM,
            Errno::IO,
        ];
        let mut answers: Vec<io::Result<UnixStream>> = vec![Err(Errno::INVAL.into())];
        for errno in errors {
            answers.push(Ok(UnixStream::pair().unwrap().0));
            answers.extend([(); 3].map(|()| Err(errno.into())));
        }
        let mut acceptor = Acceptor::new(|| answers.pop().unwrap(), || None, || true);
        for _ in errors {
            assert!(acceptor.next().is_some());
        }
        assert!(acceptor.next().is_none());
    }

    #[test]
    fn accepting_ends_also_without_a_descriptor() {
        let mut nr_waits = 0;
        let wait = || {
            nr_waits += 1;
            nr_waits < 3
        };
        let accept = || -> io::Result<UnixStream> { Err(Errno::MFILE.into()) };
        let mut acceptor = Acceptor::new(accept, || None, wait);
        assert!(acceptor.next().is_none());
    }

    #[test]
    fn a_connection_is_accepted_with_the_spare_descriptor() {
        let mut spares = vec![rustix::io::dup(io::stdin()).unwrap()];
        let mut answers: Vec<io::Result<UnixStream>> =
            vec![Ok(UnixStream::pair().unwrap().0), Err(Errno::MFILE.into())];
        let wait = || -> bool { unreachable!("the spare makes room") };
        let mut acceptor = Acceptor::new(|| answers.pop().unwrap(), || spares.pop(), wait);
        assert!(acceptor.next().is_some());
        assert!(acceptor.spare.is_none());
    }
}
