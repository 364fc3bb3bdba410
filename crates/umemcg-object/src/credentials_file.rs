//! The files in which the tools of AWS keep credentials and settings.

use std::path::{Path, PathBuf};

/// What a profile says.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Profile {
    pub(crate) access_key_id: Option<String>,
    pub(crate) secret_access_key: Option<String>,
    pub(crate) session_token: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) endpoint_url: Option<String>,
}

/// Where a profile is: its name, and the files.
#[derive(Debug, Clone)]
pub(crate) struct ProfileFiles {
    config: PathBuf,
    credentials: PathBuf,
    name: String,
}

impl ProfileFiles {
    /// Returns the files and the profile that the environment names, `default` without.
    pub(crate) fn from_environment() -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let home = variable("HOME").map(PathBuf::from).unwrap_or_default();
        let path = |name: &str, file: &str| {
            variable(name).map_or_else(|| home.join(".aws").join(file), PathBuf::from)
        };
        Self {
            config: path("AWS_CONFIG_FILE", "config"),
            credentials: path("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
            name: variable("AWS_PROFILE").unwrap_or_else(|| "default".into()),
        }
    }

    #[cfg(test)]
    pub(crate) fn new(config: PathBuf, credentials: PathBuf, name: &str) -> Self {
        Self { config, credentials, name: name.into() }
    }

    /// Reads the profile. Files that are missing say nothing.
    pub(crate) fn read(&self) -> Profile {
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let mut profile = Profile::default();
        profile.read(&read(&self.config), &self.name);
        profile.read(&read(&self.credentials), &self.name);
        profile
    }
}

impl Profile {
    /// Takes what a file says of a profile.
    fn read(&mut self, text: &str, name: &str) {
        let mut is_ours = false;
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
            if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                let section = section.trim();
                // A configuration says "profile x" for all but the default.
                is_ours = section.strip_prefix("profile").map_or(section, str::trim) == name;
            } else if let Some((key, value)) = line.split_once('=').filter(|_| is_ours) {
                let place = match key.trim() {
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
}
