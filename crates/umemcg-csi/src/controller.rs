//! The work of the controller: dynamically provisioned volumes of a StorageClass.
//!
//! A prefix of a bucket needs no creation: it exists as soon as an object below it does. A tmpfs
//! volume is made on the node where it is staged. So a new volume is a record; nodes find the data
//! by the attributes in it. Deleting a volume removes the record. Objects stay in the store,
//! because only the daemon may write there.

use std::collections::BTreeMap;
use std::sync::Arc;

use tonic::Status;

use crate::access::Access;
use crate::attributes::Attributes;
use crate::busy_keys::BusyKeys;
use crate::daemon::VolumeData;
use crate::names::volume_name;
use crate::records::{Created, Records};
use crate::v1::{CapacityRange, CreateVolumeRequest, VolumeCapability};

/// Longest name of a volume, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// The controller. Calls block.
#[derive(Debug)]
pub struct Controller {
    records: Arc<Records>,
    busy: Arc<BusyKeys>,
}

/// A part of the list of volumes.
#[derive(Debug, Default)]
pub struct VolumePage {
    /// The volumes.
    pub volumes: Vec<Created>,
    /// The token of the next part; empty at the end.
    pub next_token: String,
}

impl Controller {
    /// Creates a controller with these records.
    pub fn new(records: Arc<Records>) -> Self {
        Self { records, busy: Arc::default() }
    }

    /// Creates a volume, or returns the volume created earlier for the same request.
    ///
    /// # Errors
    /// The code given by the specification.
    pub fn create(&self, request: &CreateVolumeRequest) -> Result<Created, Status> {
        if request.name.len() > NAME_BYTES_MAX {
            return Err(Status::invalid_argument(format!("a name has at most {NAME_BYTES_MAX} bytes")));
        }
        let name = volume_name(&request.name)?;
        if request.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("the request has no volume capabilities"));
        }
        if request.volume_content_source.is_some() {
            return Err(Status::invalid_argument("a volume cannot be made from another one or a snapshot"));
        }
        if !request.mutable_parameters.is_empty() {
            return Err(Status::invalid_argument("parameters cannot be changed later"));
        }
        let attributes = Attributes::parse(&request.parameters)?;
        for capability in &request.volume_capabilities {
            Access::of(Some(capability), &attributes.data)?;
        }
        let capacity_bytes = capacity(request.capacity_range.as_ref())?;
        let mut context: BTreeMap<String, String> = request.parameters.clone().into_iter().collect();
        match attributes.data {
            VolumeData::Tmpfs { .. } if capacity_bytes > 0 => {
                context.insert("size".into(), capacity_bytes.to_string());
            }
            VolumeData::Tmpfs { .. } => {}
            VolumeData::Store { url, .. } => {
                context.insert("store".into(), format!("{}/{name}", url.trim_end_matches('/')));
            }
            VolumeData::Dir { .. } | VolumeData::Existing { .. } => {
                return Err(Status::invalid_argument(
                    "a StorageClass makes volumes of type tmpfs or store; write a PersistentVolume for others",
                ));
            }
        }
        let created = Created { volume_id: request.name.clone(), capacity_bytes, context };
        let _one_at_a_time = self
            .busy
            .try_take(&name)
            .ok_or_else(|| Status::aborted("the volume is being made; try again"))?;
        match self.records.get::<Created>(&name)? {
            Some(known) if known != created => {
                Err(Status::already_exists("a volume of that name has another capacity or other parameters"))
            }
            Some(known) => Ok(known),
            None => self.records.keep(&name, &created).map(|()| created),
        }
    }

    /// Removes the record of a volume. Its objects stay in the store.
    ///
    /// # Errors
    /// `InvalidArgument` without an id; `Internal`.
    pub fn delete(&self, volume_id: &str) -> Result<(), Status> {
        let name = volume_name(volume_id)?;
        self.records.forget::<Created>(&name)
    }

    /// Returns the reason why a volume does not support these capabilities; none if it does.
    ///
    /// # Errors
    /// `NotFound` if the controller did not make it.
    pub fn validate(
        &self,
        volume_id: &str,
        capabilities: &[VolumeCapability],
    ) -> Result<Option<String>, Status> {
        let name = volume_name(volume_id)?;
        if capabilities.is_empty() {
            return Err(Status::invalid_argument("the request has no volume capabilities"));
        }
        let created = self.records.get::<Created>(&name)?;
        let created = created.ok_or_else(|| Status::not_found("the controller did not make the volume"))?;
        let data = Attributes::parse(&created.context.into_iter().collect())?.data;
        let refused = capabilities.iter().find_map(|capability| Access::of(Some(capability), &data).err());
        Ok(refused.map(|status| status.message().to_owned()))
    }

    /// Returns a part of the volumes in order of name, beginning at a token.
    ///
    /// # Errors
    /// `Aborted` if the token is malformed.
    pub fn list(&self, token: &str, max_entries: i32) -> Result<VolumePage, Status> {
        let max = usize::try_from(max_entries).map_err(|_| Status::invalid_argument("a negative number"))?;
        // A token is the name of the next volume, with a prefix to reject made-up tokens.
        let from = match token.strip_prefix("from:") {
            Some(name) => name,
            None if token.is_empty() => "",
            None => return Err(Status::aborted("there is no such starting token")),
        };
        let mut all = self.records.all::<Created>()?.split_off(from).into_iter();
        let mut page = VolumePage::default();
        for (name, created) in all.by_ref() {
            if max > 0 && page.volumes.len() == max {
                page.next_token = format!("from:{name}");
                break;
            }
            page.volumes.push(created);
        }
        Ok(page)
    }
}

