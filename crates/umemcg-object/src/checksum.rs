//! Checks a downloaded object against the checksum reported by the store.
//!
//! S3 reports on request the checksum stored with the object, Google a CRC32C and an MD5, Azure an
//! MD5 where there is one. Each covers the whole object, so a range cannot be checked. Neither can
//! S3's composite checksum, a checksum of the parts' checksums.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crc_fast::CrcAlgorithm;
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use md5::{Digest, Md5};

/// Makes S3 report a checksum.
pub(crate) const ASKS_SUM: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-amz-checksum-mode"), HeaderValue::from_static("ENABLED"));

const KIND: HeaderName = HeaderName::from_static("x-amz-checksum-type");
const GOOGLE_SUMS: HeaderName = HeaderName::from_static("x-goog-hash");
const GOOGLE_STORED: HeaderName = HeaderName::from_static("x-goog-stored-content-encoding");
const MD5: HeaderName = HeaderName::from_static("content-md5");

/// The algorithm of a checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    Crc32,
    Crc32c,
    Crc64Nvme,
    Sha1,
    Sha256,
    Md5,
}

/// S3's checksum headers, the fastest algorithm first.
const S3_SUMS: [(HeaderName, Algorithm); 5] = [
    (HeaderName::from_static("x-amz-checksum-crc64nvme"), Algorithm::Crc64Nvme),
    (HeaderName::from_static("x-amz-checksum-crc32c"), Algorithm::Crc32c),
    (HeaderName::from_static("x-amz-checksum-crc32"), Algorithm::Crc32),
    (HeaderName::from_static("x-amz-checksum-sha1"), Algorithm::Sha1),
    (HeaderName::from_static("x-amz-checksum-sha256"), Algorithm::Sha256),
];

/// The checksum reported for a whole object: an extension of the response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExpectedChecksum {
    algorithm: Algorithm,
    bytes: Vec<u8>,
}

impl ExpectedChecksum {
    /// Returns the whole object's checksum from the headers of its response.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let of_parts = text(&KIND).is_some_and(|kind| kind.eq_ignore_ascii_case("COMPOSITE"));
        let of_s3 = S3_SUMS.into_iter().filter(|_| !of_parts);
        let mut of_s3 = of_s3.filter_map(|(name, algorithm)| Self::parse(text(&name)?, algorithm));
        // For an object stored compressed and sent decompressed, the checksum is of the stored
        // bytes.
        let is_as_kept = text(&GOOGLE_STORED).is_none_or(|encoding| encoding == "identity");
        let of_google = headers.get_all(GOOGLE_SUMS).into_iter().filter(|_| is_as_kept);
        let of_google = of_google.filter_map(|value| value.to_str().ok()).flat_map(|sums| sums.split(','));
        let mut of_google = of_google.filter_map(|sum| match sum.trim().split_once('=')? {
            ("crc32c", sum) => Self::parse(sum, Algorithm::Crc32c),
            ("md5", sum) => Self::parse(sum, Algorithm::Md5),
            _ => None,
        });
        of_s3.next().or_else(|| of_google.next()).or_else(|| Self::parse(text(&MD5)?, Algorithm::Md5))
    }

    /// Decodes a checksum; `None` for a composite one, which ends with the number of parts.
    fn parse(text: &str, algorithm: Algorithm) -> Option<Self> {
        let bytes = STANDARD.decode(text.trim()).ok()?;
        (bytes.len() == algorithm.len()).then_some(Self { algorithm, bytes })
    }
}

