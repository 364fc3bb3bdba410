//! Buckets of S3, Google Cloud Storage and Azure, or local directories in their place, as stores of
//! volumes ([`umemcg_vfs::bucket::Bucket`]).
//!
//! `location` parses a URL and finds credentials (`file_credentials`). `store_bucket` turns
//! requests into calls of the crate `object_store` (`store`), including an `upload`, an upload in
//! progress while its bytes arrive (`parted_upload`), a `copy` and a `deletion`. An upload or copy
//! recognises its own object by a mark (`metadata`). `http_layer` stands between `object_store` and
//! the network. It counts requests, refuses unexpected responses (`answer`), removes keys unusable
//! as paths from listings (`listing_filter`), passes on the store's checksums (`checksum`), and
//! patches requests where `object_store` lacks a feature (`request_patch`). The facts that it needs
//! for this travel with the requests (`request_extensions`). The volumes of one store share its
//! state (`traffic`), such as the rate limit (`pace`). All of it runs on one small runtime
//! (`runtime`). Callers block; the interface has no asynchronous types.
#![forbid(unsafe_code)]

mod answer;
mod asked_bucket;
mod checksum;
mod copy;
mod credentials_file;
mod deletion;
mod file_credentials;
mod http_layer;
mod listing_filter;
mod local_directory;
mod location;
mod metadata;
mod pace;
mod parted_upload;
mod recent_keys;
mod refusal;
mod relabeling;
mod request_extensions;
mod request_kind;
mod request_patch;
mod runtime;
mod store;
mod store_bucket;
mod traffic;
mod upload;
mod upload_list;

pub use location::{LocationError, ObjectOptions, open};
pub use store_bucket::StoreBucket;
