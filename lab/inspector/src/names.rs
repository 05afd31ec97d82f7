//! How keys and tags are written: in Redis, in the log, and in the lists of a process.
//!
//! The formats are those of wire version 2; `docs/redis.md` names what may change.

/// The wire version that this program reads.
const WIRE_VERSION: u32 = 2;

/// A key that stands in the names of Redis as it is has at most so many bytes.
const LONGEST_PLAIN: usize = 200;

/// What begins the keys of responses that `Vary` tells apart, and how much follows.
const VARIANT: (&[u8], usize) = (b"\0v", 16);

/// Keys of responses, by where the request has named its host.
const RESPONSES: [&[u8]; 3] = [b"\0h", b"\0a", b"\0c"];

/// A part that is longer than a byte can say.
const LONG: u8 = 255;

/// The names of one cache.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    prefix: String,
    pub(crate) tags: String,
    pub(crate) keys: String,
}

impl Names {
    pub(crate) fn new(namespace: &str, cache: &str) -> Self {
        let prefix = format!("{namespace}:{WIRE_VERSION}:{cache}");
        let [tags, keys] = ["tags", "keys"].map(|log| format!("{prefix}:{{#{cache}}}:{log}"));
        Self { prefix, tags, keys }
    }

    /// Returns the name of the value of a key. `None` where it is a digest of the key.
    pub(crate) fn value(&self, key: &[u8]) -> Option<Vec<u8>> {
        let is_plain = (1..=LONGEST_PLAIN).contains(&key.len())
            && key[0] != b'#'
            && !key.iter().any(|byte| matches!(byte, b'{' | b'}'));
        is_plain.then(|| [self.prefix.as_bytes(), b":{", key, b"}:v"].concat())
    }
}

/// Reads what the admin router writes: `%` and two digits for bytes that are not visible.
pub(crate) fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (digits, after) = rest.split_first_chunk::<2>()?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = after;
    }
    Some(bytes)
}

/// Writes bytes as people can read them.
pub(crate) fn text_of(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// Returns what an announcement of `key` and the entry under `other` must have in common: of a
/// key of the HTTP layer its scope, scheme, host and resource, of another one all of it.
pub(crate) fn concern_of(key: &[u8]) -> &[u8] {
    uri_in(key).unwrap_or(key)
}

/// Returns the part of a response's key that names its URI.
fn uri_in(key: &[u8]) -> Option<&[u8]> {
    let key = match key.strip_prefix(VARIANT.0) {
        Some(variant) => variant.get(VARIANT.1..)?,
        None => key,
    };
    let uri = RESPONSES.iter().find_map(|start| key.strip_prefix(*start))?;
    let mut rest = uri;
    for _ in 0..4 {
        rest = split_part(rest)?.1;
    }
    Some(&uri[..uri.len() - rest.len()])
}

/// Splits off a part that has its length before it.
fn split_part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&short, rest) = bytes.split_first()?;
    if short != LONG {
        return rest.split_at_checked(short.into());
    }
    let (long, rest) = rest.split_first_chunk()?;
    rest.split_at_checked(u32::from_be_bytes(*long) as usize)
}
