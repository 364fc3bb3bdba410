//! Rules for processes not placed by hand: `kind:pattern=target`.
//!
//! ```text
//! cgroup:/kubepods/*=/pods/{1}     the requester's cgroup in the kernel, any hierarchy
//! uid:1000=/users/{0}              its user id
//! path:/projects/*=/p/{1}          the path in the mount that it touches
//! ```
//!
//! A pattern of components matches any path that *starts* with these components: `/projects/*`
//! matches `/projects/red/src/main.c`. A `*` stands for any bytes within one component, as few as
//! possible. In the target `{0}` is the matched part and `{n}` the text matched by the nth `*`. The
//! first matching rule wins.
//!
//! A tenant chose the name matched by a wildcard, so it is not trusted. If a component cannot be
//! the name of a group (`..`, more than 255 bytes, a newline), the rule does not match. A component
//! equal to the name of a control file gets an underscore in front.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::str::FromStr;

use thiserror::Error;

/// Longest name of a group, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// The property of a request matched by a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleKind {
    /// The path of the requester's cgroup in the kernel.
    Cgroup,
    /// The requester's user id.
    Uid,
    /// The path of the requested object.
    Path,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    kind: RuleKind,
    pattern: Vec<Vec<u8>>,
    target: Vec<Vec<Piece>>,
}

/// A part of a component of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    Capture(usize),
}

/// The reason why a text is not a rule.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "rule '{rule}': {reason}; a rule looks like 'cgroup:/kubepods/*=/pods/{{1}}', 'uid:1000=/users/{{0}}' or \
         'path:/projects/*=/p/{{1}}'"
)]
pub struct RuleError {
    rule: String,
    reason: &'static str,
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        parse(text.as_bytes()).map_err(|reason| RuleError { rule: text.to_owned(), reason })
    }
}

impl Rule {
    /// Returns the property matched by this rule.
    pub fn kind(&self) -> RuleKind {
        self.kind
    }

    /// Returns the names of the groups from the root down to the group of `subject`; none if the
    /// rule does not match.
    pub fn place(&self, subject: &[u8]) -> Option<Vec<OsString>> {
        let captures = self.captures(subject)?;
        let mut names = Vec::new();
        for pieces in &self.target {
            let mut text = Vec::new();
            for piece in pieces {
                match piece {
                    Piece::Text(bytes) => text.extend_from_slice(bytes),
                    Piece::Capture(nth) => text.extend_from_slice(&captures[*nth]),
                }
            }
            // A capture of several components names several groups.
            for name in text.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
                names.push(group_name(name)?);
            }
        }
        Some(names)
    }

    /// Returns the matched part, then the text matched by each wildcard.
    fn captures(&self, subject: &[u8]) -> Option<Vec<Vec<u8>>> {
        let mut captures = vec![Vec::new()];
        let mut components = subject.split(|&byte| byte == b'/').filter(|component| !component.is_empty());
        let mut whole = Vec::new();
        for pattern in &self.pattern {
            let component = components.next()?;
            match_component(pattern, component, &mut captures)?;
            if self.kind != RuleKind::Uid {
                whole.push(b'/');
            }
            whole.extend_from_slice(component);
        }
        if self.kind == RuleKind::Uid && components.next().is_some() {
            return None;
        }
        captures[0] = whole;
        Some(captures)
    }
}

/// Matches one component against a pattern with wildcards; appends the text matched by each.
fn match_component(pattern: &[u8], component: &[u8], captures: &mut Vec<Vec<u8>>) -> Option<()> {
    let mut parts = pattern.split(|&byte| byte == b'*');
    let mut rest = component.strip_prefix(parts.next().unwrap_or_default())?;
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        // The last part must end the component; an earlier one is taken where it first appears.
        let at = if parts.peek().is_none() {
            rest.len().checked_sub(part.len()).filter(|&at| rest[at..] == *part)?
        } else {
            find(rest, part)?
        };
        captures.push(rest[..at].to_vec());
        rest = &rest[at + part.len()..];
    }
    rest.is_empty().then_some(())
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    if part.is_empty() {
        return Some(0);
    }
    text.windows(part.len()).position(|window| window == part)
}

