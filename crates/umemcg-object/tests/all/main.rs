//! The integration tests of `umemcg-object`, in one program.

mod checksums;
mod contract;
mod deletions;
mod faults;
mod odd_store;
mod servers;
mod throttling;
mod write_contract;
mod write_faults;
