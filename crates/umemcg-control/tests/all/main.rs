//! The integration tests of `umemcg-control`, in one program.

mod dirty_files;
mod event_control;
mod files;
mod permissions;
mod styles;
mod support;
mod xattrs;
