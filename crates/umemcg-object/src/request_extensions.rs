//! The extensions of requests and responses: `object_store` passes them on to `http_layer` without
//! reading them. A request has its tenant, its patch (`request_patch`) and the prefix of a listing,
//! and its response has the results.
//!
//! `object_store` carries the extensions of reads, listings, PUTs, and the beginning of a multipart
//! upload. It drops those of copies and deletions, and of the parts, the completion and the
//! abortion of a multipart upload. Their extensions stay with the task that sends the requests.
//! This is the only side channel between the users of `object_store` and the HTTP layer below it.
//! The documentation of `object_store` does not promise it: the version is pinned, a test asks for
//! each kind of request, and a listing without the result of its filter is refused.

use http::Extensions;
use object_store::Error;
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

/// Takes the result of the filter from the extensions of a listing's response.
///
/// # Errors
/// Where `object_store` has not carried it: keys would be missing without a word.
pub(crate) fn filtered_of<T: Send + Sync + 'static>(extensions: &mut Extensions) -> Result<T, Error> {
    let unfiltered = || Error::Generic { store: "LIST", source: "the listing was not filtered".into() };
    extensions.remove::<T>().ok_or_else(unfiltered)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use async_trait::async_trait;
    use object_store::aws::{AmazonS3, AmazonS3Builder};
    use object_store::client::{
        HttpClient, HttpConnector, HttpError, HttpRequestBody, HttpResponse, HttpResponseBody, HttpService,
    };
    use object_store::list::{PaginatedListOptions, PaginatedListStore};
    use object_store::multipart::MultipartStore;
    use object_store::path::Path;
    use object_store::{
        ClientOptions, GetOptions, ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload,
    };
    use umemcg_base::LeafMutex;

    use super::*;

    const PAGE: &str = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
    const BEGUN: &str =
        "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>";
    const ENDED: &str = "<CompleteMultipartUploadResult><ETag>1</ETag></CompleteMultipartUploadResult>";

    /// The method and the tenant of a request.
    type Recorded = (String, Option<Tenant>);

    /// A store below `object_store` that records the requests.
    #[derive(Debug, Clone, Default)]
    struct Recorder(Arc<LeafMutex<Vec<Recorded>>>);

    #[async_trait]
    impl HttpService for Recorder {
        async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
            let (method, query) = (request.method().as_str(), request.uri().query().unwrap_or_default());
            self.0.lock().push((method.to_owned(), extension_of(&request)));
            let body = match method {
                "GET" if query.contains("list-type") => PAGE,
                "POST" if query.contains("uploads") => BEGUN,
                "POST" => ENDED,
                _ => "",
            };
            let response = http::Response::builder()
                .header("etag", "1")
                .header("last-modified", "Thu, 01 Jan 1970 00:00:00 GMT")
                .header("content-length", body.len())
                .extension("answer");
            Ok(response.body(HttpResponseBody::from(body.to_owned())).unwrap())
        }
    }

    impl HttpConnector for Recorder {
        fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
            Ok(HttpClient::new(self.clone()))
        }
    }

    fn recorded() -> (Recorder, AmazonS3) {
        let recorder = Recorder::default();
        let store = AmazonS3Builder::new()
            .with_bucket_name("bucket")
            .with_region("region")
            .with_endpoint("http://host")
            .with_allow_http(true)
            .with_skip_signature(true)
            .with_disable_bulk_delete(true)
            .with_http_connector(recorder.clone())
            .build();
        (recorder, store.unwrap())
    }

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

    #[test]
    fn every_request_has_its_tenant() {
        let (recorder, store) = recorded();
        let (path, upload, tenant) = (Path::from("key"), "1".to_owned(), Tenant(7));
        block_on(async {
            let of = |head| GetOptions { head, extensions: tenant.extensions(), ..GetOptions::default() };
            store.get_opts(&path, of(true)).await.unwrap();
            let got = store.get_opts(&path, of(false)).await.unwrap();
            let extensions = tenant.extensions();
            let options = PaginatedListOptions { extensions, ..PaginatedListOptions::default() };
            let listed = store.list_paginated(None, options).await.unwrap().result;
            for answer in [got.extensions, listed.extensions] {
                assert_eq!(answer.get::<&str>(), Some(&"answer"));
            }
            let options = PutOptions { extensions: tenant.extensions(), ..PutOptions::default() };
            store.put_opts(&path, PutPayload::new(), options).await.unwrap();
            let extensions = tenant.extensions();
            let options = PutMultipartOptions { extensions, ..PutMultipartOptions::default() };
            store.create_multipart_opts(&path, options).await.unwrap();
        });
        block_on(uncarried(tenant.extensions(), async {
            let part = store.put_part(&path, &upload, 0, PutPayload::new()).await.unwrap();
            store.complete_multipart(&path, &upload, vec![part]).await.unwrap();
            store.abort_multipart(&path, &upload).await.unwrap();
            store.copy(&path, &Path::from("copy")).await.unwrap();
            store.delete(&path).await.unwrap();
        }));
        let (methods, tenants): (Vec<_>, Vec<_>) = recorder.0.lock().iter().cloned().unzip();
        let expected = ["HEAD", "GET", "GET", "PUT", "POST", "PUT", "POST", "DELETE", "PUT", "DELETE"];
        assert_eq!(methods, expected);
        assert!(tenants.iter().all(|of| *of == Some(tenant)), "{tenants:?}");
    }

    #[test]
    fn a_listing_without_its_filter_is_refused() {
        let mut extensions = Tenant(1).extensions_with("result");
        assert_eq!(filtered_of::<&str>(&mut extensions).unwrap(), "result");
        assert!(filtered_of::<&str>(&mut extensions).is_err());
    }
}
