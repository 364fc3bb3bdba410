//! Buckets of S3, Google Cloud Storage and Azure, and directories of this machine in their place,
//! as stores of volumes ([`umemcg_vfs::object::Bucket`]).
//!
//! `location` reads a URL and finds credentials (`file_credentials`), `store_bucket` turns requests
//! into calls of the library `object_store` (`store`), an `upload`, one whose bytes come while it
//! goes on (`parted_upload`), a `copy` and a `deletion` among them, which know their own objects
//! again (`metadata`). `http_layer` stands between that and the network: it counts requests,
//! refuses answers that are not what was asked for (`answer`), takes keys out of listings that are
//! no paths (`listing_filter`), hands on the sums that a store tells (`checksum`), and puts into
//! requests what the library cannot say (`amendment`); the volumes of one store share what is known
//! of it (`traffic`), such as how fast it may be asked (`pace`). All of it runs on one small
//! runtime (`runtime`); callers wait for it, and see no asynchronous type.
#![forbid(unsafe_code)]

mod amendment;
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
mod request_kind;
mod runtime;
mod store;
mod store_bucket;
mod traffic;
mod upload;
mod upload_list;

pub use location::{LocationError, ObjectOptions, open};
pub use store_bucket::StoreBucket;
