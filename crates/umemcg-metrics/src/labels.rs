//! Label values: names chosen by tenants, escaped for the text format.

use std::borrow::Cow;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns a path as the value of a label. Bytes outside UTF-8 are shown as `\xNN`, so two paths
/// never have the same label.
pub(crate) fn of_path(path: &Path) -> String {
    let mut value = String::with_capacity(path.as_os_str().len());
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        value += &escaped(chunk.valid());
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(value, r"\\x{byte:02x}");
        }
    }
    value
}

/// Returns text as the value of a label: backslash, quotation mark and line feed are escaped, as
/// the format requires.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(['\\', '"', '\n']) {
        return text.into();
    }
    text.replace('\\', r"\\").replace('"', "\\\"").replace('\n', "\\n").into()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn no_name_ends_its_label() {
        assert_eq!(of_path(Path::new("/a/b c")), "/a/b c");
        assert_eq!(of_path(Path::new("/\"} 5\n# EOF\n\\")), r#"/\"} 5\n# EOF\n\\"#);
        assert_eq!(of_path(OsStr::from_bytes(b"/caf\xe9/\xff").as_ref()), r"/caf\\xe9/\\xff");
        assert_eq!(of_path(Path::new(r"/caf\xe9")), r"/caf\\xe9");
    }
}
