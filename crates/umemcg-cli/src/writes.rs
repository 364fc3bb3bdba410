//! The write mode of a volume of objects: read only, streamed, or through a staging directory.

use serde::{Deserialize, Serialize};

/// See the module text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Writes {
    /// The volume is read only.
    None,
    /// New files and whole replacements, from the first byte to the last, from memory.
    Streamed,
    /// Anything, through a staging directory.
    Staged,
}

impl Writes {
    /// Returns the requested mode, or the default: staged with a staging directory, else read only.
    ///
    /// # Errors
    /// A message for the user, when the mode and the staging directory contradict each other.
    pub fn checked(asked: Option<Self>, has_staging: bool) -> Result<Self, String> {
        match (asked, has_staging) {
            (None, true) => Ok(Self::Staged),
            (None, false) => Ok(Self::None),
            (Some(Self::Staged), false) => {
                Err("staged writes need a directory on a local disk; name it with --staging DIR".into())
            }
            (Some(Self::Streamed), true) => {
                Err("streamed writes use no staging directory; leave out either --staging or `streamed`"
                    .into())
            }
            (Some(Self::None), true) => {
                Err("a volume without writes has nothing to stage; leave out either --staging or `none`"
                    .into())
            }
            (Some(asked), _) => Ok(asked),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_staging_directory_goes_with_staged_writes_only() {
        assert_eq!(Writes::checked(None, true), Ok(Writes::Staged));
        assert_eq!(Writes::checked(None, false), Ok(Writes::None));
        assert_eq!(Writes::checked(Some(Writes::Staged), true), Ok(Writes::Staged));
        assert_eq!(Writes::checked(Some(Writes::Streamed), false), Ok(Writes::Streamed));
        assert_eq!(Writes::checked(Some(Writes::None), false), Ok(Writes::None));
        for (asked, has_staging) in [(Writes::Staged, false), (Writes::Streamed, true), (Writes::None, true)]
        {
            let text = Writes::checked(Some(asked), has_staging).unwrap_err();
            assert!(text.contains("--staging"), "{text}");
        }
    }
}
