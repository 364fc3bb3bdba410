//! The Controller service: passes requests of the provisioner to [`Controller`].

use std::sync::Arc;
use std::time::Duration;

use tonic::{Request, Response, Status};

use crate::controller::Controller;
use crate::records::Created;
use crate::requests::{PLUGIN, Requests};
use crate::time_limits;
use crate::v1::controller_server;
use crate::v1::controller_service_capability::{Rpc, Type, rpc};
use crate::v1::list_volumes_response::Entry;
use crate::v1::validate_volume_capabilities_response::Confirmed;
use crate::v1::{
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse, ControllerServiceCapability,
    CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse, ListVolumesRequest,
    ListVolumesResponse, ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume,
};

/// The service.
#[derive(Debug)]
pub struct ControllerService {
    pub(crate) controller: Arc<Controller>,
    pub(crate) requests: Arc<Requests>,
}

#[tonic::async_trait]
impl controller_server::Controller for ControllerService {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let limit = time_limits::of_client(&request);
        let (controller, request) = (Arc::clone(&self.controller), request.into_inner());
        let created = self.change(limit, move || controller.create(&request)).await?;
        Ok(Response::new(CreateVolumeResponse { volume: Some(volume_of(created)) }))
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let limit = time_limits::of_client(&request);
        let (controller, request) = (Arc::clone(&self.controller), request.into_inner());
        self.change(limit, move || controller.delete(&request.volume_id)).await?;
        Ok(Response::new(DeleteVolumeResponse {}))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let limit = time_limits::of_client(&request);
        let (controller, request) = (Arc::clone(&self.controller), request.into_inner());
        let work = move || {
            let refused = controller.validate(&request.volume_id, &request.volume_capabilities)?;
            Ok((refused, request))
        };
        let (refused, request) = self.change(limit, work).await?;
        let confirmed = refused.is_none().then_some(Confirmed {
            volume_context: request.volume_context,
            volume_capabilities: request.volume_capabilities,
            parameters: request.parameters,
            mutable_parameters: request.mutable_parameters,
        });
        let message = refused.unwrap_or_default();
        Ok(Response::new(ValidateVolumeCapabilitiesResponse { confirmed, message }))
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        let limit = time_limits::of_client(&request);
        let (controller, request) = (Arc::clone(&self.controller), request.into_inner());
        let page =
            self.change(limit, move || controller.list(&request.starting_token, request.max_entries)).await?;
        let entry = |created| Entry { volume: Some(volume_of(created)), status: None };
        Ok(Response::new(ListVolumesResponse {
            entries: page.volumes.into_iter().map(entry).collect(),
            next_token: page.next_token,
        }))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let known = [rpc::Type::CreateDeleteVolume, rpc::Type::ListVolumes, rpc::Type::SingleNodeMultiWriter];
        let capability = |kind: rpc::Type| ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })),
        };
        let capabilities = known.map(capability).into();
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities }))
    }
}

impl ControllerService {
    /// Runs a request. All requests count for one tenant, because they wait for the plugin's own
    /// disk only.
    async fn change<T: Send + 'static>(
        &self,
        limit: Option<Duration>,
        work: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        self.requests.change(limit, || PLUGIN.into(), work).await
    }
}

fn volume_of(created: Created) -> Volume {
    Volume {
        volume_id: created.volume_id,
        capacity_bytes: created.capacity_bytes,
        volume_context: created.context.into_iter().collect(),
        ..Volume::default()
    }
}
