//! The parts of a store's listing, and the place where the next part begins.

use rustix::io::Errno;

use super::failure_log::FailureLog;
use super::listed_part::ListedNames;
use crate::bucket::{Bucket, BucketError, ListedPart};

/// Most empty parts in a row.
const NR_EMPTY_PARTS_MAX: u32 = 100;

/// A store as a source of listings.
#[derive(Debug, Clone, Copy)]
pub(super) struct Listings<'a> {
    pub(super) bucket: &'a dyn Bucket,
    pub(super) failures: &'a FailureLog,
}

/// The place where the next part of a listing begins.
#[derive(Debug, Default)]
pub(super) struct ListingPlace {
    next: Option<String>,
    is_begun: bool,
    /// An earlier place, to find a circle of any length (R. P. Brent, "An improved Monte Carlo
    /// factorization algorithm", 1980, section 3): the place after 1, 2, 4, 8 … parts.
    marked: Option<String>,
    nr_parts: u64,
    /// Empty parts since the last part with a key.
    nr_empty: u32,
}

impl Listings<'_> {
    /// Asks for a part.
    pub(super) fn part(self, prefix: &str, from: Option<&str>, max: usize) -> Result<ListedPart, Errno> {
        let mut part = self.bucket.list(prefix, from, max).map_err(|error| match error {
            // A prefix without keys is an empty listing, so it is the bucket that is missing.
            BucketError::NotFound(what) => self.failures.report(&BucketError::Unavailable(what)),
            error => self.failures.report(&error),
        })?;
        // Some stores do not keep the order of keys, or list a key twice.
        if !part.names.is_sorted_by(|one, other| ListedNames::order(one, other).is_lt()) {
            part.names.sort_by(ListedNames::order);
            part.names.dedup_by(|one, other| ListedNames::order(one, other).is_eq());
        }
        Ok(part)
    }
}

impl ListingPlace {
    /// Returns whether the last part was returned.
    pub(super) fn is_at_end(&self) -> bool {
        self.is_begun && self.next.is_none()
    }

    /// Returns whether a part was returned.
    pub(super) fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// Asks for the next part.
    ///
    /// # Errors
    /// The store's; `EIO` for a listing that goes round in a circle, or on and on without a key.
    pub(super) fn next_part(
        &mut self,
        listings: Listings<'_>,
        prefix: &str,
        max: usize,
    ) -> Result<ListedPart, Errno> {
        let part = listings.part(prefix, self.next.as_deref(), max)?;
        let is_empty = part.names.is_empty() && part.hidden.is_empty();
        self.nr_empty = if is_empty { self.nr_empty + 1 } else { 0 };
        if part.next.is_some() && (part.next == self.marked || self.nr_empty > NR_EMPTY_PARTS_MAX) {
            let what = format!("LIST of {prefix:?} in {}: it has no end", listings.bucket.url());
            return Err(listings.failures.report(&BucketError::Corrupt(what)));
        }
        self.nr_parts += 1;
        if self.nr_parts.is_power_of_two() {
            self.marked.clone_from(&part.next);
        }
        (self.is_begun, self.next) = (true, part.next.clone());
        Ok(part)
    }
}
