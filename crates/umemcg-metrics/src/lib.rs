//! The figures of umemcg in the [OpenMetrics](https://openmetrics.io/) text format, and a server
//! for Prometheus to scrape.
//!
//! - [`exposition()`] renders the text: at most 25 series for each group, and the series of the
//!   daemon.
//! - [`MetricsListener`] serves it over HTTP, at a TCP address or a Unix socket, and falls back to
//!   the older text format of Prometheus for clients without OpenMetrics support.
//!
//! A scrape takes no lock of the charge path or the request path.

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
