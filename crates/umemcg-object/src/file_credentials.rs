//! Credentials from files. Other programs may replace the files at any time: session credentials
//! expire, and the tool in charge writes new ones in time.
//!
//! A request reads the files again if the last read was a second ago or longer. So new credentials
//! take effect without a notification, and after a refusal they are looked up again.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use umemcg_base::LeafMutex;

use crate::credentials_file::{Profile, ProfileFiles};

/// Shortest time between two reads of the files.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a request waits for a read of the files.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);

struct Known {
    credential: Arc<AwsCredential>,
    looked_at: Instant,
    /// A thread is reading the files.
    is_looking: bool,
}

/// See the module text.
pub(crate) struct FileCredentials {
    files: ProfileFiles,
    interval: Duration,
    known: Arc<LeafMutex<Known>>,
}

impl FileCredentials {
    /// Returns credentials starting with those of a profile already read from the files. `None` if
    /// the profile has none.
    pub(crate) fn new(files: ProfileFiles, profile: &Profile) -> Option<Self> {
        Self::with_interval(files, profile, LOOK_INTERVAL)
    }

    fn with_interval(files: ProfileFiles, profile: &Profile, interval: Duration) -> Option<Self> {
        let credential = Arc::new(credential_of(profile)?);
        let known = Known { credential, looked_at: Instant::now(), is_looking: false };
        Some(Self { files, interval, known: Arc::new(LeafMutex::new(known)) })
    }

    /// Returns whether the caller has to read the files.
    fn is_due(&self) -> bool {
        let mut known = self.known.lock();
        let is_due = !known.is_looking && known.looked_at.elapsed() >= self.interval;
        known.is_looking |= is_due;
        is_due
    }
}

/// Returns the credentials of a profile; `None` if one of the two keys is missing.
fn credential_of(profile: &Profile) -> Option<AwsCredential> {
    let (key_id, secret_key) = (profile.access_key_id.clone()?, profile.secret_access_key.clone()?);
    Some(AwsCredential { key_id, secret_key, token: profile.session_token.clone() })
}

#[async_trait]
impl CredentialProvider for FileCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        if self.is_due() {
            let (files, known) = (self.files.clone(), Arc::clone(&self.known));
            // The read finishes even if the request is dropped.
            let look = tokio::task::spawn_blocking(move || {
                let found = credential_of(&files.read());
                let mut known = known.lock();
                (known.looked_at, known.is_looking) = (Instant::now(), false);
                // During replacement a file may be missing or incomplete.
                if let Some(found) = found.filter(|found| *found != *known.credential) {
                    known.credential = Arc::new(found);
                }
            });
            // Without new credentials the old ones stay, even if the file system hangs.
            let _ = tokio::time::timeout(LOOK_TIMEOUT, look).await;
        }
        Ok(Arc::clone(&self.known.lock().credential))
    }
}

impl fmt::Debug for FileCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileCredentials").field("files", &self.files).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_that_are_replaced_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("credentials");
        let write = |token: &str| {
            let keys = "aws_access_key_id = A\naws_secret_access_key = S\n";
            std::fs::write(&path, format!("[work]\n{keys}aws_session_token = {token}\n")).unwrap();
        };
        write("old");
        let files = ProfileFiles::new(directory.path().join("config"), path.clone(), "work");
        let credentials =
            FileCredentials::with_interval(files.clone(), &files.read(), Duration::ZERO).unwrap();
        let runtime = crate::runtime::runtime().unwrap();
        let token = || runtime.block_on(credentials.get_credential()).unwrap().token.clone();
        assert_eq!(token().as_deref(), Some("old"));
        write("new");
        assert_eq!(token().as_deref(), Some("new"));
        std::fs::write(&path, "[work]\naws_access_key_id = A\n").unwrap();
        assert_eq!(token().as_deref(), Some("new"), "a file in the middle of being written");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(token().as_deref(), Some("new"));
        assert!(!format!("{credentials:?}").contains("new"));
    }
}
