//! Finds whether a key of a store is an object, a directory, or nothing.
//!
//! ```text
//!   HEAD key ──► an object
//!     │     └──► an empty one: LIST key/* ──► a directory, or an empty object
//!     │ 404
//!   LIST key* ──► the object all the same? HEAD again ──► an object, or the store contradicts itself
//!     │      └──► `key/`: a directory
//!     │ neither, and the listing goes on before it comes to `key/`
//!   LIST key/* ──► a directory, or nothing
//! ```
//!
//! So a listing decides whether a name exists. A status of 404 alone may come from a server in
//! between, such as a gateway without its route.
//!
//! Other programs mark directories with empty objects. Where attributes are stored with objects,
//! the metadata of an empty object can make it a directory even without keys below it. For an
//! object with content, the keys below it are not looked for.

use rustix::io::Errno;
use umemcg_base::assert_no_locks_held;

use super::listing_place::{ListingPlace, Listings};
use super::node::Facts;
use super::shown_attributes::ShownAttributes;
use crate::bucket::file_attributes::are_of_directory;
use crate::bucket::{Bucket, BucketError, ListedName, Metadata, ObjectInfo};

/// Names requested to classify a key: names between `key` and `key/` come first.
const NR_NAMES: usize = 10;

/// Most rounds for a listed object that is not found: others may make and remove it all the time.
const NR_ROUNDS: usize = 10;

/// Returns whether an object marks a directory if there are keys below it.
pub(super) fn may_mark_directory(info: &ObjectInfo, bucket: &dyn Bucket) -> bool {
    // In a store of directories no file is beside a directory of its name.
    info.size == 0 && !bucket.knows_absence()
}

/// See the module text.
pub(super) struct KeySearch<'a> {
    pub(super) listings: Listings<'a>,
    pub(super) shown: &'a ShownAttributes,
    pub(super) key: &'a str,
    /// The last name of the key.
    pub(super) name: &'a str,
}

impl KeySearch<'_> {
    /// Asks the store. Keys below a nonempty object cannot be shown.
    pub(super) fn find(&self) -> Result<Facts, Errno> {
        assert_no_locks_held("a request to a store");
        for _ in 0..NR_ROUNDS {
            if let Some(info) = self.head(self.key)? {
                let may_mark = may_mark_directory(&info, self.listings.bucket);
                let told =
                    info.metadata.as_deref().filter(|told| self.shown.are_stored && are_of_directory(told));
                if may_mark && (told.is_some() || self.has_keys_below()?) {
                    return self.directory(told);
                }
                return Ok(Facts::Object(self.shown.kept(&info)));
            }
            if self.listings.bucket.knows_absence() {
                return if self.has_keys_below()? { self.directory(None) } else { Err(Errno::NOENT) };
            }
            let part = self.listings.part(self.key, None, NR_NAMES)?;
            match part.names.iter().find(|listed| listed.name == self.name) {
                // It may have been stored meanwhile.
                Some(ListedName { object: Some(_), .. }) => {}
                Some(ListedName { object: None, .. }) => return self.directory(None),
                None if part.next.is_none() && part.hidden.is_empty() => return Err(Errno::NOENT),
                None if self.has_keys_below()? => return self.directory(None),
                None => return Err(Errno::NOENT),
            }
        }
        let Listings { bucket, failures } = self.listings;
        let what = format!("HEAD of {:?} in {}: it is not found, and listed", self.key, bucket.url());
        Err(failures.report(&BucketError::Unavailable(what)))
    }

    /// As [`find`](Self::find), for a name known as a directory: mostly with one request.
    pub(super) fn find_again(&self) -> Result<Facts, Errno> {
        assert_no_locks_held("a request to a store");
        let part = self.listings.part(self.key, None, NR_NAMES)?;
        let mut found = part.names.iter().filter(|listed| listed.name == self.name);
        // An object of this very key comes first, then the keys after it.
        match (found.next().map(|first| &first.object), found.next()) {
            (Some(None), _) => Ok(Facts::Directory(None)),
            (Some(Some(info)), Some(_)) if info.size == 0 => Ok(Facts::Directory(None)),
            (Some(Some(info)), _) if !self.shown.are_stored && info.size > 0 => {
                Ok(Facts::Object(info.clone()))
            }
            _ => self.find(),
        }
    }

    fn head(&self, key: &str) -> Result<Option<ObjectInfo>, Errno> {
        match self.listings.bucket.head(key) {
            Ok(info) => Ok(Some(info)),
            Err(BucketError::NotFound(_)) => Ok(None),
            Err(error) => Err(self.listings.failures.report(&error)),
        }
    }

    /// Returns the facts about a directory. Without an object of its own it has the attributes of
    /// its `mark`.
    fn directory(&self, mark: Option<&Metadata>) -> Result<Facts, Errno> {
        if !self.shown.are_stored {
            return Ok(Facts::Directory(None));
        }
        let Listings { bucket, failures } = self.listings;
        let found = bucket.find(&format!("{}/", self.key)).map_err(|error| failures.report(&error))?;
        let (told, none) = (found.and_then(|info| info.metadata), Metadata::new());
        let told = told.as_deref().or(mark).unwrap_or(&none);
        Ok(Facts::Directory(Some(self.shown.in_directory(told))))
    }

    fn has_keys_below(&self) -> Result<bool, Errno> {
        let (prefix, mut place) = (format!("{}/", self.key), ListingPlace::default());
        while !place.is_at_end() {
            let part = place.next_part(self.listings, &prefix, 1)?;
            if !part.names.is_empty() || !part.hidden.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
