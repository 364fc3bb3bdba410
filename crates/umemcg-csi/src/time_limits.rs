//! The time that a request has. A client says how long it waits (`grpc-timeout`); the answer that
//! the time is over has to reach it before. A request without that has a usual time.

use std::time::Duration;

use tonic::Request;

/// The time that a request which changes something has, if its client does not say.
pub const CHANGE_WITHIN: Duration = Duration::from_secs(60);
/// The same for a request that changes nothing.
pub const LOOK_WITHIN: Duration = Duration::from_secs(5);
/// The most digits that the number of a `grpc-timeout` may have.
const NR_DIGITS_MAX: usize = 8;

/// Returns the time in which a client must have its answer: a tenth less than it waits. None if it
/// does not say, or not as the gRPC specification has it.
pub fn of_client<T>(request: &Request<T>) -> Option<Duration> {
    let waits = parse(request.metadata().get("grpc-timeout")?.to_str().ok()?)?;
    Some(waits - waits / 10)
}

/// Parses up to eight digits and a unit.
fn parse(text: &str) -> Option<Duration> {
    let number = text.get(..text.len().checked_sub(1)?)?;
    if number.len() > NR_DIGITS_MAX || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = number.parse().ok()?;
    Some(match &text[text.len() - 1..] {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_answered_before_it_stops_waiting() {
        let limit = |text: &str| {
            let mut request = Request::new(());
            request.metadata_mut().insert("grpc-timeout", text.parse().unwrap());
            of_client(&request)
        };
        assert_eq!(limit("120S"), Some(Duration::from_secs(108)));
        assert_eq!(limit("2M"), limit("120S"));
        assert_eq!(limit("1H"), Some(Duration::from_secs(3240)));
        assert_eq!(limit("1000m"), Some(Duration::from_millis(900)));
        assert_eq!(
            (limit("10u"), limit("10n")),
            (Some(Duration::from_micros(9)), Some(Duration::from_nanos(9)))
        );
        for wrong in ["", "S", "1", "1s", "-1S", "+1S", "123456789S", "1 S"] {
            assert_eq!(limit(wrong), None, "{wrong}");
        }
        assert_eq!(of_client(&Request::new(())), None);
    }
}
