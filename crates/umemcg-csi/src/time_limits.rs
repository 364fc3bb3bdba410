//! Deadlines of requests. A client sends its timeout as `grpc-timeout`; the `DeadlineExceeded`
//! answer has to arrive before that. A request without a timeout has a default deadline.

use std::time::Duration;

use tonic::Request;

/// The default deadline of a changing request.
pub const CHANGE_WITHIN: Duration = Duration::from_secs(60);
/// The default deadline of a read-only request.
pub const LOOK_WITHIN: Duration = Duration::from_secs(5);
/// The most digits of the number in a `grpc-timeout`.
const NR_DIGITS_MAX: usize = 8;

/// Returns the time within which to answer a client: a tenth less than its timeout. None if the
/// client sends no timeout, or an invalid one.
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
