//! The Identity service: the plugin's name and capabilities, its readiness, and a check of the
//! daemon.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::readiness::Readiness;
use crate::time_limits;
use crate::v1::identity_server::Identity;
use crate::v1::plugin_capability::{Service, Type, service};
use crate::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
};

/// The name of the plugin in StorageClass and CSIDriver objects.
pub const DRIVER: &str = "csi.umemcg.github.io";

/// The service.
#[derive(Debug)]
pub struct IdentityService {
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) has_controller: bool,
}

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: DRIVER.into(),
            vendor_version: env!("CARGO_PKG_VERSION").into(),
            ..GetPluginInfoResponse::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let controller = Service { r#type: service::Type::ControllerService.into() };
        let capability = PluginCapability { r#type: Some(Type::Service(controller)) };
        let capabilities = self.has_controller.then_some(capability).into_iter().collect();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, request: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        // The specification distinguishes "not ready" from an error.
        let is_ready = self.readiness.is_ready();
        if is_ready {
            self.readiness.probe(time_limits::of_client(&request)).await?;
        }
        Ok(Response::new(ProbeResponse { ready: Some(is_ready) }))
    }
}
