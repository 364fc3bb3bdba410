//! The layout of an index node, in words.

use umemcg_reclaim::LIST_SLOT_BYTES;

pub(crate) const FANOUT_SHIFT: u32 = 6;
pub(crate) const FANOUT: u64 = 1 << FANOUT_SHIFT;
/// Words in a node: the slots and eight words of bookkeeping.
pub(crate) const NODE_WORDS: u64 = FANOUT + 8;
/// Nodes start on a line of eight words; an entry names the line of a node in 30 bits.
pub(crate) const LINE_WORDS: u64 = 8;
/// Most nodes addressable by entries: enough for 16 TiB of pages side by side.
pub(crate) const NR_NODES_MAX: u32 = (1 << 30) / (NODE_WORDS / LINE_WORDS) as u32;
/// Bytes charged for a node, including its place among the shadow leaves.
pub const NODE_BYTES: u64 = NODE_WORDS * 8 + LIST_SLOT_BYTES;
/// The word with the owner charged for a node.
pub(crate) const WORD_OWNER: u64 = FANOUT + 4;
/// Of a leaf with shadows only: the number of its file, and above 32 bits its place among such
/// leaves, plus one.
pub(crate) const WORD_FILE_PLACE: u64 = FANOUT + 6;
/// Of such a leaf: its first page.
pub(crate) const WORD_FIRST_PAGE: u64 = FANOUT + 7;
