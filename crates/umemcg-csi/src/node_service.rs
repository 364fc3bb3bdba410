//! The Node service: passes requests of kubelet to [`Node`].

use std::path::Path;
use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::names::volume_name;
use crate::node::Node;
use crate::pod::namespace_of;
use crate::readiness::Readiness;
use crate::records::Records;
use crate::requests::{PLUGIN, Requests};
use crate::time_limits;
use crate::v1::node_get_storage_health_response::StorageBackendHealth;
use crate::v1::node_server;
use crate::v1::node_service_capability::{Rpc, Type, rpc};
use crate::v1::volume_health::VolumeHealthEntry;
use crate::v1::volume_usage::Unit;
use crate::v1::{
    NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeGetStorageHealthRequest, NodeGetStorageHealthResponse, NodeGetVolumeHealthRequest,
    NodeGetVolumeHealthResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability, NodeStageVolumeRequest,
    NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse,
    NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, StorageHealthErrorType, VolumeHealth,
    VolumeHealthErrorType, VolumeUsage,
};

/// The service.
#[derive(Debug)]
pub struct NodeService {
    pub(crate) node: Arc<Node>,
    pub(crate) records: Arc<Records>,
    pub(crate) requests: Arc<Requests>,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) node_id: String,
}

#[tonic::async_trait]
impl node_server::Node for NodeService {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        self.readiness.may_add().await?;
        let limit = time_limits::of_client(&request);
        let (node, request) = (Arc::clone(&self.node), request.into_inner());
        let tenant = namespace_of(&request.volume_context).to_owned();
        self.requests.change(limit, || tenant, move || node.stage(&request)).await?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        self.readiness.may_remove().await?;
        let limit = time_limits::of_client(&request);
        let request = request.into_inner();
        let (records, id) = (Arc::clone(&self.records), request.volume_id.clone());
        let tenant = move || volume_name(&id).map_or(String::new(), |name| records.tenant_of(&name));
        let node = Arc::clone(&self.node);
        let work = move || node.unstage(&request.volume_id, &request.staging_target_path);
        self.requests.change(limit, tenant, work).await?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        self.readiness.may_add().await?;
        let limit = time_limits::of_client(&request);
        let (node, request) = (Arc::clone(&self.node), request.into_inner());
        let tenant = namespace_of(&request.volume_context).to_owned();
        self.requests.change(limit, || tenant, move || node.publish(&request)).await?;
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        self.readiness.may_remove().await?;
        let limit = time_limits::of_client(&request);
        let request = request.into_inner();
        let (records, target) = (Arc::clone(&self.records), request.target_path.clone());
        let tenant = move || records.tenant_at(&target);
        let node = Arc::clone(&self.node);
        let work = move || node.unpublish(&request.volume_id, &request.target_path);
        self.requests.change(limit, tenant, work).await?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let limit = time_limits::of_client(&request);
        let request = request.into_inner();
        let (records, path) = (Arc::clone(&self.records), request.volume_path.clone());
        let tenant = move || records.tenant_at(&path);
        let node = Arc::clone(&self.node);
        let work = move || {
            let trouble = node.trouble_at(&request.volume_id, &request.volume_path)?;
            // The path of a faulty volume may be a plain directory, with the usage of the node's
            // disk.
            trouble.map_or(Ok(()), |trouble| Err(Status::internal(trouble)))?;
            usage_of(Path::new(&request.volume_path))
        };
        let usage = self.requests.look(limit, tenant, work).await?;
        Ok(Response::new(NodeGetVolumeStatsResponse { usage }))
    }

    async fn node_get_volume_health(
        &self,
        request: Request<NodeGetVolumeHealthRequest>,
    ) -> Result<Response<NodeGetVolumeHealthResponse>, Status> {
        let limit = time_limits::of_client(&request);
        let (node, volume_id) = (Arc::clone(&self.node), request.into_inner().volume_id);
        let asked = volume_id.clone();
        let trouble = self.requests.look(limit, || PLUGIN.into(), move || node.trouble(&asked)).await?;
        let entry = |message| VolumeHealthEntry {
            status: VolumeHealthErrorType::Inaccessible.into(),
            reason: "VolumeInTrouble".into(),
            message,
        };
        let health_statuses = trouble.map(entry).into_iter().collect();
        let volume_health = Some(VolumeHealth { volume_id, health_statuses });
        Ok(Response::new(NodeGetVolumeHealthResponse { volume_health }))
    }

    async fn node_get_storage_health(
        &self,
        request: Request<NodeGetStorageHealthRequest>,
    ) -> Result<Response<NodeGetStorageHealthResponse>, Status> {
        let probed = self.readiness.probe(time_limits::of_client(&request)).await;
        let entry = |status: Status| StorageBackendHealth {
            status: StorageHealthErrorType::StorageUnreachable.into(),
            reason: "DaemonUnavailable".into(),
            message: status.message().into(),
            ..StorageBackendHealth::default()
        };
        Ok(Response::new(NodeGetStorageHealthResponse {
            backend_health: probed.err().map(entry).into_iter().collect(),
        }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let known = [
            rpc::Type::StageUnstageVolume,
            rpc::Type::GetVolumeStats,
            rpc::Type::SingleNodeMultiWriter,
            rpc::Type::GetVolumeHealth,
            rpc::Type::GetStorageHealth,
        ];
        let capability =
            |kind: rpc::Type| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) };
        let capabilities = known.map(capability).into();
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        let node_id = self.node_id.clone();
        Ok(Response::new(NodeGetInfoResponse { node_id, ..NodeGetInfoResponse::default() }))
    }
}

/// Returns the capacity and usage of a volume from `statvfs`.
fn usage_of(path: &Path) -> Result<Vec<VolumeUsage>, Status> {
    let found = rustix::fs::statvfs(path)
        .map_err(|errno| Status::internal(format!("cannot ask the volume at {}: {errno}", path.display())))?;
    let clamped = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let usage = |unit: Unit, total: u64, free: u64, available: u64, size: u64| VolumeUsage {
        unit: unit.into(),
        total: clamped(total.saturating_mul(size)),
        used: clamped(total.saturating_sub(free).saturating_mul(size)),
        available: clamped(available.saturating_mul(size)),
    };
    Ok(vec![
        usage(Unit::Bytes, found.f_blocks, found.f_bfree, found.f_bavail, found.f_frsize),
        usage(Unit::Inodes, found.f_files, found.f_ffree, found.f_favail, 1),
    ])
}
