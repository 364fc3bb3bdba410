//! The integration tests of `umemcg-control`, in one program.

mod dirty_files;
mod files;
mod permissions;
mod styles;
mod support;
mod xattrs;
