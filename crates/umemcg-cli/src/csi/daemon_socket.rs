//! The CSI plugin's interface to the daemon of the node, over the admin socket.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use umemcg_csi::{Daemon, DaemonError, KnownVolume, VolumeData};

use crate::ask::AskError;
use crate::client::DaemonAddress;
use crate::endpoint::{Reply, Request, VolumeSource};
use crate::stores::{AttributeSource, StoreOptions, StoreSource};
use crate::writes::Writes;

/// The timeout of a query, and of a change of rules.
const QUESTION_WITHIN: Duration = Duration::from_secs(5);
const RULE_WITHIN: Duration = Duration::from_secs(60);
/// The timeout of adding or removing a volume. Adding may wait for a store, removing for the
/// storing of data. The timeout is longer than any deadline of the plugin. Until then the plugin
/// treats the volume as busy. Otherwise a later request could find the volume gone while the daemon
/// is still adding it, and the volume would stay for ever.
const VOLUME_WITHIN: Duration = Duration::from_mins(15);

/// The address of the daemon.
#[derive(Debug)]
pub struct DaemonSocket {
    /// Its socket; if absent, the mount determines the socket.
    pub socket: Option<PathBuf>,
    /// Its mount.
    pub mount: PathBuf,
}

impl DaemonSocket {
    /// Sends a request, and returns the last reply. Blocks, for no longer than `within`.
    fn ask(&self, request: &Request, within: Duration) -> Result<Reply, DaemonError> {
        let until = Instant::now() + within;
        let address = DaemonAddress::of(self.socket.as_deref(), Some(&self.mount))
            .map_err(|error| DaemonError::Absent(error.to_string()))?;
        match address.ask(request, Some(until), &mut |_| {}) {
            Ok(Reply::Failed { message }) => Err(DaemonError::Refused(message)),
            Ok(Reply::Busy { users }) => Err(DaemonError::Busy(users.join(", "))),
            Ok(Reply::Lost { files }) => {
                let files: Vec<String> =
                    files.iter().map(|file| format!("{}: {}", file.path, file.error)).collect();
                Err(DaemonError::Lost(format!("some data is not durable: {}", files.join(", "))))
            }
            Ok(reply) => Ok(reply),
            Err(AskError::NoDaemon) => {
                Err(DaemonError::Absent(format!("no daemon answers behind {}", self.mount.display())))
            }
            Err(AskError::HungUp) => Err(DaemonError::Unknown("the daemon ended before it answered".into())),
            Err(AskError::Io(error)) if error.kind() == std::io::ErrorKind::TimedOut => {
                Err(DaemonError::Unknown(format!("the daemon has not answered within {within:?}")))
            }
            Err(AskError::TooMany) => Err(DaemonError::Crowded),
            Err(AskError::Io(error)) => {
                Err(DaemonError::Unknown(format!("cannot talk to the daemon: {error}")))
            }
        }
    }
}

impl Daemon for DaemonSocket {
    fn volumes(&self) -> Result<Vec<KnownVolume>, DaemonError> {
        match self.ask(&Request::VolumeList, QUESTION_WITHIN)? {
            Reply::Volumes { volumes } => Ok(volumes
                .into_iter()
                .map(|row| {
                    let trouble = match row.data {
                        VolumeSource::Store(store) => store.state.and_then(|state| state.trouble),
                        VolumeSource::Dir { .. } | VolumeSource::Tmpfs { .. } => None,
                    };
                    KnownVolume { name: row.name, trouble }
                })
                .collect()),
            other => Err(unexpected(&other)),
        }
    }

    fn add_volume(&self, name: &str, data: &VolumeData) -> Result<(), DaemonError> {
        let data = match data {
            VolumeData::Tmpfs { size_bytes } => {
                VolumeSource::Tmpfs { size_bytes: *size_bytes, used_bytes: 0 }
            }
            VolumeData::Dir { path } => VolumeSource::Dir { path: path.into() },
            VolumeData::Store { url, options } => {
                let options = store_options(options)?;
                VolumeSource::Store(Box::new(StoreSource { url: url.clone(), options, state: None }))
            }
            VolumeData::Existing { volume } => {
                return Err(DaemonError::Refused(format!("the volume `{volume}` is the configuration's")));
            }
        };
        self.ask(&Request::VolumeAdd { name: name.into(), data, of_node: true }, VOLUME_WITHIN).map(drop)
    }

