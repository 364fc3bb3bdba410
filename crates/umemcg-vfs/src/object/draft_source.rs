//! The bytes of a draft on the staging disk, as the source of an upload.

use std::io;
use std::num::NonZero;
use std::sync::Arc;

use rustix::fs::Advice;
use rustix::io::Errno;

use super::draft::Draft;
use crate::bucket::ObjectSource;
use crate::host::store::StoreFds;

/// See the module text.
#[derive(Debug)]
pub(super) struct DraftSource<'d> {
    draft: &'d Draft,
    fds: Arc<StoreFds>,
    key: &'d str,
    len: u64,
}

impl<'d> DraftSource<'d> {
    /// Returns the first `len` bytes of a draft as the source of an upload as `key`.
    ///
    /// # Errors
    /// `EBADF` if its file is closed.
    pub(super) fn new(draft: &'d Draft, key: &'d str, len: u64) -> Result<Self, Errno> {
        Ok(Self { fds: draft.host_file()?, draft, key, len })
    }
}

impl ObjectSource for DraftSource<'_> {
    fn size(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            match rustix::io::pread(&self.fds.buffered, &mut into[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(nr) => done += nr,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        // The kernel need not keep a second copy. Advice only.
        let _ = rustix::fs::fadvise(
            &self.fds.buffered,
            offset,
            NonZero::new(into.len() as u64),
            Advice::DontNeed,
        );
        Ok(())
    }

    fn note_upload(&self, upload: Option<&str>) -> io::Result<()> {
        Ok(self.draft.note_upload(upload.map(|upload| (self.key, upload)))?)
    }
}
