//! The credentials and settings files of the AWS tools.

use std::io::ErrorKind;
use std::path::PathBuf;

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
    /// Why a file could not be read.
    unread: Option<String>,
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
    config: SettingsFile,
    credentials: SettingsFile,
    name: String,
    /// The environment names the profile.
    is_named: bool,
}

/// A file of the AWS tools.
#[derive(Debug, Clone)]
struct SettingsFile {
    /// `None` for a file below the home directory of a process that has none.
    path: Option<PathBuf>,
    /// The environment names the file.
    is_named: bool,
}

impl SettingsFile {
    /// Reads the file. It may be missing, unless the environment names it.
    fn read(&self) -> Result<String, String> {
        let Some(path) = &self.path else { return Ok(String::new()) };
        std::fs::read_to_string(path).or_else(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory if !self.is_named => Ok(String::new()),
            // Perhaps the home directory of another user, which shows no files.
            ErrorKind::PermissionDenied if !self.is_named && path.symlink_metadata().is_err() => {
                Ok(String::new())
            }
            _ => Err(format!("cannot read {}: {error}", path.display())),
        })
    }

    fn shown(&self) -> String {
        self.path
            .as_ref()
            .map_or_else(|| "~/.aws (HOME is not set)".into(), |path| path.display().to_string())
    }
}

impl ProfileFiles {
    /// Returns the files and the profile named by the environment, else `default`. `variable`
    /// returns the value of a variable, unless it is empty.
    pub(crate) fn of(variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let home = variable("HOME").map(PathBuf::from);
        let file = |name: &str, usual: &str| match variable(name) {
            Some(path) => SettingsFile { path: Some(path.into()), is_named: true },
            None => {
                let path = home.as_ref().map(|home| home.join(".aws").join(usual));
                SettingsFile { path, is_named: false }
            }
        };
        let name = variable("AWS_PROFILE").or_else(|| variable("AWS_DEFAULT_PROFILE"));
        Self {
            config: file("AWS_CONFIG_FILE", "config"),
            credentials: file("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
            is_named: name.is_some(),
            name: name.unwrap_or_else(|| "default".into()),
        }
    }

    #[cfg(test)]
    pub(crate) fn new(config: PathBuf, credentials: PathBuf, name: &str) -> Self {
        let file = |path| SettingsFile { path: Some(path), is_named: false };
        Self { config: file(config), credentials: file(credentials), name: name.into(), is_named: true }
    }

    /// Returns whether the environment names the profile.
    pub(crate) fn is_named(&self) -> bool {
        self.is_named
    }

    /// Reads the profile.
    pub(crate) fn read(&self) -> Profile {
        let mut profile = Profile::default();
        for file in [&self.config, &self.credentials] {
            match file.read() {
                Ok(text) => profile.read(&text, &self.name),
                Err(error) => profile.unread = Some(error),
            }
        }
        profile
    }

    /// Returns why the chosen profile, read here, cannot be used: requests must then not be signed
    /// with other credentials, such as the machine's.
    pub(crate) fn refusal(&self, profile: &Profile) -> Option<String> {
        if profile.has_keys() {
            return None;
        }
        let what = match (&profile.other_way, &profile.unread) {
            (Some(way), _) => format!("gets its credentials by `{way}`, which is not supported"),
            (None, Some(error)) => format!("is not known: {error}"),
            (None, None) if profile.access_key_id.is_some() || profile.secret_access_key.is_some() => {
                "has only one of `aws_access_key_id` and `aws_secret_access_key`".into()
            }
            (None, None) if self.is_named && !profile.is_there => {
                format!("is neither in {} nor in {}", self.config.shown(), self.credentials.shown())
            }
            // A profile with only a region leaves the credentials to the machine.
            (None, None) => return None,
        };
        let name = &self.name;
        Some(format!("the profile `{name}` {what}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead"))
    }
}

impl Profile {
    /// Returns whether requests can be signed with it.
    pub(crate) fn has_keys(&self) -> bool {
        self.access_key_id.is_some() && self.secret_access_key.is_some()
    }

    /// Adds a file's settings of a profile.
    fn read(&mut self, text: &str, name: &str) {
        let mut is_ours = false;
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
            if let Some(section) = line.strip_prefix('[') {
                // A comment may follow. A line without the second bracket begins no known section.
                let section = section.split_once(']').map_or("", |(section, _)| section.trim());
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
        let half = "[half]\naws_access_key_id = A\n";
        std::fs::write(&keys, format!("{half}[work]\naws_access_key_id = A\naws_secret_access_key = S\n"))
            .unwrap();
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
        assert!(refusal("half", true).contains("only one of `aws_access_key_id`"));
        std::fs::remove_file(&keys).unwrap();
        std::fs::create_dir(&keys).unwrap();
        assert!(refusal("default", false).contains("is not known: cannot read"), "it may have keys");
    }

    #[test]
    fn the_environment_names_the_profile_and_its_files() {
        let files = |set: &[(&str, &str)]| {
            let value =
                |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
            ProfileFiles::of(&value)
        };
        let name = |set: &[(&str, &str)]| files(set).name;
        assert_eq!(name(&[("AWS_DEFAULT_PROFILE", "b")]), "b");
        assert_eq!(name(&[("AWS_DEFAULT_PROFILE", "b"), ("AWS_PROFILE", "a")]), "a");
        assert_eq!((name(&[]).as_str(), files(&[]).is_named()), ("default", false));
        let path = |set: &[(&str, &str)]| files(set).credentials.path;
        assert_eq!(path(&[("HOME", "/h")]), Some("/h/.aws/credentials".into()));
        assert_eq!(path(&[]), None, "not those of the working directory");
        let missing = files(&[("AWS_SHARED_CREDENTIALS_FILE", "/absent/keys")]);
        assert!(missing.refusal(&missing.read()).unwrap().contains("cannot read /absent/keys"));
        let usual = files(&[("HOME", "/absent")]);
        assert_eq!(usual.refusal(&usual.read()), None);
    }

    #[test]
    fn a_comment_behind_a_section_is_no_part_of_it() {
        let mut profile = Profile::default();
        profile.read("[default]\n[work] # of [mine]\nregion = a\n[broken\nregion = b\n", "default");
        assert_eq!(profile.region, None);
        profile.read("[profile work] ; mine\nregion = a\n", "work");
        assert_eq!(profile.region.as_deref(), Some("a"));
    }
}
