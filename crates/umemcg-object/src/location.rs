//! Opens the bucket of a URL: chooses the service, the server and the credentials.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, Checksum, S3ConditionalPut};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStoreScheme, RetryConfig};
use thiserror::Error;
use umemcg_vfs::bucket::Bucket;
use url::Url;

use crate::credentials_file::{Profile, ProfileFiles};
use crate::file_credentials::FileCredentials;
use crate::http_layer::{CountingConnector, RequestCounts, chain};
use crate::pace::RETRY_TIMEOUT;
use crate::request_patch::{Keys, Signer};
use crate::runtime::runtime;
use crate::store::Store;
use crate::store_bucket::StoreBucket;
use crate::traffic::Traffic;
use crate::upload::PART_BYTES;

/// Most retries of a request refused or not answered by the store.
const NR_RETRIES: usize = 40;
/// The pauses between retries. Each is random, between the first pause and `base` times the
/// previous one. With a base of two they would not grow on average, and ten would be over in two
/// seconds: less than a server takes to restart.
const BACKOFF: BackoffConfig = BackoffConfig {
    init_backoff: Duration::from_millis(100),
    max_backoff: Duration::from_secs(5),
    base: 3.0,
};

/// Settings of a bucket not given by its URL.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectOptions {
    /// The server, with `http://` or `https://`.
    pub endpoint: Option<String>,
    /// The region of S3.
    pub region: Option<String>,
    /// Requests are not signed.
    pub anonymous: bool,
}

/// Why the bucket of a URL cannot be opened.
#[derive(Debug, Error)]
pub enum LocationError {
    /// The text is no URL.
    #[error("`{text}` is not a URL of a store ({error}); write s3://BUCKET/PREFIX, gs://… or az://…")]
    NoUrl {
        /// The text.
        text: String,
        /// What is wrong with it.
        error: String,
    },
    /// The kind of store is not supported.
    #[error("`{0}` is not a store of a known kind; write s3://BUCKET/PREFIX, gs://… or az://…")]
    UnknownKind(String),
    /// No key can have this prefix.
    #[error("`{0}` has an empty name, `.` or `..` in its prefix")]
    BadPrefix(String),
    /// The endpoint is not valid.
    #[error("`{0}` is not an endpoint; write http://HOST:PORT or https://HOST")]
    BadEndpoint(String),
    /// Settings or credentials are missing or wrong.
    #[error("{url}: {error}")]
    Settings {
        /// The URL.
        url: String,
        /// What is wrong.
        error: String,
    },
    /// The runtime cannot be started.
    #[error("cannot start threads for stores: {0}")]
    Threads(std::io::Error),
}

/// Opens the bucket and prefix of a URL. Credentials come from the environment, or from the files
/// of the service's own tools. Sends no request.
///
/// # Errors
/// [`LocationError`].
pub fn open(text: &str, options: &ObjectOptions) -> Result<Arc<dyn Bucket>, LocationError> {
    let (scheme, prefix) = checked(text, options)?;
    let signer = Signer::default();
    let runtime = runtime().map_err(LocationError::Threads)?;
    let settings =
        |error: object_store::Error| LocationError::Settings { url: text.into(), error: chain(&error) };
    crypto();
    let mut endpoint = options.endpoint.clone();
    let files = ProfileFiles::of(&variable);
    let mut profile = Profile::default();
    if scheme == ObjectStoreScheme::AmazonS3 {
        profile = files.read();
        endpoint = endpoint.or_else(|| s3_endpoint(&profile));
        endpoint.as_deref().map_or(Ok(()), |endpoint| check_endpoint(text, endpoint))?;
    }
    let endpoint = endpoint.map(canonical);
    let traffic = Traffic::of_store(&store_name(text, endpoint.as_deref()));
    let counts = Arc::new(RequestCounts::of(traffic));
    let connector = CountingConnector { counts: Arc::clone(&counts), signer: Arc::clone(&signer) };
    let store = match scheme {
        ObjectStoreScheme::AmazonS3 => {
            let refused = |error| LocationError::Settings { url: text.into(), error };
            let by_profile =
                !options.anonymous && signs_by_profile(&files, &profile, &variable).map_err(refused)?;
            let mut builder = s3(text, options, &profile, endpoint.as_deref(), connector);
            if by_profile && let Some(credentials) = FileCredentials::new(files, &profile) {
                builder = builder.with_credentials(Arc::new(credentials));
            }
            let store = builder.build().map_err(settings)?;
            // No request has been sent yet.
            if !options.anonymous {
                let _ = signer.set(Keys::S3(Arc::clone(store.credentials())));
            }
            Store::s3(store)
        }
        ObjectStoreScheme::GoogleCloudStorage => {
            let builder = google(text, options, endpoint.as_deref(), connector);
            Store::google(builder.build().map_err(settings)?)
        }
        ObjectStoreScheme::MicrosoftAzure => {
            let builder = azure(text, options, endpoint.as_deref(), connector);
            let account = builder.get_config_value(&AzureConfigKey::AccountName);
            let store = builder.build().map_err(settings)?;
            if let Some(account) = account.filter(|_| !options.anonymous) {
                let _ = signer.set(Keys::Azure(Arc::clone(store.credentials()), account));
            }
            Store::azure(store)
        }
        ObjectStoreScheme::Local => Store::directory(),
        _ => return Err(LocationError::UnknownKind(text.into())),
    };
    let text = text.trim_end_matches('/').to_owned();
    let (prefix, place) = (prefix.to_string(), (text, endpoint));
    Ok(Arc::new(StoreBucket::new(store, prefix, place, counts, runtime, PART_BYTES)))
}

