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
    /// Limit a namespace whose pods have ephemeral inline volumes of memory to this size: 256M.
    /// Such a volume is refused once the limits of other namespaces do not leave it (default: half
    /// of what they leave). A namespace with a limit of its own keeps that
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub inline_memory: Option<u64>,
    /// Serve the Controller service, too, which makes volumes for a StorageClass
    #[arg(long)]
    pub controller: bool,
}

/// The least share of a namespace: its pods' groups and names would fill a smaller one.
const MEMORY_MIN: u64 = 1 << 20;

fn parse_memory(text: &str) -> Result<u64, String> {
    let bytes = umemcg_base::parse_size(text.as_bytes()).ok().filter(|&bytes| bytes >= MEMORY_MIN);
    bytes.ok_or_else(|| {
        format!("`{text}` is not a size from 1M on; write a number with k, M, G or T, such as 256M")
    })
}
