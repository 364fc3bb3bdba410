//! The extensions of requests and responses: facts for `http_layer` that `object_store` carries
//! without knowing them. A request has its tenant, its patch (`request_patch`) and the prefix of a
//! listing, and its response has the results.
//!
//! `object_store` carries the extensions of reads, listings, PUTs, and the beginning of a multipart
//! upload. It drops those of copies and deletions, and of the parts, the completion and the
//! abortion of a multipart upload. Their extensions stay with the task that sends the requests.
//! This is the only side channel between the users of `object_store` and the HTTP layer below it.

use http::Extensions;
use object_store::client::HttpRequest;
use umemcg_vfs::bucket::current_tenant;

tokio::task_local! {
    /// The extensions of the task's requests, for those whose extensions `object_store` drops.
    static UNCARRIED: Extensions;
}

/// The number of the tenant on whose behalf a request is sent; 0 if unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tenant(pub(crate) usize);

impl Tenant {
    /// Returns the tenant of this thread.
    pub(crate) fn current() -> Self {
        Self(current_tenant())
    }

    /// Returns the extensions of a request on behalf of the tenant.
    pub(crate) fn extensions(self) -> Extensions {
        let mut extensions = Extensions::new();
        extensions.insert(self);
        extensions
    }

    /// As [`extensions`](Self::extensions), with another extension.
    pub(crate) fn extensions_with<T: Clone + Send + Sync + 'static>(self, value: T) -> Extensions {
        let mut extensions = self.extensions();
        extensions.insert(value);
        extensions
    }
}

/// Sends requests with these extensions, although `object_store` drops extensions of their kind.
pub(crate) fn uncarried<T>(
    extensions: Extensions,
    requests: impl Future<Output = T>,
) -> impl Future<Output = T> {
    UNCARRIED.scope(extensions, requests)
}

/// Returns an extension of a request.
pub(crate) fn extension_of<T: Clone + Send + Sync + 'static>(request: &HttpRequest) -> Option<T> {
    let of_task = || UNCARRIED.try_with(|extensions| extensions.get::<T>().cloned()).ok().flatten();
    request.extensions().get::<T>().cloned().or_else(of_task)
}

#[cfg(test)]
mod tests {
    use object_store::client::HttpRequestBody;

    use super::*;

    fn request() -> HttpRequest {
        http::Request::put("http://host/bucket/key").body(HttpRequestBody::empty()).unwrap()
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn extensions_of_a_request_precede_those_of_its_task() {
        let tenant = |request: HttpRequest| {
            block_on(uncarried(Tenant(1).extensions_with("patch"), async move {
                (extension_of::<Tenant>(&request), extension_of::<&str>(&request))
            }))
        };
        assert_eq!(tenant(request()), (Some(Tenant(1)), Some("patch")));
        let mut carried = request();
        *carried.extensions_mut() = Tenant(2).extensions();
        assert_eq!(tenant(carried), (Some(Tenant(2)), Some("patch")));
        assert_eq!(extension_of::<Tenant>(&request()), None);
    }
}