/// Returns the name of a group from a tenant's bytes, if they can be one.
fn group_name(bytes: &[u8]) -> Option<OsString> {
    if bytes == b"." || bytes == b".." || bytes.contains(&b'\n') || bytes.contains(&0) {
        return None;
    }
    let mut name = bytes.to_vec();
    if umemcg_control::is_control_file_name(OsStr::from_bytes(bytes)) {
        name.insert(0, b'_');
    }
    (name.len() <= NAME_BYTES_MAX).then(|| OsString::from_vec(name))
}

fn parse(text: &[u8]) -> Result<Rule, &'static str> {
    let colon = text.iter().position(|&byte| byte == b':').ok_or("it names no kind")?;
    let kind = match &text[..colon] {
        b"cgroup" => RuleKind::Cgroup,
        b"uid" => RuleKind::Uid,
        b"path" => RuleKind::Path,
        _ => return Err("its kind is none of cgroup, uid and path"),
    };
    let rest = &text[colon + 1..];
    let equals = rest.windows(2).rposition(|pair| pair == b"=/").ok_or("it has no target '=/…'")?;
    let (pattern, target) = (&rest[..equals], &rest[equals + 1..]);
    let pattern = match kind {
        RuleKind::Uid => parse_uid_pattern(pattern)?,
        RuleKind::Cgroup | RuleKind::Path => parse_path_pattern(pattern)?,
    };
    let nr_wildcards = pattern.iter().flatten().filter(|&&byte| byte == b'*').count();
    let target = target
        .split(|&byte| byte == b'/')
        .filter(|component| !component.is_empty())
        .map(|component| parse_target_component(component, nr_wildcards))
        .collect::<Result<_, _>>()?;
    Ok(Rule { kind, pattern, target })
}

fn parse_uid_pattern(pattern: &[u8]) -> Result<Vec<Vec<u8>>, &'static str> {
    let is_number = !pattern.is_empty() && pattern.iter().all(u8::is_ascii_digit);
    if pattern != b"*" && !is_number {
        return Err("a user id is a number or '*'");
    }
    Ok(vec![pattern.to_vec()])
}

fn parse_path_pattern(pattern: &[u8]) -> Result<Vec<Vec<u8>>, &'static str> {
    if pattern.first() != Some(&b'/') {
        return Err("its pattern does not start with '/'");
    }
    let components: Vec<Vec<u8>> =
        pattern.split(|&byte| byte == b'/').filter(|part| !part.is_empty()).map(<[u8]>::to_vec).collect();
    if components.iter().any(|component| component == b"." || component == b"..") {
        return Err("its pattern has a component '.' or '..'");
    }
    Ok(components)
}

