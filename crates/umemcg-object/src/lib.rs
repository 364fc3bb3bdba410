//! Buckets of S3, Google Cloud Storage and Azure, and directories of this machine in their place,
//! as stores of volumes ([`umemcg_vfs::object::Bucket`]).
//!
//! `location` reads a URL and finds credentials (`file_credentials`), `store_bucket` turns requests
//! into calls of the library `object_store`, `http_layer` stands between that and the network: it
//! counts requests and takes keys out of listings that are no paths (`listing_filter`). All of it
//! runs on one small runtime (`runtime`); callers wait for it, and see no asynchronous type.
#![forbid(unsafe_code)]

mod credentials_file;
mod file_credentials;
mod http_layer;
mod listing_filter;
mod location;
mod runtime;
mod store_bucket;

pub use location::{LocationError, ObjectOptions, open};
pub use store_bucket::StoreBucket;
