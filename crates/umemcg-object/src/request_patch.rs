//! Patches requests on their way to the network where `object_store` lacks a feature, and signs
//! them again. The patches: preconditions of a copy and of completing a multipart upload, keys
//! ending with a slash (directories), lists of multipart uploads, and single deletions in place of
//! Azure's batches, whose body has the key.

use std::sync::{Arc, OnceLock};

use http::Method;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use object_store::aws::{AwsAuthorizer, AwsCredentialProvider};
use object_store::azure::{AzureAuthorizer, AzureCredential, AzureCredentialProvider};
use object_store::client::{HttpError, HttpErrorKind, HttpRequest};

use crate::request_extensions::extension_of;

/// The changes to make to a request: one of its extensions.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestPatch {
    /// Text appended to the key.
    pub(crate) after_key: &'static str,
    /// The listing is of multipart uploads, not of objects.
    pub(crate) lists_uploads: bool,
    /// The copy request stands for a deletion of its destination.
    pub(crate) is_deletion: bool,
    /// Further headers.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
}

/// The keys for signing requests; unset for unsigned requests and for Google.
pub(crate) type Signer = Arc<OnceLock<Keys>>;

/// The keys of a store.
#[derive(Debug)]
pub(crate) enum Keys {
    S3(AwsCredentialProvider),
    /// With the account name.
    Azure(AzureCredentialProvider, String),
}

/// The parameters of a listing of objects, and those of a list of uploads in their place.
const UPLOAD_PARAMETERS: [(&str, &str); 3] = [
    ("list-type=2", "uploads="),
    ("start-after=", "key-marker="),
    ("continuation-token=", "upload-id-marker="),
];
const CONTENT_HASH: &str = "x-amz-content-sha256";
const SIGNATURE: &str = "AWS4-HMAC-SHA256 Credential=";
/// A header of each request to Azure's blobs, signed or not.
const AZURE_VERSION: &str = "x-ms-version";
const AZURE_COPY_SOURCE: &str = "x-ms-copy-source";

impl Keys {
    /// Returns whether a request is for the store itself. A task's extensions are also those of its
    /// requests for credentials.
    fn are_of(&self, request: &HttpRequest) -> bool {
        match self {
            Self::S3(_) => authorization_of(request).as_deref().and_then(region_of).is_some(),
            Self::Azure(..) => request.headers().contains_key(AZURE_VERSION),
        }
    }

    /// Signs a request again.
    async fn sign(&self, request: &mut HttpRequest) -> Result<(), HttpError> {
        match self {
            Self::S3(credentials) => sign(request, credentials).await,
            Self::Azure(credentials, account) => {
                let credential = credentials.get_credential().await.map_err(unsigned)?;
                // A shared access signature does not cover the path, and stays valid.
                if matches!(*credential, AzureCredential::SASToken(_)) {
                    return Ok(());
                }
                request.headers_mut().remove(AUTHORIZATION);
                AzureAuthorizer::new(&credential, account).try_authorize(request).map_err(unsigned)
            }
        }
    }
}

fn authorization_of(request: &HttpRequest) -> Option<String> {
    let value = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    value.map(str::to_owned)
}

/// Applies a request's patch.
pub(crate) async fn patched(mut request: HttpRequest, signer: &Signer) -> Result<HttpRequest, HttpError> {
    let Some(patch) = extension_of::<RequestPatch>(&request) else { return Ok(request) };
    let RequestPatch { after_key, lists_uploads, is_deletion, headers } = patch;
    if after_key.is_empty() && !lists_uploads && !is_deletion && headers.is_empty() {
        return Ok(request);
    }
    if signer.get().is_some_and(|keys| !keys.are_of(&request)) {
        return Ok(request);
    }
    if !after_key.is_empty() || lists_uploads {
        let path = format!("{}{after_key}", request.uri().path());
        let query = request.uri().query().map(|query| match lists_uploads {
            // No value has an equals sign.
            true => UPLOAD_PARAMETERS
                .into_iter()
                .fold(query.to_owned(), |query, (objects, uploads)| query.replace(objects, uploads)),
            false => query.to_owned(),
        });
        let whole = query.map_or(path.clone(), |query| format!("{path}?{query}"));
        let mut parts = request.uri().clone().into_parts();
        parts.path_and_query = Some(whole.parse::<PathAndQuery>().map_err(unsigned)?);
        *request.uri_mut() = http::Uri::from_parts(parts).map_err(unsigned)?;
    }
    if is_deletion {
        *request.method_mut() = Method::DELETE;
        request.headers_mut().remove(AZURE_COPY_SOURCE);
    }
    request.headers_mut().extend(headers);
    if let Some(keys) = signer.get() {
        keys.sign(&mut request).await?;
    }
    Ok(request)
}

/// Signs a request again, with the region and the body hash of its old signature.
async fn sign(request: &mut HttpRequest, credentials: &AwsCredentialProvider) -> Result<(), HttpError> {
    let old = authorization_of(request);
    let Some(region) = old.as_deref().and_then(region_of) else { return Ok(()) };
    let credential = credentials.get_credential().await.map_err(unsigned)?;
    let hash = request.headers().get(CONTENT_HASH).and_then(|value| value.to_str().ok());
    let digest = hash.and_then(bytes_of_hex);
    let authorizer = AwsAuthorizer::new(&credential, "s3", region).with_sign_payload(digest.is_some());
    authorizer.try_authorize(request, digest.as_deref()).map_err(unsigned)
}

