//! Bytes to write and to compare, and the bytes of a whole file.
#![allow(dead_code)]

use std::sync::Arc;

use umemcg_cache::{File, Readahead};
use umemcg_group::Group;

pub fn read_all(file: &Arc<File>, group: &Arc<Group>) -> Vec<u8> {
    let readahead = Readahead::new();
    let mut bytes = Vec::new();
    loop {
        let pages = file.read(group, bytes.len() as u64, 128 << 10, &readahead).unwrap();
        if pages.is_empty() {
            return bytes;
        }
        bytes.extend(pages.to_vec());
    }
}

/// Bytes that differ from page to page and place to place.
pub fn pattern(seed: u64, offset: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| {
            let x =
                (offset + i).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed.wrapping_mul(0xff51_afd7_ed55_8ccd);
            (x >> 32) as u8
        })
        .collect()
}