    fn remove_volume(&self, name: &str) -> Result<(), DaemonError> {
        let request = Request::VolumeRemove { name: name.into(), force: false, flush_timeout_ms: None };
        self.ask(&request, VOLUME_WITHIN).map(drop)
    }

    fn add_pod(&self, uid: &str, group: &str) -> Result<(), DaemonError> {
        self.ask(&Request::PodAdd { uid: uid.into(), group: group.into() }, RULE_WITHIN).map(drop)
    }

    fn remove_pod(&self, uid: &str) -> Result<(), DaemonError> {
        self.ask(&Request::PodRemove { uid: uid.into() }, RULE_WITHIN).map(drop)
    }
}

/// Returns the options of a store by their names on the command line.
fn store_options(given: &std::collections::BTreeMap<String, String>) -> Result<StoreOptions, DaemonError> {
    let refused = |what: String| Err(DaemonError::Refused(what));
    let mut options = StoreOptions::default();
    for (name, value) in given {
        let text = Some(value.clone());
        match name.as_str() {
            "endpoint" => options.endpoint = text,
            "region" => options.region = text,
            "freshness" => options.freshness = text,
            "staging" => options.staging = text.map(PathBuf::from),
            "staging-size" => options.staging_size = text.map(|size| size.trim_end_matches('i').to_owned()),
            "anonymous" => options.anonymous = is_true(name, value)?,
            "writes" => match Writes::from_str(value, false) {
                Ok(writes) => options.writes = Some(writes),
                Err(_) => return refused(format!("`writes` is none, streamed or staged, and not `{value}`")),
            },
            "attributes" => match value.as_str() {
                "stored" => options.attributes = Some(AttributeSource::Stored),
                "uniform" => options.attributes = Some(AttributeSource::Uniform),
                other => return refused(format!("`attributes` is stored or uniform, and not `{other}`")),
            },
            other => return refused(format!("a store has no option `{other}`")),
        }
    }
    Ok(options)
}

fn is_true(name: &str, value: &str) -> Result<bool, DaemonError> {
    let parsed = value.parse();
    parsed.map_err(|_| DaemonError::Refused(format!("`{name}` is true or false, and not `{value}`")))
}

fn unexpected(reply: &Reply) -> DaemonError {
    DaemonError::Unknown(format!("unexpected reply of the daemon: {reply:?}; is it of another version?"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_daemon_with_too_many_requests_is_asked_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let daemon = DaemonSocket { socket: Some(path), mount: PathBuf::from("/nowhere") };
        let refusing = std::thread::spawn(move || {
            let mut line = serde_json::to_vec(&Reply::TooMany).unwrap();
            line.push(b'\n');
            listener.accept().unwrap().0.write_all(&line).unwrap();
        });
        let refused = daemon.add_pod("1", "/shop/web").unwrap_err();
        refusing.join().unwrap();
        assert_eq!(umemcg_csi::client::Status::from(refused).code(), umemcg_csi::client::Code::Unavailable);
    }

    #[test]
    fn a_store_is_reached_as_its_attributes_say() {
        let options = |given: &[(&str, &str)]| {
            store_options(&given.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect())
        };
        let staged = options(&[("staging", "/s"), ("staging-size", "16Gi")]).unwrap();
        assert_eq!(staged.staging_size.as_deref(), Some("16G"));
        let streamed = options(&[("writes", "streamed"), ("anonymous", "false")]).unwrap();
        assert_eq!((streamed.writes, streamed.anonymous), (Some(Writes::Streamed), false));
        for (name, value) in [("writes", "some"), ("anonymous", "yes"), ("attributes", ""), ("key", "x")] {
            assert!(matches!(options(&[(name, value)]), Err(DaemonError::Refused(_))), "{name}={value}");
        }
    }
}
