//! The figures of umemcg in the [OpenMetrics](https://openmetrics.io/) text format, and a server
//! that Prometheus scrapes.
//!
//! - [`exposition`] makes the text: at most 25 series for each group, and those of the daemon.
//! - [`MetricsListener`] serves it over HTTP, at a TCP address or a Unix socket, and in the older
//!   text format of Prometheus to clients that do not ask for OpenMetrics.
//!
//! A scrape takes no lock that charges or requests wait for.

#![forbid(unsafe_code)]

mod exposition;
mod families;
mod labels;
mod plain_text;
mod process;
mod server;
mod stores;
mod traffic;

pub use exposition::{GroupDepth, Surroundings, VolumeFigures, exposition};
pub use families::SERIES_PER_GROUP;
pub use server::{MetricsAddress, MetricsListener, MetricsServer, WrongAddress};
pub use stores::StoreFigures;
pub use traffic::{RequestDurations, TrafficFigures, WorkFigures};
