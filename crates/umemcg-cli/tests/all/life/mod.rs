//! The life of a daemon as a service: what it tells the service manager, a configuration that is
//! read again while the mount is served, logs, exit codes, and `umemcg doctor`.
#![allow(dead_code, reason = "the harness serves several sets of tests")]

mod commands;
mod reloads;
mod service;
mod service_manager;
