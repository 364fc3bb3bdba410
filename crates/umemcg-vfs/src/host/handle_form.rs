//! The numbers of inodes in file handles. A handle is opaque, but the usual file systems keep the
//! number of the inode in a known place. With it the watch skips the events of inodes unknown to
//! the mount without opening them.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::AtFlags;
use umemcg_arena::handle::{FileHandle, name_to_handle};

/// `FILEID_INO32_GEN`.
const INO32_GEN: i32 = 1;
/// `FILEID_INO32_GEN` with the flag of XFS for 64 bits.
const XFS_INO64_GEN: i32 = 0x81;

/// The place of the number in the handles of a file system, by their kind and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandleForm {
    /// Of ext4 and others: the number in 32 bits, and the generation.
    Ino32,
    /// Of tmpfs: the generation, and the number in 64 bits, its lower half first.
    Tmpfs,
    /// Of XFS: the number in 64 bits, and the generation.
    Ino64,
}

impl HandleForm {
    const ALL: [Self; 3] = [Self::Ino32, Self::Tmpfs, Self::Ino64];

    /// Returns the form of the handles of the file system of a directory with a number, if it is a
    /// known one and the directory's own handle has its number there.
    pub(crate) fn of(dir: &OwnedFd, ino: u64) -> Option<Self> {
        let (handle, _) = name_to_handle(dir.as_fd(), c"", AtFlags::EMPTY_PATH).ok()?;
        Self::ALL.into_iter().find(|form| form.ino(&handle) == Some(ino))
    }

    /// Returns the number of a handle's inode; `None` for a handle of another form.
    pub(crate) fn ino(self, handle: &FileHandle) -> Option<u64> {
        let word = |at: usize| {
            let bytes = handle.bytes.get(4 * at..4 * at + 4)?;
            Some(u64::from(u32::from_ne_bytes(bytes.try_into().ok()?)))
        };
        let [low, high] = match (self, handle.kind, handle.bytes.len()) {
            (Self::Ino32, INO32_GEN, 8) => return word(0),
            (Self::Tmpfs, INO32_GEN, 12) => [word(1)?, word(2)?],
            (Self::Ino64, XFS_INO64_GEN, 12) if cfg!(target_endian = "little") => [word(0)?, word(1)?],
            _ => return None,
        };
        Some(high << 32 | low)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn handle(kind: i32, words: &[u32]) -> FileHandle {
        FileHandle { kind, bytes: words.iter().flat_map(|word| word.to_ne_bytes()).collect() }
    }

    #[test]
    fn only_handles_of_the_form_have_a_number() {
        let handles = [handle(1, &[7, 9]), handle(1, &[9, 7, 2]), handle(0x81, &[7, 2, 9])];
        let large = (2 << 32) + 7;
        for (form, at) in HandleForm::ALL.into_iter().zip(0..) {
            let mut expected = [None; 3];
            expected[at] = Some([7, large, large][at]);
            assert_eq!([0, 1, 2].map(|nr| form.ino(&handles[nr])), expected, "{form:?}");
            assert_eq!(form.ino(&handle(1, &[7])), None);
            assert_eq!(form.ino(&handle(0x4d, &[7, 0, 1, 0, 9])), None);
        }
    }

    #[test]
    fn the_form_of_this_file_system_finds_every_number() {
        let dir = tempfile::tempdir().unwrap();
        let opened = OwnedFd::from(std::fs::File::open(dir.path()).unwrap());
        let ino = dir.path().metadata().unwrap().ino();
        // Another file system than those has none.
        let Some(form) = HandleForm::of(&opened, ino) else { return };
        assert_eq!(HandleForm::of(&opened, ino + 1), None);
        for name in ["a", "b"] {
            let path = dir.path().join(name);
            let file = std::fs::File::create(&path).unwrap();
            let (handle, _) = name_to_handle(file.as_fd(), c"", AtFlags::EMPTY_PATH).unwrap();
            assert_eq!(form.ino(&handle), Some(path.metadata().unwrap().ino()));
        }
    }
}