/// Returns the capacity to provide; 0 if the request gives none.
fn capacity(range: Option<&CapacityRange>) -> Result<i64, Status> {
    let Some(&CapacityRange { required_bytes, limit_bytes }) = range else { return Ok(0) };
    if required_bytes < 0 || limit_bytes < 0 {
        return Err(Status::invalid_argument("a capacity is not negative"));
    }
    if limit_bytes > 0 && required_bytes > limit_bytes {
        return Err(Status::out_of_range("the required capacity is above its limit"));
    }
    Ok(if required_bytes > 0 { required_bytes } else { limit_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::volume_capability::access_mode::Mode;
    use crate::v1::volume_capability::{AccessMode, AccessType, MountVolume};

    fn request(name: &str, parameters: &[(&str, &str)], bytes: i64) -> CreateVolumeRequest {
        let capability = VolumeCapability {
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
            access_type: Some(AccessType::Mount(MountVolume::default())),
        };
        CreateVolumeRequest {
            name: name.into(),
            capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            volume_capabilities: vec![capability],
            parameters: parameters.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            ..CreateVolumeRequest::default()
        }
    }

    #[test]
    fn a_store_gives_each_volume_a_prefix_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let controller = Controller::new(Arc::new(Records::open(dir.path()).unwrap()));
        let of_store = [("type", "store"), ("store", "s3://b/volumes/")];
        let made = controller.create(&request("a/../b", &of_store, 0)).unwrap();
        assert_eq!(made.context["store"], "s3://b/volumes/a%2F..%2Fb");
        assert_eq!(controller.create(&request("a/../b", &of_store, 0)).unwrap(), made);
        let other = controller.create(&request("a/../b", &of_store, 5)).unwrap_err();
        assert_eq!(other.code(), tonic::Code::AlreadyExists);
        let tmpfs = controller.create(&request("t", &[("type", "tmpfs")], 4096)).unwrap();
        assert_eq!((tmpfs.context["size"].as_str(), tmpfs.capacity_bytes), ("4096", 4096));
        let dir = controller.create(&request("d", &[("type", "dir"), ("dir", "/srv")], 0)).unwrap_err();
        assert_eq!(dir.code(), tonic::Code::InvalidArgument);
        let no_limit = [("type", "tmpfs"), ("memory.max", "lots")];
        let no_limit = controller.create(&request("l", &no_limit, 0)).unwrap_err();
        assert_eq!(no_limit.code(), tonic::Code::InvalidArgument);
        controller.delete("t").unwrap();
        controller.delete("t").unwrap();
        assert_eq!(
            controller.validate("t", &request("", &[], 0).volume_capabilities).unwrap_err().code(),
            tonic::Code::NotFound
        );
    }

    #[test]
    fn a_list_goes_on_where_it_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let controller = Controller::new(Arc::new(Records::open(dir.path()).unwrap()));
        for name in ["c", "a", "b"] {
            controller.create(&request(name, &[("type", "tmpfs")], 0)).unwrap();
        }
        let names = |page: &VolumePage| page.volumes.iter().map(|v| v.volume_id.clone()).collect::<String>();
        let first = controller.list("", 2).unwrap();
        assert_eq!(names(&first), "ab");
        // The next volume may be deleted meanwhile.
        controller.delete("c").unwrap();
        let second = controller.list(&first.next_token, 2).unwrap();
        assert_eq!((names(&second).as_str(), second.next_token.as_str()), ("", ""));
        assert_eq!(names(&controller.list("", 0).unwrap()), "ab");
        assert_eq!(controller.list("invalid", 0).unwrap_err().code(), tonic::Code::Aborted);
    }
}