impl Algorithm {
    /// Returns the length of a checksum in bytes.
    fn len(self) -> usize {
        match self {
            Self::Crc32 | Self::Crc32c => 4,
            Self::Crc64Nvme => 8,
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }
}

/// The checksum of the bytes received so far.
pub(crate) struct RunningSum {
    expected: ExpectedChecksum,
    state: State,
}

enum State {
    Crc(crc_fast::Digest),
    Sha(ring::digest::Context),
    Md5(Md5),
}

impl RunningSum {
    pub(crate) fn new(expected: ExpectedChecksum) -> Self {
        let state = match expected.algorithm {
            Algorithm::Crc32 => State::Crc(crc_fast::Digest::new(CrcAlgorithm::Crc32IsoHdlc)),
            Algorithm::Crc32c => State::Crc(crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi)),
            Algorithm::Crc64Nvme => State::Crc(crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme)),
            Algorithm::Sha1 => {
                State::Sha(ring::digest::Context::new(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY))
            }
            Algorithm::Sha256 => State::Sha(ring::digest::Context::new(&ring::digest::SHA256)),
            Algorithm::Md5 => State::Md5(Md5::new()),
        };
        Self { expected, state }
    }

    pub(crate) fn take(&mut self, bytes: &[u8]) {
        match &mut self.state {
            State::Crc(state) => state.update(bytes),
            State::Sha(state) => state.update(bytes),
            State::Md5(state) => state.update(bytes),
        }
    }

    /// Compares the checksum of the received bytes with the reported one.
    ///
    /// # Errors
    /// A text with both checksums.
    pub(crate) fn end(self) -> Result<(), String> {
        let ExpectedChecksum { algorithm, bytes } = self.expected;
        let came = match self.state {
            State::Crc(state) => state.finalize().to_be_bytes()[8 - algorithm.len()..].to_vec(),
            State::Sha(state) => state.finish().as_ref().to_vec(),
            State::Md5(state) => state.finalize().to_vec(),
        };
        if came == bytes {
            return Ok(());
        }
        let [came, told] = [came, bytes].map(|sum| STANDARD.encode(sum));
        Err(format!("what came has the {algorithm:?} {came}, the object {told}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checksums of `123456789`, from the catalog of CRCs and the standards.
    const CHECKS: [(&str, &str, Algorithm); 6] = [
        ("x-amz-checksum-crc32", "y/Q5Jg==", Algorithm::Crc32),
        ("x-amz-checksum-crc32c", "4waSgw==", Algorithm::Crc32c),
        ("x-amz-checksum-crc64nvme", "rosUhgp5mIg=", Algorithm::Crc64Nvme),
        ("x-amz-checksum-sha1", "98O8HYCOBHMq32eZZczDTKeuNEE=", Algorithm::Sha1),
        ("x-amz-checksum-sha256", "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=", Algorithm::Sha256),
        ("content-md5", "JfnnlDI7RTiF9RgfG2JNCw==", Algorithm::Md5),
    ];

    fn told(headers: &[(&str, &str)]) -> Option<ExpectedChecksum> {
        let header = |(name, value): &(&str, &str)| {
            (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap())
        };
        ExpectedChecksum::of(&headers.iter().map(header).collect())
    }

    #[test]
    fn every_kind_of_sum_tells_right_from_wrong() {
        for (name, sum, algorithm) in CHECKS {
            let told = told(&[(name, sum)]).unwrap();
            assert_eq!(told.algorithm, algorithm);
            let check = |parts: &[&[u8]]| {
                let mut running = RunningSum::new(told.clone());
                parts.iter().for_each(|part| running.take(part));
                running.end()
            };
            assert_eq!(check(&[b"1234", b"", b"56789"]), Ok(()), "{name}");
            let text = check(&[b"123456788"]).unwrap_err();
            assert!(text.contains(sum), "{text}");
        }
    }

    #[test]
    fn a_sum_of_parts_or_of_other_bytes_is_none() {
        let crc = ("x-amz-checksum-crc32", "y/Q5Jg==");
        assert_eq!(told(&[("x-amz-checksum-type", "COMPOSITE"), crc]), None);
        assert!(told(&[("x-amz-checksum-type", "FULL_OBJECT"), crc]).is_some());
        assert_eq!(told(&[("x-amz-checksum-crc32", "y/Q5Jg==-2")]), None);
        assert_eq!(told(&[("x-amz-checksum-sha256", "y/Q5Jg==")]), None, "too short");
        let google = ("x-goog-hash", "crc32c=4waSgw==,md5=JfnnlDI7RTiF9RgfG2JNCw==");
        assert_eq!(told(&[google]).unwrap().algorithm, Algorithm::Crc32c);
        assert_eq!(
            told(&[("x-goog-hash", "md5=JfnnlDI7RTiF9RgfG2JNCw==")]).unwrap().algorithm,
            Algorithm::Md5
        );
        assert_eq!(told(&[("x-goog-stored-content-encoding", "gzip"), google]), None);
        assert_eq!(told(&[("etag", "\"JfnnlDI7RTiF9RgfG2JNCw\"")]), None);
    }
}
