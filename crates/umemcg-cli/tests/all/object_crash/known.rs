//! What a name may stand for: one state when the last change was acknowledged, else all that the
//! changes since then can have made of it.

use std::fmt;
use std::sync::Arc;

pub type Bytes = Arc<Vec<u8>>;

/// One state of a name.
#[derive(Clone)]
pub enum State {
    Absent,
    Whole(Bytes),
    /// A file in which a write from an offset on came up to any place.
    Part {
        base: Bytes,
        at: usize,
        data: Bytes,
    },
}

impl State {
    fn is(&self, found: Option<&[u8]>) -> bool {
        match (self, found) {
            (Self::Absent, found) => found.is_none(),
            (Self::Whole(bytes), Some(found)) => ***bytes == *found,
            (Self::Part { base, at, data }, Some(found)) => {
                let written = if found.len() > base.len() {
                    found.len().saturating_sub(*at)
                } else {
                    let after = found.get(*at..).unwrap_or_default();
                    after.iter().zip(data.iter()).take_while(|(one, other)| one == other).count()
                };
                written <= data.len() && with_write(base, *at, &data[..written]) == found
            }
            (_, None) => false,
        }
    }
}

/// Returns a file with a write at an offset.
pub fn with_write(base: &[u8], at: usize, data: &[u8]) -> Vec<u8> {
    let mut bytes = base.to_vec();
    if !data.is_empty() {
        bytes.resize(bytes.len().max(at + data.len()), 0);
        bytes[at..at + data.len()].copy_from_slice(data);
    }
    bytes
}

/// Bytes of which each eight tell which write they are of, and where they are in it.
pub fn written(version: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (at, eight) in bytes.chunks_mut(8).enumerate() {
        let word = u64::from(version) << 32 | at as u64;
        eight.copy_from_slice(&word.to_le_bytes()[..eight.len()]);
    }
    bytes
}

/// See the module text.
#[derive(Clone)]
pub struct Known(Vec<State>);

impl Known {
    pub fn absent() -> Self {
        Self(vec![State::Absent])
    }

    /// Notes that it may have become this.
    pub fn may_be(&mut self, state: State) {
        self.0.push(state);
    }

    pub fn may_be_whole(&mut self, bytes: &Bytes) {
        self.may_be(State::Whole(Arc::clone(bytes)));
    }

    /// Notes that it has become this, acknowledged.
    pub fn is_now(&mut self, bytes: Option<&Bytes>) {
        self.0.clear();
        self.may_be(bytes.map_or(State::Absent, |bytes| State::Whole(Arc::clone(bytes))));
    }

    pub fn is_sure(&self) -> bool {
        self.0.len() == 1
    }

    /// Returns the bytes of the acknowledged state.
    pub fn bytes(&self) -> Option<&Bytes> {
        match self.0.first() {
            Some(State::Whole(bytes)) => Some(bytes),
            _ => None,
        }
    }

    pub fn holds(&self, found: Option<&[u8]>) -> bool {
        self.0.iter().any(|state| state.is(found))
    }
}

/// For failures.
impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |state: &State| match state {
            State::Absent => "absent".to_owned(),
            State::Whole(bytes) => shown(bytes),
            State::Part { base, at, data } => {
                format!("{} with a part of {} from {at} on", shown(base), shown(data))
            }
        };
        f.debug_list().entries(self.0.iter().map(show)).finish()
    }
}

/// Describes a file: where the bytes of which write begin.
pub fn shown(bytes: &[u8]) -> String {
    const NR_RUNS_MAX: usize = 12;
    let mut runs = Vec::new();
    let mut last = None;
    for (at, eight) in bytes.chunks_exact(8).enumerate() {
        let word = u64::from_le_bytes(eight.try_into().unwrap());
        let run = (word >> 32, (word & 0xffff_ffff) as i64 - at as i64);
        if last != Some(run) && runs.len() < NR_RUNS_MAX {
            runs.push(format!("write {:#x} from {} on", run.0, at * 8));
        }
        last = Some(run);
    }
    format!("{} bytes ({})", bytes.len(), runs.join(", "))
}

#[test]
fn a_mixture_is_none_of_the_states() {
    let (old, new) = (Arc::new(written(1, 100)), Arc::new(written(2, 60)));
    let mut known = Known::absent();
    known.is_now(Some(&old));
    assert!(known.holds(Some(&old)) && !known.holds(None) && !known.holds(Some(&new)));
    known.may_be_whole(&new);
    assert!(known.holds(Some(&old)) && known.holds(Some(&new)));
    let mixed = with_write(&old, 0, &new);
    assert!(!known.holds(Some(&mixed)) && !known.holds(Some(&old[..99])));
    known.may_be(State::Part { base: Arc::clone(&old), at: 0, data: Arc::clone(&new) });
    assert!(known.holds(Some(&mixed)) && known.holds(Some(&with_write(&old, 0, &new[..13]))));
    assert!(!known.holds(Some(&with_write(&old, 8, &new[..13]))));
    known.is_now(None);
    assert!(known.is_sure() && known.holds(None) && !known.holds(Some(&old)));
}
