//! The arguments of `umemcg doctor`.

use std::path::PathBuf;

use crate::pool::PoolSize;

/// `umemcg doctor`.
#[derive(Debug, clap::Args)]
pub struct DoctorArguments {
    /// Also check this configuration, its stores, directories and staging directories
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check for a pool of this size (default: that of the configuration, else 25%)
    #[arg(long, value_name = "SIZE|PERCENT")]
    pub pool: Option<PoolSize>,
    /// Check for a mount with --allow-other
    #[arg(long)]
    pub allow_other: bool,
    /// Print the findings as JSON
    #[arg(long)]
    pub json: bool,
}
