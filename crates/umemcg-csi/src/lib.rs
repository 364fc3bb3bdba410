//! The Kubernetes CSI plugin of umemcg: `umemcg csi`.
//!
//! Kubelet asks the plugin over gRPC to show volumes to pods. The plugin asks the daemon of the
//! node to serve them, makes a group for each pod, sets its limits, tells the daemon which
//! processes belong to it, and mounts the volume where kubelet wants it. The daemon serves files,
//! and lives outside the plugin: a plugin that is rolled interrupts nothing.
//!
//! The layers: [`Daemon`] is what the plugin needs of the daemon; `node` and `controller` have the
//! work; the services are their gRPC faces, which take a place of `requests` for each. `records` is
//! all that the plugin knows, on disk, and `readiness` gives it to a daemon that was started anew.
#![forbid(unsafe_code)]

mod access;
mod attributes;
mod busy_keys;
pub mod client;
mod connections;
mod controller;
mod controller_service;
mod daemon;
mod identity_service;
mod inline_policy;
mod mounts;
mod names;
mod node;
mod node_service;
mod node_volumes;
mod pod;
mod pod_groups;
mod readiness;
mod records;
mod requests;
mod server;
mod time_limits;
pub mod v1;

pub use daemon::{Daemon, DaemonError, KnownVolume, VolumeData};
pub use identity_service::DRIVER;
pub use server::{PluginConfig, PluginError, serve, socket_of};
