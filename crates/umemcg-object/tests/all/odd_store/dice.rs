//! Chance: numbers as good as random, and the odd answers and servers that they choose.

use super::{Asked, Character, Etags, FORMS, INSTEAD, Listing, Oddity};

const LISTINGS: [Listing; 9] = [
    Listing::NoToken,
    Listing::OldToken,
    Listing::Twice,
    Listing::Unsorted,
    Listing::NoEtags,
    Listing::EmptyFirst,
    Listing::Endless,
    Listing::EmptyParts,
    Listing::AnyPrefix,
];
const ETAGS: [Etags; 7] =
    [Etags::Digest, Etags::Digest, Etags::Digest, Etags::Empty, Etags::Weak, Etags::Missing, Etags::Const];

/// Numbers as good as random (splitmix64).
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    pub fn of<T: Copy>(&mut self, these: &[T]) -> T {
        these[self.below(these.len() as u64) as usize]
    }

    /// Returns the properties of a server.
    pub fn character(&mut self) -> Character {
        Character {
            etags: self.of(&ETAGS),
            takes_conditions: self.below(5) > 0,
            page: self.of(&[1, 2, 3, 1000]),
            seconds_ahead: self.of(&[0, 0, 30, -30, 7200]),
        }
    }

    /// Returns an odd answer, for how many requests it is, and of which kind.
    pub fn oddity(&mut self) -> (usize, Asked, Oddity) {
        let asked = match self.below(40) {
            // Rare: they are for large files alone.
            0 => Asked::Begin,
            1 => Asked::Complete,
            _ => self.of(&[Asked::Head, Asked::Get, Asked::List, Asked::Put, Asked::Copy, Asked::Delete]),
        };
        let oddity = match self.below(6) {
            0 => Oddity::Form(self.of(&FORMS)),
            1 => Oddity::Status(self.of(&[404, 500, 503, 400, 412, 409, 301, 307])),
            2 => Oddity::StatusAfter(self.of(&[500, 503])),
            3 if asked == Asked::List => Oddity::Listing(self.of(&LISTINGS)),
            4 if asked == Asked::Get => Oddity::WholeObject,
            _ => Oddity::Instead(self.of(&INSTEAD)),
        };
        (1 + self.below(3) as usize, asked, oddity)
    }
}
