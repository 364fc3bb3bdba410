//! Volumes of objects: options on the command line, settings in the configuration, fields of
//! requests to the daemon.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use umemcg_vfs::VolumeSpec;
use umemcg_vfs::bucket::{self, BucketFigures};
use umemcg_vfs::object::{Freshness, STAGING_BYTES, StagingConfig};

use crate::duration::parse_duration;
use crate::writes::Writes;

/// How a store is reached, beside its URL. Credentials come from the daemon's environment or from
/// the files of the service's own tools.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args, Serialize, Deserialize)]
pub struct StoreOptions {
    /// The server of a store, if it is not the usual one: http://HOST:PORT or https://HOST
    #[arg(long, value_name = "URL")]
    #[serde(default)]
    pub endpoint: Option<String>,
    /// The region of an S3 bucket
    #[arg(long, value_name = "REGION")]
    #[serde(default)]
    pub region: Option<String>,
    /// Ask a store without credentials
    #[arg(long)]
    #[serde(default)]
    pub anonymous: bool,
    /// How long what a store told is believed: `close-to-open` (an open asks again; the default),
    /// `ttl=5s`, or `immutable`
    #[arg(long, value_name = "HOW", value_parser = checked_freshness)]
    #[serde(default)]
    pub freshness: Option<String>,
    /// Whose mode, owner, times, extended attributes and symbolic links are shown: those `stored`
    /// with each object, as s3fs does, for which each is asked (the default of a volume that can be
    /// written to), or `uniform`, the same of all files
    #[arg(long, value_name = "WHICH", value_enum)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<AttributeSource>,
    /// Let files be written: hold them in this directory of a local disk until they are in the
    /// store
    #[arg(long, value_name = "DIR")]
    #[serde(default)]
    pub staging: Option<PathBuf>,
    /// Most bytes of one volume in the staging directory (default: 16G)
    #[arg(long, value_name = "SIZE", value_parser = checked_size, requires = "staging")]
    #[serde(default)]
    pub staging_size: Option<String>,
    /// How files are written: not at all (`none`; the default without `--staging`), new ones and
    /// whole replacements from the first byte to the last (`streamed`: from memory, with no local
    /// disk), or in any way (`staged`; the default with `--staging`)
    #[arg(long, value_name = "HOW", value_enum)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writes: Option<Writes>,
}

impl StoreOptions {
    /// Returns whether no option is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Which attributes files are shown with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum AttributeSource {
    /// Those that are stored with their objects.
    Stored,
    /// The same for all.
    Uniform,
}

/// A prefix of a bucket as a volume, in requests and replies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreSource {
    /// The bucket and prefix.
    pub url: String,
    /// The options of its store.
    #[serde(flatten)]
    pub options: StoreOptions,
    /// Its state in the daemon; only in replies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StoreState>,
}

/// The state of a store in a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreState {
    /// The last failure; none once the store has answered since.
    pub trouble: Option<String>,
    /// Requests for bytes.
    pub gets: u64,
    /// Requests for attributes.
    pub heads: u64,
    /// Requests for a part of a listing.
    pub lists: u64,
    /// Requests to store an object or a part of it.
    #[serde(default)]
    pub puts: u64,
    /// Requests to copy an object.
    #[serde(default)]
    pub copies: u64,
    /// Requests to delete an object.
    #[serde(default)]
    pub deletes: u64,
    /// Bytes received.
    pub read_bytes: u64,
    /// Bytes accepted by the store.
    #[serde(default)]
    pub written_bytes: u64,
    /// Requests refused or not answered by the store.
    pub refusals: u64,
    /// Requests throttled by the store, among the refusals.
    #[serde(default)]
    pub throttles: u64,
    /// Total time that requests were delayed to avoid throttling, in milliseconds.
    #[serde(default)]
    pub throttled_ms: u64,
    /// Operations that failed after all retries.
    pub failures: u64,
    /// Keys that cannot be shown as paths.
    pub hidden_keys: Vec<String>,
    /// There are more hidden keys than listed.
    pub has_more_hidden: bool,
    /// Staged files, not in the store yet.
    #[serde(default)]
    pub staged: Vec<StagedFile>,
}

