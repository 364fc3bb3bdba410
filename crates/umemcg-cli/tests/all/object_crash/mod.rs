//! The daemon, the server of a volume of objects, or both killed at any moment, again and again,
//! under writers: what a close or an fsync acknowledged is in the store, whole, and no upload is
//! left behind. Built only with the feature `object`.
//!
//! `make test-object` kills a few times, `make test-object-crash` hundreds of times
//! (`UMEMCG_OBJECT_CRASH_ROUNDS`, with `UMEMCG_CRASH_SEED` for the same rounds again). The server
//! is SeaweedFS, which keeps what it acknowledged when it is killed.
#![cfg(feature = "object")]

mod known;
mod rounds;
mod world;
mod writer;
