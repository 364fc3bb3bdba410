//! The credentials and settings files of the AWS tools.

use std::path::{Path, PathBuf};

/// The settings of a profile.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Profile {
    pub(crate) access_key_id: Option<String>,
    pub(crate) secret_access_key: Option<String>,
    pub(crate) session_token: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) endpoint_url: Option<String>,
    /// A file has this profile.
    is_there: bool,
    /// The setting naming an unsupported source of credentials.
    other_way: Option<String>,
}

/// Settings of profiles whose credentials come from elsewhere than these files.
const OTHER_WAYS: [&str; 7] = [
    "credential_process",
    "credential_source",
    "login_session",
    "role_arn",
    "sso_session",
    "sso_start_url",
    "web_identity_token_file",
];

/// The location of a profile: its name and the files.
#[derive(Debug, Clone)]
pub(crate) struct ProfileFiles {
    config: PathBuf,
    credentials: PathBuf,
    name: String,
    /// The environment names the profile.
    is_named: bool,
}

impl ProfileFiles {
    /// Returns the files and the profile named by the environment, else `default`.
    pub(crate) fn from_environment() -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let home = variable("HOME").map(PathBuf::from).unwrap_or_default();
        let path = |name: &str, file: &str| {
            variable(name).map_or_else(|| home.join(".aws").join(file), PathBuf::from)
        };
        Self {
            config: path("AWS_CONFIG_FILE", "config"),
            credentials: path("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
            is_named: variable("AWS_PROFILE").is_some(),
            name: variable("AWS_PROFILE").unwrap_or_else(|| "default".into()),
        }
    }

    #[cfg(test)]
    pub(crate) fn new(config: PathBuf, credentials: PathBuf, name: &str) -> Self {
        Self { config, credentials, name: name.into(), is_named: true }
    }

    /// Reads the profile. A missing file counts as empty.
    pub(crate) fn read(&self) -> Profile {
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let mut profile = Profile::default();
        profile.read(&read(&self.config), &self.name);
        profile.read(&read(&self.credentials), &self.name);
        profile
    }

    /// Returns why the chosen profile, read here, cannot be used: requests must then not be signed
    /// with other credentials, such as the machine's.
    pub(crate) fn refusal(&self, profile: &Profile) -> Option<String> {
        if profile.access_key_id.is_some() && profile.secret_access_key.is_some() {
            return None;
        }
        let what = match &profile.other_way {
            Some(way) => format!("gets its credentials by `{way}`, which is not supported"),
            None if self.is_named && !profile.is_there => {
                format!("is neither in {} nor in {}", self.config.display(), self.credentials.display())
            }
            // A profile with only a region leaves the credentials to the machine.
            None => return None,
        };
        let name = &self.name;
        Some(format!("the profile `{name}` {what}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead"))
    }
}

impl Profile {
    /// Adds a file's settings of a profile.
    fn read(&mut self, text: &str, name: &str) {
        let mut is_ours = false;
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
            if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                let section = section.trim();
                // The configuration file has "profile x" for all profiles except the default.
                is_ours = section.strip_prefix("profile").map_or(section, str::trim) == name;
                self.is_there |= is_ours;
            } else if let Some((key, value)) = line.split_once('=').filter(|_| is_ours) {
                let key = key.trim();
                if OTHER_WAYS.contains(&key) {
                    self.other_way = Some(key.to_owned());
                }
                let place = match key {
                    "aws_access_key_id" => &mut self.access_key_id,
                    "aws_secret_access_key" => &mut self.secret_access_key,
                    "aws_session_token" => &mut self.session_token,
                    "region" => &mut self.region,
                    "endpoint_url" => &mut self.endpoint_url,
                    _ => continue,
                };
                *place = Some(value.trim().to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_read_from_both_files() {
        let mut profile = Profile::default();
        profile.read("[default]\nregion = no\n[profile work]\nregion=eu-west-1\n# region = x\n", "work");
        profile.read(
            "[default]\naws_access_key_id = no\n\n[work]\naws_access_key_id = A\naws_secret_access_key=s=1/+\n",
            "work",
        );
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(
            profile,
            Profile {
                access_key_id: text("A"),
                secret_access_key: text("s=1/+"),
                region: text("eu-west-1"),
                is_there: true,
                ..Profile::default()
            }
        );
    }

    #[test]
    fn a_file_that_makes_no_sense_says_nothing() {
        let mut profile = Profile::default();
        profile.read("]]\n[\n=\na\n[x]\naws_access_key_id", "default");
        assert_eq!(profile, Profile::default());
    }

    #[test]
    fn a_profile_that_was_chosen_is_had_or_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (config, keys) = (directory.path().join("config"), directory.path().join("credentials"));
        std::fs::write(&config, "[profile role]\nrole_arn = x\n[profile empty]\nregion = x\n[default]\n")
            .unwrap();
        std::fs::write(&keys, "[work]\naws_access_key_id = A\naws_secret_access_key = S\n").unwrap();
        let refusal = |name: &str, is_named| {
            let files = ProfileFiles { is_named, ..ProfileFiles::new(config.clone(), keys.clone(), name) };
            files.refusal(&files.read()).unwrap_or_default()
        };
        assert_eq!(refusal("work", true), "");
        assert_eq!(refusal("default", false), "", "none was chosen");
        assert!(refusal("role", true).contains("by `role_arn`, which is not supported"));
        assert!(refusal("role", false).contains("role_arn"), "a default profile chooses, too");
        assert_eq!(refusal("empty", true), "", "it says nothing of who signs");
        assert!(refusal("typo", true).contains("is neither in"));
    }
}