/// A staged file, not in the store yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedFile {
    /// The key of its object; empty if not known.
    pub key: String,
    /// The path of the staged file.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// It will never be stored.
    pub is_lost: bool,
}

impl StoreSource {
    /// Returns the source of a volume in the daemon.
    pub fn of(known: &bucket::StoreState) -> Self {
        let BucketFigures {
            gets,
            heads,
            lists,
            puts,
            copies,
            deletes,
            read_bytes,
            written_bytes,
            refusals,
            throttles,
            throttled_ms,
            failures,
        } = known.figures;
        let state = StoreState {
            trouble: known.trouble.clone(),
            gets,
            heads,
            lists,
            puts,
            copies,
            deletes,
            read_bytes,
            written_bytes,
            refusals,
            throttles,
            throttled_ms,
            failures,
            hidden_keys: known.hidden_keys.clone(),
            has_more_hidden: known.has_more_hidden,
            staged: known.staged.iter().map(staged_file).collect(),
        };
        let options = StoreOptions { endpoint: known.endpoint.clone(), ..StoreOptions::default() };
        Self { url: known.url.clone(), options, state: Some(state) }
    }
}

fn staged_file(known: &bucket::StagedFile) -> StagedFile {
    let bucket::StagedFile { key, path, bytes, is_lost } = known.clone();
    StagedFile { key, path, bytes, is_lost }
}

/// Returns whether a text is the URL of a store, not a path.
pub fn is_store_url(text: &str) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// Returns the specification of a volume of objects. Sends the store no request.
///
/// # Errors
/// A message for the user.
pub fn spec_of(source: &StoreSource) -> Result<VolumeSpec, String> {
    let freshness = source.options.freshness.as_deref().map_or(Ok(Freshness::default()), freshness_of)?;
    let staging = staging_of(&source.options)?;
    let writes = Writes::checked(source.options.writes, staging.is_some())?;
    open(source, freshness, (writes, staging))
}

#[cfg(feature = "object")]
fn open(
    source: &StoreSource,
    freshness: Freshness,
    (writes, staging): (Writes, Option<StagingConfig>),
) -> Result<VolumeSpec, String> {
    let StoreOptions { endpoint, region, anonymous, attributes, .. } = source.options.clone();
    let options = umemcg_object::ObjectOptions { endpoint, region, anonymous };
    let bucket = umemcg_object::open(&source.url, &options).map_err(|error| error.to_string())?;
    Ok(VolumeSpec::Objects(umemcg_vfs::ObjectConfig {
        bucket,
        freshness,
        stores_attributes: attributes
            .map_or(writes != Writes::None, |which| which == AttributeSource::Stored),
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        staging,
        streams: writes == Writes::Streamed,
        notes: crate::state_directory::notes(),
    }))
}

#[cfg(not(feature = "object"))]
fn open(
    source: &StoreSource,
    _: Freshness,
    _: (Writes, Option<StagingConfig>),
) -> Result<VolumeSpec, String> {
    Err(format!(
        "cannot serve {}: this program was built without stores of objects; build umemcg-cli with --features object",
        source.url
    ))
}

/// Returns the configuration of the staging directory, if the options name one.
///
/// # Errors
/// A message for the user.
pub fn staging_of(options: &StoreOptions) -> Result<Option<StagingConfig>, String> {
    let max_bytes = options.staging_size.as_deref().map_or(Ok(STAGING_BYTES), size_of)?;
    match &options.staging {
        Some(dir) => Ok(Some(StagingConfig::new(dir.clone(), max_bytes))),
        None if options.staging_size.is_some() => Err("a staging size goes with a staging directory".into()),
        None => Ok(None),
    }
}

fn checked_size(text: &str) -> Result<String, String> {
    size_of(text).map(|_| text.to_owned())
}

fn size_of(text: &str) -> Result<u64, String> {
    let bytes = umemcg_base::parse_size(text.as_bytes()).ok().filter(|&bytes| bytes > 0);
    bytes.ok_or_else(|| format!("`{text}` is not a size; write a number with k, M, G or T, such as 64G"))
}