/// Returns the service and the prefix of a URL.
fn checked(text: &str, options: &ObjectOptions) -> Result<(ObjectStoreScheme, Path), LocationError> {
    let no_url = |error: String| LocationError::NoUrl { text: text.into(), error };
    let url = Url::parse(text).map_err(|error| no_url(error.to_string()))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(no_url("it has credentials in it, which belong into the environment".into()));
    }
    // The rest of the path is checked as written: URL normalisation would remove `..` segments.
    let raw = text.split_once("://").map_or("", |(_, rest)| rest);
    let raw_prefix = raw.split_once('/').map_or("", |(_, path)| path).trim_end_matches('/');
    if !raw_prefix.is_empty() && url.scheme() != "file" && !crate::listing_filter::is_path(raw_prefix) {
        return Err(LocationError::BadPrefix(text.into()));
    }
    if let Some(endpoint) = &options.endpoint {
        check_endpoint(text, endpoint)?;
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(no_url("`?` and `#` are no part of a prefix here".into()));
    }
    let (scheme, prefix) =
        ObjectStoreScheme::parse(&url).map_err(|_| LocationError::UnknownKind(text.into()))?;
    // A percent escape may stand for a slash, `.` or `..`.
    let nr_names = |path: &str| path.split('/').filter(|name| !name.is_empty()).count();
    if url.scheme() != "file" && nr_names(prefix.as_ref()) != nr_names(raw_prefix) {
        return Err(LocationError::BadPrefix(text.into()));
    }
    Ok((scheme, prefix))
}

/// Refuses an invalid endpoint, or one containing credentials: endpoints appear in figures and
/// logs.
fn check_endpoint(text: &str, endpoint: &str) -> Result<(), LocationError> {
    let parsed = Url::parse(endpoint).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    let has_credentials = |url: &Url| !url.username().is_empty() || url.password().is_some();
    match parsed.filter(Url::has_host) {
        None if endpoint.contains('@') => Err(LocationError::BadEndpoint("…@…".into())),
        None => Err(LocationError::BadEndpoint(endpoint.to_owned())),
        Some(url) if has_credentials(&url) => {
            let error = "its endpoint has credentials in it, which belong into variables of their own".into();
            Err(LocationError::NoUrl { text: text.into(), error })
        }
        Some(_) => Ok(()),
    }
}

/// Normalizes an endpoint: the name of the staging directory depends on it.
fn canonical(endpoint: String) -> String {
    // In lower case, and without the default port.
    let parsed = Url::parse(&endpoint).map(String::from).unwrap_or(endpoint);
    parsed.trim_end_matches('/').to_owned()
}

/// Returns the name of a bucket together with its server.
fn store_name(url: &str, endpoint: Option<&str>) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let bucket = rest.split('/').next().unwrap_or_default();
    match endpoint {
        Some(endpoint) => format!("{scheme}://{bucket} at {}", endpoint.trim_end_matches('/')),
        None => format!("{scheme}://{bucket}"),
    }
}