/// Returns the region of a signature: `…Credential=KEY/DATE/REGION/s3/aws4_request, …`.
fn region_of(authorization: &str) -> Option<&str> {
    let (scope, _) = authorization.strip_prefix(SIGNATURE)?.split_once(',')?;
    scope.rsplit('/').nth(2)
}

fn bytes_of_hex(text: &str) -> Option<Vec<u8>> {
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

fn unsigned(error: impl std::error::Error + Send + Sync + 'static) -> HttpError {
    // `object_store` does not retry this kind.
    HttpError::new(HttpErrorKind::Unknown, error)
}

#[cfg(test)]
mod tests {
    use object_store::StaticCredentialProvider;
    use object_store::aws::AwsCredential;
    use object_store::client::HttpRequestBody;

    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    fn signer() -> Signer {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let credential =
            AwsCredential { key_id: "id".into(), secret_key: "secret".into(), token: Some("session".into()) };
        let signer = Signer::default();
        assert!(signer.set(Keys::S3(Arc::new(StaticCredentialProvider::new(credential)))).is_ok());
        signer
    }

    fn request(authorization: Option<&str>) -> HttpRequest {
        let mut request = http::Request::put("http://host/bucket/d?x=1");
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization).header(CONTENT_HASH, "0".repeat(64));
        }
        request.body(HttpRequestBody::empty()).unwrap()
    }

    fn with_slash(mut request: HttpRequest, signer: &Signer) -> HttpRequest {
        let headers = vec![(http::header::IF_NONE_MATCH, HeaderValue::from_static("*"))];
        let patch = RequestPatch { after_key: "/", headers, ..RequestPatch::default() };
        request.extensions_mut().insert(patch);
        block_on(patched(request, signer)).unwrap()
    }

    #[test]
    fn a_patched_request_is_signed_again() {
        let old = "AWS4-HMAC-SHA256 Credential=id/20261126/eu-west-3/s3/aws4_request, SignedHeaders=host, Signature=0";
        let request = with_slash(request(Some(old)), &signer());
        assert_eq!(request.uri(), "http://host/bucket/d/?x=1");
        let new = request.headers()[AUTHORIZATION].to_str().unwrap();
        assert!(new.contains("/eu-west-3/s3/aws4_request"), "{new}");
        assert!(new.contains("if-none-match") && new.contains("x-amz-security-token"), "{new}");
        assert_eq!(request.headers()[CONTENT_HASH], "0".repeat(64), "the hash of the body stays");
    }

    fn azure(credential: AzureCredential) -> Signer {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let keys = Keys::Azure(Arc::new(StaticCredentialProvider::new(credential)), "account".into());
        let signer = Signer::default();
        assert!(signer.set(keys).is_ok());
        signer
    }

    /// A copy request as `object_store` sends it to Azure.
    fn azure_request(uri: &str, authorization: Option<&str>) -> HttpRequest {
        let mut request = http::Request::put(uri).header(AZURE_VERSION, "2023-11-03");
        request = request.header(AZURE_COPY_SOURCE, "http://host/c/d");
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.body(HttpRequestBody::empty()).unwrap()
    }

    fn deletion(mut request: HttpRequest, signer: &Signer) -> HttpRequest {
        let patch = RequestPatch { after_key: "/", is_deletion: true, ..RequestPatch::default() };
        request.extensions_mut().insert(patch);
        let request = block_on(patched(request, signer)).unwrap();
        assert_eq!(request.method(), Method::DELETE);
        assert!(!request.headers().contains_key(AZURE_COPY_SOURCE));
        request
    }

    #[test]
    fn azure_gets_one_signature_of_what_is_sent() {
        let key = object_store::azure::AzureAccessKey::try_new("c2VjcmV0").unwrap();
        let signer = azure(AzureCredential::AccessKey(key));
        let old = "SharedKey account:old";
        let request = deletion(azure_request("http://host/c/d", Some(old)), &signer);
        assert_eq!(request.uri(), "http://host/c/d/");
        let signatures: Vec<_> = request.headers().get_all(AUTHORIZATION).into_iter().collect();
        assert!(signatures.len() == 1 && signatures[0] != old, "{signatures:?}");

        let signer = azure(AzureCredential::BearerToken("new".into()));
        let request = deletion(azure_request("http://host/c/d", Some("Bearer old")), &signer);
        let tokens: Vec<_> = request.headers().get_all(AUTHORIZATION).into_iter().collect();
        assert_eq!(tokens, ["Bearer new"]);

        let pairs = vec![("sig".to_owned(), "x".to_owned())];
        let request =
            deletion(azure_request("http://host/c/d?sig=x", None), &azure(AzureCredential::SASToken(pairs)));
        assert_eq!(request.uri(), "http://host/c/d/?sig=x");
    }

    #[test]
    fn a_request_for_credentials_is_left_alone() {
        let azure = azure(AzureCredential::BearerToken("new".into()));
        assert_eq!(with_slash(request(None), &azure).uri(), "http://host/bucket/d?x=1");
        let request = with_slash(request(None), &signer());
        assert_eq!(request.uri(), "http://host/bucket/d?x=1");
        assert!(request.headers().is_empty());
    }

    #[test]
    fn an_unsigned_request_is_only_patched() {
        let request = with_slash(request(None), &Signer::default());
        assert_eq!(request.uri(), "http://host/bucket/d/?x=1");
        assert!(!request.headers().contains_key(AUTHORIZATION));
    }

    #[test]
    fn without_a_patch_nothing_changes() {
        let request = block_on(patched(request(Some("Bearer x")), &signer())).unwrap();
        assert_eq!(request.uri(), "http://host/bucket/d?x=1");
        assert_eq!(region_of("Bearer x"), None);
    }
}
