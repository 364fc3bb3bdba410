//! One high-water mark, shown to several parties with independent resets.
//!
//! A group's counter keeps the highest usage since its last reset. Three kinds of readers need
//! separate marks: the v1 file (reset for all its readers), the v2 file (never reset), and every
//! open v2 file after a write to it (reset for itself alone). So before the counter is reset for
//! one party, its value is noted for all others. A party sees the greater of its note and the
//! counter.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use umemcg::Group;
use umemcg_base::LeafMutex;

/// The peak of one party before the last reset, in bytes.
#[derive(Debug, Default)]
pub struct PeakNote(AtomicU64);

impl PeakNote {
    fn raise(&self, bytes: u64) {
        self.0.fetch_max(bytes, Ordering::Relaxed);
    }
}

/// The notes of a group.
#[derive(Debug, Default)]
pub struct Peaks {
    lifetime: PeakNote,
    v1: PeakNote,
    memsw: PeakNote,
    /// The peaks of open files; removed when the files are closed. Held while the counter is reset.
    open_files: LeafMutex<Vec<Weak<PeakNote>>>,
}

/// The party whose peak is read or reset.
#[derive(Debug, Clone, Copy)]
pub enum PeakOf<'a> {
    /// The group, over its lifetime.
    Lifetime,
    /// The v1 file.
    V1,
    /// The v1 file for memory and swap together.
    Memsw,
    /// An open v2 file.
    OpenFile(&'a Arc<PeakNote>),
}

impl Peaks {
    /// Returns the peak of a party, in bytes.
    pub fn read(&self, group: &Group, whose: PeakOf<'_>) -> u64 {
        // The lock keeps a reset from coming between the reads of the note and the counter.
        let _no_reset = self.open_files.lock();
        self.note(whose).0.load(Ordering::Relaxed).max(group.peak_bytes())
    }

    /// Restarts the peak from present usage, for that party alone. The lifetime peak is never
    /// reset.
    pub fn reset(&self, group: &Group, whose: PeakOf<'_>) {
        let mut open_files = self.open_files.lock();
        open_files.retain(|note| note.strong_count() > 0);
        // The old peak is noted for all parties.
        let seen = group.peak_bytes();
        group.reset_peak();
        self.lifetime.raise(seen);
        self.v1.raise(seen);
        self.memsw.raise(seen);
        for note in open_files.iter().filter_map(Weak::upgrade) {
            note.raise(seen);
        }
        if let PeakOf::OpenFile(note) = whose
            && !open_files.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(note)))
        {
            open_files.push(Arc::downgrade(note));
        }
        // The counter includes the present usage, so the note only has to be cleared.
        self.note(whose).0.store(0, Ordering::Relaxed);
    }

    fn note<'a>(&'a self, whose: PeakOf<'a>) -> &'a PeakNote {
        match whose {
            PeakOf::Lifetime => &self.lifetime,
            PeakOf::V1 => &self.v1,
            PeakOf::Memsw => &self.memsw,
            PeakOf::OpenFile(note) => note,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use umemcg::internal::GroupTree;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_reset_is_seen_by_the_party_that_asked_and_by_no_other() {
        let tree = GroupTree::new(1 << 30);
        let group = tree.create(tree.root(), "g".as_ref()).unwrap();
        let (peaks, one, two) = (Peaks::default(), Arc::default(), Arc::default());
        let read = |whose: PeakOf<'_>| peaks.read(&group, whose) / MIB;

        drop(group.try_charge(50 * MIB).unwrap());
        let held = group.try_charge(10 * MIB).unwrap();
        peaks.reset(&group, PeakOf::OpenFile(&one));
        assert_eq!(read(PeakOf::OpenFile(&one)), group.usage_bytes() / MIB);
        assert_eq!([PeakOf::V1, PeakOf::Lifetime].map(read), [50, 50]);

        drop(group.try_charge(20 * MIB).unwrap());
        peaks.reset(&group, PeakOf::OpenFile(&two));
        assert!((30..32).contains(&read(PeakOf::OpenFile(&one))), "later peaks count for an earlier reset");
        assert!((10..12).contains(&read(PeakOf::OpenFile(&two))));

        peaks.reset(&group, PeakOf::V1);
        assert!((10..12).contains(&read(PeakOf::V1)));
        assert!((30..32).contains(&read(PeakOf::OpenFile(&one))));
        assert_eq!(read(PeakOf::Lifetime), 50);

        drop(two);
        assert!(
            (30..32).contains(&read(PeakOf::OpenFile(&one))),
            "a reset survives the close of another file"
        );
        drop(held);
    }

    #[test]
    fn closed_files_leave_no_note() {
        let tree = GroupTree::new(1 << 30);
        let peaks = Peaks::default();
        for _ in 0..100 {
            peaks.reset(tree.root(), PeakOf::OpenFile(&Arc::default()));
        }
        assert!(peaks.open_files.lock().len() <= 1);
    }
}
