//! Names given by the plugin: to volumes in the daemon, to groups, to rules.

use std::ffi::OsStr;
use std::fmt::Write;

use tonic::Status;

/// Longest name of a volume or a group, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Returns the name of a volume in the daemon: its id, with `%XX` for a leading dot and for each
/// byte other than a letter, digit, dash, underscore or dot. So different ids have different names,
/// whatever bytes they contain.
///
/// # Errors
/// `InvalidArgument` if the id is empty or the name is too long.
pub fn volume_name(id: &str) -> Result<String, Status> {
    if id.is_empty() {
        return Err(Status::invalid_argument("the request has no volume id"));
    }
    let mut name = String::new();
    for (at, byte) in id.bytes().enumerate() {
        match byte {
            b'.' if at > 0 => name.push('.'),
            b'-' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => name.push(byte.into()),
            _ => {
                let _ = write!(name, "%{byte:02X}");
            }
        }
    }
    match name.len() <= NAME_BYTES_MAX {
        true => Ok(name),
        false => Err(Status::invalid_argument(format!("the volume id `{id}` is too long for a name"))),
    }
}

/// Returns the name of the group of a namespace or pod: its own name, with a leading underscore if
/// a control file has that name. Rules name groups in the same way.
///
/// # Errors
/// `InvalidArgument` unless it is a valid Kubernetes name: letters, digits, dashes, dots.
pub fn group_name(what: &str, name: &str) -> Result<String, Status> {
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    if name.is_empty() || name.starts_with('.') || !name.bytes().all(is_usual) || name.len() >= NAME_BYTES_MAX
    {
        return Err(Status::invalid_argument(format!(
            "`{name}` is not the {what} of a pod: 1 to 254 letters, digits, dashes and dots"
        )));
    }
    let is_file = umemcg_control::is_control_file_name(OsStr::new(name));
    Ok(if is_file { format!("_{name}") } else { name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_any_bytes_have_names_of_their_own() {
        for (id, name) in [
            ("pvc-1f", "pvc-1f"),
            ("a.b_c", "a.b_c"),
            (".", "%2E"),
            ("..", "%2E."),
            ("a/../b", "a%2F..%2Fb"),
            ("a b\n", "a%20b%0A"),
            ("é%", "%C3%A9%25"),
        ] {
            assert_eq!(volume_name(id).unwrap(), name);
        }
        assert_eq!(volume_name(&"x".repeat(128)).unwrap().len(), 128);
        for wrong in ["", &"/".repeat(86)] {
            assert_eq!(volume_name(wrong).unwrap_err().code(), tonic::Code::InvalidArgument);
        }
    }

    #[test]
    fn a_pod_can_have_the_name_of_a_control_file() {
        assert_eq!(group_name("name", "web-0.a").unwrap(), "web-0.a");
        assert_eq!(group_name("name", "tasks").unwrap(), "_tasks");
        assert_eq!(group_name("name", "memory.max").unwrap(), "_memory.max");
        for wrong in ["", "..", "a/b", "a b", "a\n", "{1}", "_x", &"x".repeat(255)] {
            assert_eq!(group_name("name", wrong).unwrap_err().code(), tonic::Code::InvalidArgument);
        }
    }
}
