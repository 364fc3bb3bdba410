//! `memory.pressure`: stall time for lack of memory, and triggers on it (`kernel-semantics` §7.4).
//!
//! A trigger belongs to the open file it was written to, and ends with that file. While a trigger
//! exists, one thread checks all triggers, ten times in the shortest window.

use std::fmt::Write;
use std::time::Duration;

use umemcg::internal::PressureLine;

use crate::context::FileContext;
use crate::error::ControlError;
use crate::numbers::{parse_decimal, strip};
use crate::trigger::{Trigger, WINDOW_MAX, WINDOW_MIN};

/// Shows `memory.pressure`.
#[doc(alias = "psi_show")]
pub(crate) fn show(context: &FileContext<'_>) -> Result<String, ControlError> {
    let pressure = umemcg::internal::pressure(context.group);
    let mut text = String::new();
    for (name, line) in [("some", pressure.some), ("full", pressure.full)] {
        let PressureLine { averages: [ten, sixty, long], total } = line;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{name} avg10={ten:.2} avg60={sixty:.2} avg300={long:.2} total={}",
            total.as_micros()
        );
    }
    Ok(text)
}

/// Sets the open file's trigger: `some|full <us> <window us>`.
#[doc(alias = "psi_trigger_create")]
pub(crate) fn set_trigger(context: &FileContext<'_>, written: &[u8]) -> Result<(), ControlError> {
    let (is_full, threshold, window) = parse(written).ok_or(ControlError::Invalid)?;
    let mut own = context.file.trigger.lock();
    if own.is_some() {
        return Err(ControlError::Busy);
    }
    let trigger = Trigger::new(context.group, is_full, threshold, window);
    context.state.triggers().add(&trigger).map_err(|_| ControlError::Again)?;
    *own = Some(trigger);
    Ok(())
}

fn parse(written: &[u8]) -> Option<(bool, Duration, Duration)> {
    let mut words = strip(written).split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let is_full = match words.next()? {
        b"some" => false,
        b"full" => true,
        _ => return None,
    };
    let [threshold, window] = [words.next()?, words.next()?].map(parse_decimal);
    let (threshold, window) = (Duration::from_micros(threshold?), Duration::from_micros(window?));
    let fits = (WINDOW_MIN..=WINDOW_MAX).contains(&window) && !threshold.is_zero() && threshold <= window;
    (fits && words.next().is_none()).then_some((is_full, threshold, window))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_trigger_is_a_line_of_three_words() {
        assert_eq!(parse(b"some 150000 1000000\n"), Some((false, ms(150), ms(1000))));
        assert_eq!(parse(b"full 500000 500000\0"), Some((true, ms(500), ms(500))));
        for text in [
            "",
            "some",
            "some 1",
            "some 0 1000000",
            "some 1 499999",
            "full 1 10000001",
            "some 600000 500000",
            "most 1 1000000",
            "some 1 1000000 1",
            "some x 1000000",
            "some -1 1000000",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }
}
