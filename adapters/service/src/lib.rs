//! A typical service of an embedder: tenants request documents over HTTP, and a cache charged to
//! each tenant's group stands in front of a slow origin.
//!
//! `GET /{tenant}/{document}` returns the document, loaded once for all concurrent requests of the
//! tenant for it.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use umemcg::objects::ObjectStats;
use umemcg::{Engine, EngineConfig, Group, ObjectCache};

/// A document, shared by the cache and the responses in progress.
pub type Document = Arc<[u8]>;
type Load = Pin<Box<dyn Future<Output = Document> + Send>>;
type Origin = Box<dyn Fn(&str, &str) -> Load + Send + Sync>;

/// The service: an engine, its tenants, and their shared cache.
pub struct Service {
    engine: Arc<Engine>,
    tenants: HashMap<String, Arc<Group>>,
    documents: ObjectCache<String, Document>,
    origin: Origin,
}

impl Service {
    /// Creates a service of tenants with limits in bytes. `origin` loads the document of a tenant.
    ///
    /// # Errors
    /// When the engine cannot be created.
    pub fn new(
        tenants: &[(&str, u64)],
        origin: impl Fn(&str, &str) -> Load + Send + Sync + 'static,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let engine = Engine::new(EngineConfig::new(64 << 20))?;
        let mut groups = HashMap::new();
        for (name, limit) in tenants {
            let group = engine.create_group(engine.root(), OsStr::new(name))?;
            engine.set_max(&group, *limit);
            groups.insert((*name).to_owned(), group);
        }
        let documents = ObjectCache::builder(&engine, "documents")
            .weigher(|name: &String, document: &Document| (name.len() + document.len() + 16) as u64)
            .build();
        Ok(Self { engine, tenants: groups, documents, origin: Box::new(origin) })
    }

    /// Answers requests until the task is dropped.
    ///
    /// # Errors
    /// When the listener fails.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) -> io::Result<()> {
        let routes = Router::new().route("/{tenant}/{document}", get(answer)).with_state(self);
        axum::serve(listener, routes).await
    }

    /// Returns the figures of a tenant.
    pub fn stats_of(&self, tenant: &str) -> ObjectStats {
        self.tenants.get(tenant).map_or_else(ObjectStats::default, |group| self.documents.stats_of(group))
    }

    /// Returns the bytes charged to a tenant.
    pub fn usage_bytes(&self, tenant: &str) -> u64 {
        self.tenants.get(tenant).map_or(0, |group| group.usage_bytes())
    }

    /// Returns the engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }
}

async fn answer(
    State(service): State<Arc<Service>>,
    Path((tenant, document)): Path<(String, String)>,
) -> Result<Vec<u8>, StatusCode> {
    let group = service.tenants.get(&tenant).ok_or(StatusCode::NOT_FOUND)?;
    let load = (service.origin)(&tenant, &document);
    let found = service.documents.get_or_insert_async(group, document, load).await;
    Ok(found.to_vec())
}