fn checked_freshness(text: &str) -> Result<String, String> {
    freshness_of(text).map(|_| text.to_owned())
}

fn freshness_of(text: &str) -> Result<Freshness, String> {
    match text.split_once('=') {
        None if text == "close-to-open" => Ok(Freshness::CloseToOpen),
        None if text == "immutable" => Ok(Freshness::Immutable),
        Some(("ttl", time)) => parse_duration(time).and_then(ttl),
        _ => Err(format!("`{text}` is none of: close-to-open, ttl=TIME (such as ttl=5s), immutable")),
    }
}

fn ttl(time: Duration) -> Result<Freshness, String> {
    if time.is_zero() {
        Err("with ttl=0s nothing could be believed; use close-to-open".into())
    } else {
        Ok(Freshness::Ttl(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_listed_with_what_its_store_was_asked() {
        let figures = BucketFigures {
            gets: 1,
            heads: 2,
            lists: 3,
            puts: 4,
            copies: 5,
            deletes: 6,
            read_bytes: 7,
            written_bytes: 8,
            refusals: 9,
            throttles: 12,
            throttled_ms: 13,
            failures: 10,
        };
        let known = bucket::StoreState {
            url: "s3://b".into(),
            endpoint: None,
            trouble: None,
            figures,
            traffic: None,
            work: bucket::StoreWork::default(),
            hidden_keys: Vec::new(),
            has_more_hidden: false,
            staged: vec![bucket::StagedFile {
                key: "k".into(),
                path: "/staging/1".into(),
                bytes: 11,
                is_lost: true,
            }],
        };
        let source = StoreSource::of(&known);
        let json = serde_json::to_value(&source).unwrap();
        for (name, figure) in [
            ("puts", 4),
            ("copies", 5),
            ("deletes", 6),
            ("written_bytes", 8),
            ("failures", 10),
            ("throttles", 12),
            ("throttled_ms", 13),
        ] {
            assert_eq!(json["state"][name], figure, "{name}");
        }
        assert_eq!(json["state"]["staged"][0]["path"], "/staging/1");
        assert_eq!(serde_json::from_value::<StoreSource>(json.clone()).unwrap(), source);
        // A reply of an older daemon.
        let mut older = json;
        older["state"].as_object_mut().unwrap().remove("puts");
        assert_eq!(serde_json::from_value::<StoreSource>(older).unwrap().state.unwrap().puts, 0);
    }

    #[test]
    fn freshness_is_one_of_three() {
        assert_eq!(freshness_of("close-to-open"), Ok(Freshness::CloseToOpen));
        assert_eq!(freshness_of("immutable"), Ok(Freshness::Immutable));
        assert_eq!(freshness_of("ttl=500ms"), Ok(Freshness::Ttl(Duration::from_millis(500))));
        for bad in ["", "ttl", "ttl=", "ttl=0s", "ttl=x", "never", "immutable=1"] {
            assert!(freshness_of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn staging_has_a_size() {
        let mut options = StoreOptions { staging: Some("/staging".into()), ..StoreOptions::default() };
        assert_eq!(staging_of(&options).unwrap().unwrap().max_bytes, STAGING_BYTES);
        options.staging_size = Some("1G".into());
        assert_eq!(staging_of(&options).unwrap().unwrap().max_bytes, 1 << 30);
        options.staging_size = Some("0".into());
        staging_of(&options).unwrap_err();
        (options.staging, options.staging_size) = (None, Some("1G".into()));
        staging_of(&options).unwrap_err();
        assert_eq!(staging_of(&StoreOptions::default()), Ok(None));
    }

    #[test]
    fn a_url_is_told_from_a_path() {
        assert!(is_store_url("s3://bucket/prefix") && is_store_url("gs://b"));
        for path in ["./data", "/srv/data", "s3:/b", "a b://c", "://x", "."] {
            assert!(!is_store_url(path), "{path}");
        }
    }
}
