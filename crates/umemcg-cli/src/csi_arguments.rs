//! The arguments of `umemcg csi`, also in a program without the plugin.

use std::path::PathBuf;

/// `umemcg csi`.
#[derive(Debug, clap::Args)]
#[cfg_attr(not(feature = "csi"), allow(dead_code))]
pub struct CsiArguments {
    /// The socket on which kubelet finds the plugin: unix:///csi/csi.sock
    #[arg(long, value_name = "URL")]
    pub endpoint: String,
    /// The name of this node, as Kubernetes has it
    #[arg(long, value_name = "NAME")]
    pub node_id: String,
    /// The mount of volumes that the daemon of this node serves (`umemcg mount --volumes MNT`)
    #[arg(long, value_name = "MNT", default_value = "/run/umemcg-node/mnt")]
    pub mount: PathBuf,
    /// The mount of its control files (`--control DIR`), in which each pod gets a group
    #[arg(long, value_name = "DIR", default_value = "/run/umemcg-node/cg")]
    pub control: PathBuf,
    /// Talk to the daemon through this socket (`umemcg mount --socket`), as a plugin in a container
    /// has to
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Directory in which the plugin records what it has done. It must outlive the plugin, not the
    /// node
    #[arg(long, value_name = "DIR", default_value = "/var/lib/umemcg-csi")]
    pub state: PathBuf,
    /// Let pods show stores below this prefix as ephemeral inline volumes, with the daemon's
    /// credentials; may be given many times (default: none)
    #[arg(long = "inline-store", value_name = "URL")]
    pub inline_stores: Vec<String>,
    /// Serve the Controller service, too, which makes volumes for a StorageClass
    #[arg(long)]
    pub controller: bool,
}
