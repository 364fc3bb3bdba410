//! A part of a frame, the unit for stores and replies.

use crate::frame::FrameId;

/// A range of bytes in one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The frame.
    pub frame: FrameId,
    /// First byte in the frame.
    pub offset: u16,
    /// Bytes; `offset + len` is at most 4,096.
    pub len: u16,
}

/// Returns the total bytes of segments.
pub fn total_len(segments: &[Segment]) -> usize {
    segments.iter().map(|segment| usize::from(segment.len)).sum()
}
