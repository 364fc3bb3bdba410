//! `cgroup.event_control`: `<eventfd> <fd of a control file> [arguments]` asks for events through
//! an eventfd (`kernel-semantics` §7.4). Both numbers are the writer's own.

use umemcg::PressureLevel;

use crate::context::FileContext;
use crate::descriptors::DescriptorError;
use crate::error::ControlError;
use crate::event_listeners::{ListenerEvent, Propagation};
use crate::node::serial_of;
use crate::numbers::{parse_decimal, parse_limit_v1, strip};
use crate::permission::READ;

/// Registers the writer's eventfd for events of one of the group's files.
#[doc(alias = "memcg_write_event_control")]
pub(crate) fn register(context: &FileContext<'_>, written: &[u8]) -> Result<(), ControlError> {
    let (eventfd, control, arguments) = parse(written).ok_or(ControlError::Invalid)?;
    let (descriptors, tid) = (context.request.descriptors, context.request.tid);
    // Resolve the eventfd last: only it is kept.
    let node = descriptors.control_file(tid, control).map_err(refusal);
    let node = match node {
        Ok(node) => node,
        // As in the kernel, an invalid eventfd is reported first.
        Err(error) => return Err(descriptors.eventfd(tid, eventfd).err().map_or(error, refusal)),
    };
    let sink = descriptors.eventfd(tid, eventfd).map_err(refusal)?;
    let (serial, row) = node.parts().ok_or(ControlError::Invalid)?;
    let Some(row) = row.filter(|_| serial == serial_of(context.group)) else {
        return Err(ControlError::Invalid);
    };
    let file = context.state.file(row).ok_or(ControlError::Invalid)?;
    if !context.control().owner(Some(file)).grants(&context.file.opener, READ) {
        return Err(ControlError::Denied);
    }
    let awaited = match file.name {
        // Without swap both usages are the same.
        "memory.usage_in_bytes" | "memory.memsw.usage_in_bytes" => {
            ListenerEvent::usage(parse_threshold(arguments)?)
        }
        "memory.oom_control" => ListenerEvent::oom(),
        "memory.pressure_level" => {
            let (level, passing) = parse_level(arguments).ok_or(ControlError::Invalid)?;
            ListenerEvent::Level(level, passing)
        }
        _ => return Err(ControlError::Invalid),
    };
    let of = (context.group, &context.control().peaks);
    let engine = context.state.engine();
    context.state.listeners().add(engine, of, *context.file.holder(), awaited, sink.into())
}

/// Shows nothing. Every process with read permission can open `memory.pressure_level` to name it
/// here; the file has no content.
#[doc(alias = "mem_cgroup_dummy_seq_show")]
pub(crate) fn show_nothing(_context: &FileContext<'_>) -> Result<String, ControlError> {
    Err(ControlError::Invalid)
}

fn refusal(error: DescriptorError) -> ControlError {
    match error {
        DescriptorError::NotOpen => ControlError::BadDescriptor,
        DescriptorError::WrongKind => ControlError::Invalid,
        DescriptorError::System(errno) => ControlError::System(errno),
    }
}

/// Returns two numbers, and the rest of the line.
fn parse(written: &[u8]) -> Option<(u32, u32, &[u8])> {
    let (eventfd, rest) = number(strip(written))?;
    let (control, rest) = number(rest.strip_prefix(b" ")?)?;
    // Only a single space may end the number.
    let arguments = if rest.is_empty() { rest } else { rest.strip_prefix(b" ")? };
    Some((eventfd, control, arguments))
}

/// Returns the number at the beginning of a text, and the text after it; without a digit the number
/// is 0, as in the kernel.
#[doc(alias = "simple_strtoul")]
fn number(text: &[u8]) -> Option<(u32, &[u8])> {
    let len = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if len == 0 {
        return Some((0, text));
    }
    let fd = parse_decimal(&text[..len]).and_then(|fd| u32::try_from(fd).ok())?;
    Some((fd, &text[len..]))
}

/// Parses a threshold. An empty text is 0, as in the kernel.
fn parse_threshold(text: &[u8]) -> Result<u64, ControlError> {
    match text {
        [] => Ok(0),
        [b' ', ..] => Err(ControlError::Invalid),
        text => parse_limit_v1(text),
    }
}

/// Parses `low|medium|critical[,default|hierarchy|local]`.
fn parse_level(text: &[u8]) -> Option<(PressureLevel, Propagation)> {
    let (level, passing) = match text.iter().position(|&byte| byte == b',') {
        Some(comma) => (&text[..comma], &text[comma + 1..]),
        None => (text, b"default".as_slice()),
    };
    let level = match level {
        b"low" => PressureLevel::Low,
        b"medium" => PressureLevel::Medium,
        b"critical" => PressureLevel::Critical,
        _ => return None,
    };
    let passing = match passing {
        b"default" => Propagation::UntilHeard,
        b"hierarchy" => Propagation::Always,
        b"local" => Propagation::Never,
        _ => return None,
    };
    Some((level, passing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_is_two_numbers_and_the_rest_of_the_line() {
        assert_eq!(parse(b"5 7 100M\n"), Some((5, 7, &b"100M"[..])));
        assert_eq!(parse(b"5 7"), Some((5, 7, &b""[..])));
        assert_eq!(parse(b"5 7 \n"), Some((5, 7, &b""[..])));
        assert_eq!(parse(b"5 7  100"), Some((5, 7, &b" 100"[..])), "a second blank is no part of the form");
        assert_eq!(parse(b"5  7 100"), Some((5, 0, &b"7 100"[..])), "and here stands for descriptor 0");
        for text in ["", "5", "5 ", "x 7", "5 x", "5 7x", "-1 7 0", "5 -7 0", "5, 7", "99999999999 1"] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_level_may_say_how_far_it_is_passed_on() {
        use PressureLevel::{Critical, Low, Medium};
        assert_eq!(parse_level(b"low"), Some((Low, Propagation::UntilHeard)));
        assert_eq!(parse_level(b"medium,default"), Some((Medium, Propagation::UntilHeard)));
        assert_eq!(parse_level(b"critical,hierarchy"), Some((Critical, Propagation::Always)));
        assert_eq!(parse_level(b"low,local"), Some((Low, Propagation::Never)));
        for text in ["", "high", "low,", "low,all", "low local", ",local", "low,local,local"] {
            assert_eq!(parse_level(text.as_bytes()), None, "{text}");
        }
    }
}
