//! `Via` (RFC 9110, 7.6.3): who has passed a message on.

use http::Version;
use http::header::{self, HeaderMap, HeaderValue};

/// Our name in `Via`: a pseudonym of this process, so that a request that
/// comes back to it is recognised. It says nothing of the address.
#[derive(Clone, Debug)]
pub(crate) struct Via {
    name: &'static str,
    /// What the proxy adds to a message of HTTP/1.0, HTTP/1.1 and HTTP/2.
    members: [HeaderValue; 3],
}

impl Via {
    pub(crate) fn new() -> Self {
        Self::named(&format!("stampede-{:016x}", fastrand::u64(..)))
    }

    /// The texts live as long as the process: a value of static text is cloned
    /// without counting its users.
    fn named(name: &str) -> Self {
        let member = |version| HeaderValue::from_static(format!("{version} {name}").leak());
        Self { name: name.to_owned().leak(), members: ["1.0", "1.1", "2"].map(member) }
    }

    /// Returns whether the message has come through here before.
    pub(crate) fn is_in(&self, headers: &HeaderMap) -> bool {
        let lines = headers.get_all(header::VIA).iter();
        let members = lines.flat_map(|line| line.as_bytes().split(|&b| b == b','));
        members.into_iter().any(|member| received_by(member) == Some(self.name.as_bytes()))
    }

    /// Says that the message was received in this version.
    pub(crate) fn add_to(&self, headers: &mut HeaderMap, received: Version) {
        let [http_10, http_11, http_2] = &self.members;
        let member = match received {
            Version::HTTP_10 => http_10,
            Version::HTTP_2 => http_2,
            _ => http_11,
        };
        headers.append(header::VIA, member.clone());
    }
}

/// `[ protocol "/" ] version RWS received-by [ RWS comment ]`
fn received_by(member: &[u8]) -> Option<&[u8]> {
    let mut words = member.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    words.nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_own_name_is_recognised_wherever_it_stands() {
        let via = Via::new();
        let mut headers = HeaderMap::new();
        headers.append("via", "1.0 fred, HTTP/1.1 p.example.net (comment)".parse().unwrap());
        assert!(!via.is_in(&headers));
        headers.append("via", format!("2 x , 1.1\t{} (c)", via.name).parse().unwrap());
        assert!(via.is_in(&headers));
        assert!(!Via::new().is_in(&headers));
    }

    #[test]
    fn it_is_added_behind_what_others_wrote() {
        let mut headers = HeaderMap::new();
        headers.append("via", "1.1 fred".parse().unwrap());
        let via = Via::named("us");
        via.add_to(&mut headers, Version::HTTP_2);
        assert_eq!(headers.get_all("via").iter().collect::<Vec<_>>(), ["1.1 fred", "2 us"]);
    }
}
