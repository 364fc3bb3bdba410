//! The Kubernetes CSI plugin of umemcg: `umemcg csi`.
//!
//! Kubelet asks the plugin over gRPC to show volumes to pods. The plugin asks the daemon of the
//! node to serve them. It makes a group for each pod, sets its limits, adds a rule to the daemon
//! for the processes of the pod, and mounts the volume at kubelet's target path. The daemon serves
//! files, and lives outside the plugin: rolling out a new plugin interrupts no I/O.
//!
//! The layers: [`Daemon`] is the interface to the daemon. `node` and `controller` do the work. The
//! services are their gRPC front ends, and take a place of `requests` for each request. `records`
//! holds all of the plugin's state, on disk; `readiness` restores it in a restarted daemon.
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
mod namespace_shares;
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