/// Returns whether requests are signed with the keys of the profile, rather than with credentials
/// that the environment chooses or the machine has.
///
/// # Errors
/// Why the environment's choice cannot be used: requests must then not be signed with other
/// credentials.
fn signs_by_profile(
    files: &ProfileFiles,
    profile: &Profile,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<bool, String> {
    let has = |name: &str| variable(name).is_some();
    let has_token = has("AWS_WEB_IDENTITY_TOKEN_FILE");
    if has("AWS_ACCESS_KEY_ID") {
        return Ok(false);
    }
    // The token takes precedence over a profile that the environment does not name.
    if files.is_named() || !has_token {
        files.refusal(profile).map_or(Ok(()), Err)?;
        if profile.has_keys() {
            return Ok(true);
        }
    }
    let (full_uri, token_file) =
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    if has_token && !has("AWS_ROLE_ARN") {
        return Err("AWS_WEB_IDENTITY_TOKEN_FILE is set without AWS_ROLE_ARN".into());
    } else if has_token || has("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") {
        return Ok(false);
    } else if has(full_uri) && !has(token_file) {
        return Err(format!("{full_uri} is supported together with {token_file} only"));
    } else if !has(full_uri)
        && variable("AWS_EC2_METADATA_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
    {
        return Err("there are no credentials, and AWS_EC2_METADATA_DISABLED forbids to ask the machine \
                    for its own; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            .into());
    }
    Ok(false)
}

fn s3_endpoint(profile: &Profile) -> Option<String> {
    let given = variable("AWS_ENDPOINT_URL_S3").or_else(|| variable("AWS_ENDPOINT_URL"));
    given.or_else(|| variable("AWS_ENDPOINT")).or_else(|| profile.endpoint_url.clone())
}

fn s3(
    url: &str,
    options: &ObjectOptions,
    profile: &Profile,
    endpoint: Option<&str>,
    connector: CountingConnector,
) -> AmazonS3Builder {
    let mut builder = AmazonS3Builder::from_env()
        .with_url(url)
        .with_retry(retries())
        .with_client_options(client_options())
        .with_http_connector(connector)
        .with_skip_signature(options.anonymous)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        // The store verifies the checksum of an upload, and keeps it.
        .with_checksum_algorithm(Checksum::SHA256)
        // Not every S3-compatible store supports bulk deletion.
        .with_disable_bulk_delete(true);
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    let has_region = variable("AWS_REGION").or_else(|| variable("AWS_DEFAULT_REGION")).is_some();
    let region = options.region.clone().or_else(|| profile.region.clone().filter(|_| !has_region));
    if let Some(region) = region {
        builder = builder.with_region(region);
    }
    builder
}

fn google(
    url: &str,
    options: &ObjectOptions,
    endpoint: Option<&str>,
    connector: CountingConnector,
) -> GoogleCloudStorageBuilder {
    let builder = GoogleCloudStorageBuilder::from_env()
        .with_url(url)
        .with_retry(retries())
        .with_client_options(client_options())
        .with_http_connector(connector)
        .with_skip_signature(options.anonymous);
    match endpoint {
        Some(endpoint) => builder.with_base_url(endpoint),
        None => builder,
    }
}

fn azure(
    url: &str,
    options: &ObjectOptions,
    endpoint: Option<&str>,
    connector: CountingConnector,
) -> MicrosoftAzureBuilder {
    let builder = MicrosoftAzureBuilder::from_env()
        .with_url(url)
        .with_retry(retries())
        .with_client_options(client_options())
        .with_http_connector(connector)
        .with_skip_signature(options.anonymous);
    match endpoint {
        Some(endpoint) => builder.with_endpoint(endpoint.to_owned()),
        None => builder,
    }
}

/// Returns the value of an environment variable, unless it is empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn retries() -> RetryConfig {
    RetryConfig { backoff: BACKOFF, max_retries: NR_RETRIES, retry_timeout: RETRY_TIMEOUT }
}

/// The URL says whether connections are encrypted; the connector sets the timeouts.
fn client_options() -> ClientOptions {
    ClientOptions::new().with_allow_http(true)
}

/// Makes `ring` the TLS provider, unless the program has chosen another.
fn crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_of_two_servers_are_two_stores() {
        let at = |endpoint| store_name("s3://b/some/prefix", endpoint);
        assert_eq!(at(None), "s3://b");
        assert_eq!(at(Some("http://a:1/")), at(Some("http://a:1")));
        assert_ne!(at(Some("http://a:1")), at(Some("http://a:2")));
        assert_eq!(at(None), store_name("s3://b", None));
    }

    #[test]
    fn an_endpoint_is_checked_wherever_it_comes_from() {
        let says = |endpoint| check_endpoint("s3://b", endpoint).unwrap_err().to_string();
        assert!(check_endpoint("s3://b", "http://a:1").is_ok());
        for secret in ["http://user:secret@a:1", "user:secret@a:1", "ftp://user:secret@a"] {
            assert!(!says(secret).contains("secret"), "{secret}");
        }
        assert!(says("http://user:secret@a:1").contains("credentials"));
    }

    /// Whether the profile signs in this environment, or why nothing does.
    fn signs(set: &[(&str, &str)], keys: &str) -> Result<bool, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("credentials");
        std::fs::write(&path, keys).unwrap();
        let file = path.to_str().unwrap();
        let set = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
        let variable =
            |name: &str| set(name).or_else(|| (name == "AWS_SHARED_CREDENTIALS_FILE").then(|| file.into()));
        let files = ProfileFiles::of(&variable);
        signs_by_profile(&files, &files.read(), &variable)
    }

    #[test]
    fn a_chosen_authority_is_used_or_refused_by_name() {
        let keys = "[default]\naws_access_key_id = A\naws_secret_access_key = S\n[role]\nrole_arn = x\n";
        let (token, role) = (("AWS_WEB_IDENTITY_TOKEN_FILE", "/token"), ("AWS_ROLE_ARN", "r"));
        let off = ("AWS_EC2_METADATA_DISABLED", "TRUE");
        let full_uri = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1/x");
        let token_file = ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "/token");
        assert_eq!(signs(&[], keys), Ok(true));
        assert_eq!(signs(&[("AWS_ACCESS_KEY_ID", "A"), ("AWS_PROFILE", "typo")], keys), Ok(false));
        assert_eq!(signs(&[token, role], keys), Ok(false), "a token goes before an unnamed profile");
        assert_eq!(signs(&[token, role, ("AWS_PROFILE", "default")], keys), Ok(true));
        assert!(
            signs(&[token, role, ("AWS_PROFILE", "typo")], keys).unwrap_err().contains("`typo` is neither")
        );
        assert!(signs(&[token, role, ("AWS_PROFILE", "role")], keys).unwrap_err().contains("role_arn"));
        assert!(signs(&[token], keys).unwrap_err().contains("without AWS_ROLE_ARN"));
        assert_eq!(signs(&[], ""), Ok(false), "the machine signs");
        assert!(signs(&[off], "").unwrap_err().contains("AWS_EC2_METADATA_DISABLED"));
        assert_eq!(signs(&[off, ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/x")], ""), Ok(false));
        assert!(signs(&[full_uri], "").unwrap_err().contains("TOKEN_FILE"));
        assert_eq!(signs(&[off, full_uri, token_file], ""), Ok(false));
    }

    #[test]
    fn what_is_no_bucket_is_refused_with_what_to_do() {
        let fails = |text: &str, options: &ObjectOptions| open(text, options).unwrap_err().to_string();
        let none = ObjectOptions::default();
        assert!(fails("s3://", &none).contains("s3://BUCKET/PREFIX"));
        assert!(fails("ftp://host/x", &none).contains("known kind"));
        assert!(fails("s3://b/a//c", &none).contains("empty name"));
        assert!(fails("s3://b/a/../c", &none).contains("`..`"));
        assert!(fails("s3://key:secret@b/p", &none).contains("credentials"));
        assert!(fails("s3://b/p?x=1", &none).contains("no part of a prefix"));
        assert!(fails("s3://b/p#1", &none).contains("no part of a prefix"));
        assert!(fails("s3://b/a/%2e%2e/c", &none).contains("`..`"));
        let bad = ObjectOptions { endpoint: Some("127.0.0.1:9".into()), ..none };
        assert!(fails("s3://b", &bad).contains("http://HOST:PORT"));
    }
}
