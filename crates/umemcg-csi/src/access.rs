//! The access of a volume, as a request asks for it and its kind of data allows it.

use tonic::Status;

use crate::daemon::VolumeData;
use crate::mounts::check_flags;
use crate::v1::VolumeCapability;
use crate::v1::volume_capability::AccessType;
use crate::v1::volume_capability::access_mode::Mode;

/// The use of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// Writes are refused.
    pub is_read_only: bool,
    /// No other target of the node may show the volume.
    pub is_single: bool,
    /// Mount options.
    pub flags: Vec<String>,
}

impl Access {
    /// Returns the access requested by a capability, for a volume with this kind of data.
    ///
    /// # Errors
    /// `InvalidArgument` if the capability is missing, or not supported by such a volume.
    pub fn of(capability: Option<&VolumeCapability>, data: &VolumeData) -> Result<Self, Status> {
        let capability =
            capability.ok_or_else(|| Status::invalid_argument("the request has no volume capability"))?;
        let flags = match &capability.access_type {
            Some(AccessType::Mount(mount)) => mount.mount_flags.clone(),
            Some(AccessType::Block(_)) => {
                return Err(Status::invalid_argument("a volume is a file system, and no block device"));
            }
            None => return Err(Status::invalid_argument("the volume capability has no access type")),
        };
        check_flags(&flags)?;
        let mode = capability.access_mode.map_or(Mode::Unknown, |access| access.mode());
        let of_many_nodes =
            [Mode::MultiNodeReaderOnly, Mode::MultiNodeSingleWriter, Mode::MultiNodeMultiWriter];
        if mode == Mode::Unknown {
            return Err(Status::invalid_argument("the volume capability has no access mode"));
        }
        if of_many_nodes.contains(&mode) && matches!(data, VolumeData::Tmpfs { .. }) {
            return Err(Status::invalid_argument("the data of a tmpfs volume is on one node"));
        }
        Ok(Self {
            is_read_only: data.is_read_only()
                || matches!(mode, Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly),
            is_single: mode == Mode::SingleNodeSingleWriter,
            flags,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::volume_capability::{AccessMode, BlockVolume, MountVolume};

    fn access(access_type: Option<AccessType>, mode: Mode, data: &VolumeData) -> Result<Access, Status> {
        let access_mode = Some(AccessMode { mode: mode.into() });
        Access::of(Some(&VolumeCapability { access_mode, access_type }), data)
    }

    fn mount(flag: &str) -> Option<AccessType> {
        Some(AccessType::Mount(MountVolume { mount_flags: vec![flag.into()], ..MountVolume::default() }))
    }

    #[test]
    fn a_mode_says_how_many_may_write() {
        let tmpfs = VolumeData::Tmpfs { size_bytes: None };
        let store = |options: &[(&str, &str)]| {
            let options = options.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            VolumeData::Store { url: "s3://b".into(), options }
        };
        let streamed = store(&[("writes", "streamed")]);
        let single = access(mount("ro"), Mode::SingleNodeSingleWriter, &tmpfs).unwrap();
        assert!(single.is_single && !single.is_read_only && single.flags == ["ro"]);
        assert!(access(mount("rw"), Mode::MultiNodeReaderOnly, &streamed).unwrap().is_read_only);
        for (data, is_read_only) in [
            (store(&[]), true),
            (store(&[("writes", "none")]), true),
            (streamed, false),
            (store(&[("staging", "/s")]), false),
        ] {
            let access = access(mount("rw"), Mode::MultiNodeMultiWriter, &data).unwrap();
            assert_eq!(access.is_read_only, is_read_only, "{data:?}");
        }
        for (access_type, mode) in [
            (mount("ro"), Mode::MultiNodeMultiWriter),
            (mount("ro"), Mode::Unknown),
            (mount("suid"), Mode::SingleNodeWriter),
            (Some(AccessType::Block(BlockVolume {})), Mode::SingleNodeWriter),
            (None, Mode::SingleNodeWriter),
        ] {
            let refused = access(access_type, mode, &tmpfs).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        }
        assert_eq!(Access::of(None, &tmpfs).unwrap_err().code(), tonic::Code::InvalidArgument);
    }
}
