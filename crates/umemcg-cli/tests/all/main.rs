//! The integration tests of `umemcg-cli`, in one program.

mod crash;
mod csi;
mod harness;
mod life;
mod neighbours;
mod object_crash;
mod real_mount;
mod together;
#[cfg(feature = "object")]
#[path = "../../../umemcg-object/tests/all/servers/weed.rs"]
mod weed;
