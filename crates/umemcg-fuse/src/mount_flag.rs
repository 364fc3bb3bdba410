//! The optional flags of mount(8) for a mount, in addition to `nosuid` and `nodev`.

use std::str::FromStr;

use rustix::mount::MountFlags;

/// A flag of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountFlag {
    /// Nothing can be changed.
    ReadOnly,
    /// No program can be run.
    NoExec,
    /// Reading a file does not change its access time.
    NoAtime,
    /// Listing a directory does not change its access time.
    NoDirAtime,
    /// A write returns when it is durable.
    Sync,
    /// A change of a directory returns when it is durable.
    DirSync,
}

impl MountFlag {
    /// All flags.
    pub const ALL: [Self; 6] =
        [Self::ReadOnly, Self::NoExec, Self::NoAtime, Self::NoDirAtime, Self::Sync, Self::DirSync];

    /// Returns the flag's name for mount(8) and fusermount3.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "ro",
            Self::NoExec => "noexec",
            Self::NoAtime => "noatime",
            Self::NoDirAtime => "nodiratime",
            Self::Sync => "sync",
            Self::DirSync => "dirsync",
        }
    }

    /// Returns the flag of mount(2).
    pub(crate) fn bits(self) -> MountFlags {
        match self {
            Self::ReadOnly => MountFlags::RDONLY,
            Self::NoExec => MountFlags::NOEXEC,
            Self::NoAtime => MountFlags::NOATIME,
            Self::NoDirAtime => MountFlags::NODIRATIME,
            Self::Sync => MountFlags::SYNCHRONOUS,
            Self::DirSync => MountFlags::DIRSYNC,
        }
    }
}

impl FromStr for MountFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|flag| flag.name() == text);
        found.ok_or_else(|| format!("`{text}` is none of: {}", names()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_is_known_by_its_name() {
        for flag in MountFlag::ALL {
            assert_eq!(flag.name().parse(), Ok(flag));
        }
        assert!("suid".parse::<MountFlag>().unwrap_err().contains("noexec"));
    }
}
