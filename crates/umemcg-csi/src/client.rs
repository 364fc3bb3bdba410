//! A blocking client of the plugin, for tests: the requests of kubelet.

use std::path::Path;
use std::time::Duration;

use tonic::Request;
use tonic::transport::{Channel, Endpoint};
pub use tonic::{Code, Status};

use crate::v1::identity_client::IdentityClient;
use crate::v1::node_client::NodeClient;
use crate::v1::{
    NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, ProbeRequest,
};

/// A connection to a plugin.
#[derive(Debug)]
pub struct Client {
    runtime: tokio::runtime::Runtime,
    channel: Channel,
    limit: Option<Duration>,
}

impl Client {
    /// Connects to the plugin listening at a path. Blocks.
    ///
    /// # Errors
    /// `Unavailable` if no plugin listens there.
    pub fn connect(socket: &Path) -> Result<Self, Status> {
        let away = |error: &dyn std::error::Error| Status::unavailable(error.to_string());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|error| away(&error))?;
        let endpoint =
            Endpoint::from_shared(format!("unix://{}", socket.display())).map_err(|error| away(&error))?;
        let channel = runtime.block_on(endpoint.connect()).map_err(|error| away(&error))?;
        Ok(Self { runtime, channel, limit: None })
    }

    /// Sends this timeout with each request.
    #[must_use]
    pub fn waiting(self, limit: Duration) -> Self {
        Self { limit: Some(limit), ..self }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(limit) = self.limit {
            request.set_timeout(limit);
        }
        request
    }

    /// Returns whether the plugin is ready. If it is, also checks that the daemon serves.
    ///
    /// # Errors
    /// The plugin's.
    pub fn probe(&self) -> Result<bool, Status> {
        let mut client = IdentityClient::new(self.channel.clone());
        let answer = self.runtime.block_on(client.probe(self.request(ProbeRequest {})))?;
        Ok(answer.into_inner().ready.unwrap_or(true))
    }

    /// Stages a volume.
    ///
    /// # Errors
    /// The plugin's.
    pub fn stage(&self, request: NodeStageVolumeRequest) -> Result<(), Status> {
        let mut client = NodeClient::new(self.channel.clone());
        self.runtime.block_on(client.node_stage_volume(self.request(request))).map(drop)
    }

    /// Publishes a volume.
    ///
    /// # Errors
    /// The plugin's.
    pub fn publish(&self, request: NodePublishVolumeRequest) -> Result<(), Status> {
        let mut client = NodeClient::new(self.channel.clone());
        self.runtime.block_on(client.node_publish_volume(self.request(request))).map(drop)
    }

    /// Unpublishes a volume.
    ///
    /// # Errors
    /// The plugin's.
    pub fn unpublish(&self, volume_id: &str, target_path: &str) -> Result<(), Status> {
        let mut client = NodeClient::new(self.channel.clone());
        let request =
            NodeUnpublishVolumeRequest { volume_id: volume_id.into(), target_path: target_path.into() };
        self.runtime.block_on(client.node_unpublish_volume(self.request(request))).map(drop)
    }

    /// Unstages a volume.
    ///
    /// # Errors
    /// The plugin's.
    pub fn unstage(&self, volume_id: &str, staging_target_path: &str) -> Result<(), Status> {
        let mut client = NodeClient::new(self.channel.clone());
        let (volume_id, staging_target_path) = (volume_id.into(), staging_target_path.into());
        let request = NodeUnstageVolumeRequest { volume_id, staging_target_path };
        self.runtime.block_on(client.node_unstage_volume(self.request(request))).map(drop)
    }

    /// Requests the statistics of a volume.
    ///
    /// # Errors
    /// The plugin's.
    pub fn stats(&self, volume_id: &str, volume_path: &str) -> Result<(), Status> {
        let mut client = NodeClient::new(self.channel.clone());
        let (volume_id, volume_path) = (volume_id.into(), volume_path.into());
        let request = NodeGetVolumeStatsRequest { volume_id, volume_path, ..Default::default() };
        self.runtime.block_on(client.node_get_volume_stats(self.request(request))).map(drop)
    }
}