fn parse_target_component(component: &[u8], nr_wildcards: usize) -> Result<Vec<Piece>, &'static str> {
    if component == b"." || component == b".." {
        return Err("its target has a component '.' or '..'");
    }
    let mut pieces = Vec::new();
    let mut rest = component;
    while let Some(open) = rest.iter().position(|&byte| byte == b'{') {
        let close = rest.iter().position(|&byte| byte == b'}').filter(|&at| at > open);
        let close = close.ok_or("a '{' in its target has no '}'")?;
        let nth =
            umemcg_control::parse_decimal(&rest[open + 1..close]).ok_or("between braces stands a number")?;
        if nth > nr_wildcards as u64 {
            return Err("its target names a wildcard that the pattern does not have");
        }
        if open > 0 {
            pieces.push(Piece::Text(rest[..open].to_vec()));
        }
        pieces.push(Piece::Capture(nth as usize));
        rest = &rest[close + 1..];
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.to_vec()));
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn placed(rule: &str, subject: &str) -> Option<String> {
        let rule: Rule = rule.parse().unwrap();
        let names = rule.place(subject.as_bytes())?;
        Some(names.iter().map(|name| format!("/{}", name.to_str().unwrap())).collect())
    }

    #[test]
    fn rules_place_by_pattern() {
        for (rule, subject, group) in [
            ("cgroup:/kubepods/*=/pods/{1}", "/kubepods/pod7/ctr9", Some("/pods/pod7")),
            ("cgroup:/kubepods/*=/pods/{1}", "/kubepods", None),
            ("cgroup:/kubepods/*=/pods/{1}", "/kubepods2/pod7", None),
            ("cgroup:/kubepods/*/*=/pods/{2}", "/kubepods/burstable/pod7", Some("/pods/pod7")),
            ("cgroup:/k/*-pod*.slice=/pods/{2}", "/k/x-burst-pod12.slice/cri", Some("/pods/12")),
            ("cgroup:/k/*-pod*.slice=/pods/{1}/{2}", "/k/a-pod-pod1.slice", Some("/pods/a/-pod1")),
            ("cgroup:/=/all", "/any/thing", Some("/all")),
            ("cgroup:/a/b=/x{0}", "/a/b/c", Some("/x/a/b")),
            ("uid:1000=/users/{0}", "1000", Some("/users/1000")),
            ("uid:1000=/users/{0}", "10001", None),
            ("uid:*=/users/u{1}", "33", Some("/users/u33")),
            ("uid:1000=/", "1000", Some("")),
            ("path:/projects/*=/p/{1}", "/projects/red/src/main.c", Some("/p/red")),
            ("path:/projects/*=/p/{1}", "projects/red", Some("/p/red")),
            ("path:/projects/*=/p/{1}", "/projects", None),
            ("path:/a=b/*=/p/{1}", "/a=b/c", Some("/p/c")),
            ("path:/*.d/x=/p/{1}", "/etc.d/x", Some("/p/etc")),
            ("path:/*.d/x=/p/{1}", "/etc.dd/x", None),
        ] {
            assert_eq!(placed(rule, subject).as_deref(), group, "{rule} {subject}");
        }
    }

    #[test]
    fn a_tenants_choice_of_name_cannot_escape_or_hide() {
        assert_eq!(placed("path:/p/x*=/g/{1}", "/p/x.."), None);
        assert_eq!(placed("path:/p/*=/g/{1}", "/p/a\nb"), None);
        assert_eq!(placed("path:/p/*=/g/{1}", "/p/tasks").as_deref(), Some("/g/_tasks"));
        assert_eq!(placed("path:/p/*=/g/{1}", &format!("/p/{}", "x".repeat(256))), None);
        assert!(placed("path:/p/*=/g/{1}", &format!("/p/{}", "x".repeat(255))).is_some());
    }

    #[test]
    fn a_malformed_rule_says_what_is_wrong_with_it() {
        for (rule, reason) in [
            ("", "kind"),
            ("kubepods", "kind"),
            ("gid:1=/x", "kind"),
            ("uid:1000", "target"),
            ("uid:bob=/x", "user id"),
            ("uid:=/x", "user id"),
            ("uid:-1=/x", "user id"),
            ("cgroup:kubepods/*=/x", "start with"),
            ("path:/a/../b=/x", "'..'"),
            ("path:/a=/x/../y", "'..'"),
            ("path:/a=/x/{1}", "wildcard"),
            ("path:/*=/x/{2}", "wildcard"),
            ("path:/*=/x/{one}", "number"),
            ("path:/*=/x/{1", "no '}'"),
        ] {
            let error = rule.parse::<Rule>().unwrap_err().to_string();
            assert!(error.contains(reason), "{rule:?}: {error}");
            assert!(error.contains("looks like"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_subject_breaks_a_rule(subject in proptest::collection::vec(any::<u8>(), 0..80)) {
            for rule in ["cgroup:/*/*-*=/{0}/{1}/{2}{3}", "uid:*=/{1}", "path:/=/{0}"] {
                if let Some(names) = rule.parse::<Rule>().unwrap().place(&subject) {
                    for name in names {
                        prop_assert!(name != ".." && name != "." && !name.is_empty() && name.len() <= 255);
                    }
                }
            }
        }

        #[test]
        fn any_text_parses_or_is_refused(text in ".{0,60}") {
            let _ = text.parse::<Rule>();
        }
    }
}
