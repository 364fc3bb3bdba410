//! The bytes of a part of an object on their way to the store, in chunks. A chunk is shared, not
//! copied. It stays charged for as long as anything holds it, including a store's client.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Shortest chunk. Each further one is as long as all before it.
const CHUNK_BYTES_MIN: usize = 4 << 10;
/// Longest chunk.
const CHUNK_BYTES_MAX: usize = 256 << 10;

/// The charge of a chunk, its own or a share in a larger one, given back when dropped.
pub(crate) type ChunkCharge = Arc<dyn Any + Send + Sync>;

/// See the module text.
#[derive(Debug, Clone, Default)]
pub struct PartBytes {
    chunks: Vec<Chunk>,
    len: usize,
}

/// A run of bytes in memory.
#[derive(Clone)]
pub struct Chunk(Arc<Held>);

struct Held {
    bytes: Vec<u8>,
    /// `None` in tests. After the bytes: the charge is there at least as long as they are.
    _charge: Option<ChunkCharge>,
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunk").field("len", &self.0.bytes.len()).finish_non_exhaustive()
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl From<Vec<u8>> for PartBytes {
    /// Returns bytes charged elsewhere, or not at all.
    fn from(bytes: Vec<u8>) -> Self {
        Self { len: bytes.len(), chunks: vec![Chunk(Arc::new(Held { bytes, _charge: None }))] }
    }
}

impl PartBytes {
    /// Returns their number.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the chunks, in order.
    pub fn into_chunks(self) -> Vec<Chunk> {
        self.chunks
    }

    /// Copies the bytes from an offset on. Returns `false` if there are fewer.
    pub fn copy_to(&self, offset: usize, into: &mut [u8]) -> bool {
        let (mut skip, mut done) = (offset, 0);
        for chunk in &self.chunks {
            let bytes = chunk.as_ref().get(skip..).unwrap_or_default();
            skip = skip.saturating_sub(chunk.as_ref().len());
            let len = bytes.len().min(into.len() - done);
            into[done..done + len].copy_from_slice(&bytes[..len]);
            done += len;
        }
        done == into.len()
    }

    /// Returns the length of the next chunk, in bytes.
    pub(crate) fn next_chunk_bytes(&self) -> usize {
        self.len.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX)
    }

    /// Adds room for so many bytes.
    pub(crate) fn add_room(&mut self, bytes: usize, charge: ChunkCharge) {
        let held = Held { bytes: Vec::with_capacity(bytes), _charge: Some(charge) };
        self.chunks.push(Chunk(Arc::new(held)));
    }

    /// Takes as many bytes as there is room for. Returns their number. A chunk held elsewhere has
    /// no room.
    pub(crate) fn fill(&mut self, bytes: &[u8]) -> usize {
        let last = self.chunks.last_mut().and_then(|chunk| Arc::get_mut(&mut chunk.0));
        let Some(held) = last else { return 0 };
        let len = bytes.len().min(held.bytes.capacity() - held.bytes.len());
        held.bytes.extend_from_slice(&bytes[..len]);
        self.len += len;
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_several_chunks_is_one_run_of_bytes() {
        let mut bytes = PartBytes::from(b"ab".to_vec());
        bytes.chunks.extend(PartBytes::from(b"cde".to_vec()).chunks);
        let mut into = [0; 3];
        assert!(bytes.copy_to(1, &mut into));
        assert_eq!(&into, b"bcd");
        assert!(bytes.copy_to(2, &mut into));
        assert_eq!(&into, b"cde");
        assert!(!bytes.copy_to(3, &mut into));
    }

    #[test]
    fn a_chunk_that_is_held_elsewhere_takes_no_more() {
        let mut bytes = PartBytes::default();
        assert_eq!(bytes.fill(b"x"), 0, "there is none");
        let held = Held { bytes: Vec::with_capacity(4), _charge: None };
        bytes.chunks.push(Chunk(Arc::new(held)));
        let room = bytes.chunks[0].0.bytes.capacity();
        assert_eq!(bytes.fill(b"x"), 1);
        let other = bytes.clone();
        assert_eq!(bytes.fill(b"y"), 0);
        drop(other);
        assert_eq!(bytes.fill(&[0; 100]), room - 1);
        assert_eq!(bytes.len(), room);
    }
}
