//! The names of entries, channels and the log in Redis.

use std::fmt;

use crate::error::ConfigError;
use crate::key::Key;

/// Rises when what is stored changes so much that old and new processes must
/// not see each other's.
const WIRE_VERSION: u32 = 2;

/// What follows the namespace in the names of legacy locks.
const LEGACY: &str = "legacy";

/// Longest key that is part of its names as it is.
const LONGEST_PLAIN: usize = 200;

/// The names of one cache: namespace, wire version, cache name.
#[derive(Clone, Debug)]
pub(super) struct Names {
    prefix: String,
    /// What begins the names of the invalidation log.
    log: String,
    secret: Option<NameSecret>,
}

/// What keys are hashed with, where names do not show them. Never printed.
#[derive(Clone, Copy)]
pub(super) struct NameSecret(pub(super) [u8; 32]);

impl fmt::Debug for NameSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NameSecret")
    }
}

/// The names of the invalidation log, which share a cluster slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogNames {
    pub(super) tags: String,
    pub(super) keys: String,
}

/// The names of one entry, which share the cluster slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EntryNames {
    pub(super) value: Vec<u8>,
    pub(super) lock: Vec<u8>,
    pub(super) right: Vec<u8>,
}

impl Names {
    pub(super) fn new(namespace: &str, cache: &str) -> Result<Self, ConfigError> {
        let below = Self::below(namespace)?;
        check(cache, &["name"])?;
        let prefix = format!("{below}{cache}");
        // The name of the cache is part of the hash tag: the logs of several caches are on
        // several nodes. No key of an entry ends like this.
        let log = format!("{prefix}:{{#{cache}}}");
        Ok(Self { prefix, log, secret: None })
    }

    pub(super) fn hashed(self, secret: Option<NameSecret>) -> Self {
        Self { secret, ..self }
    }

    /// Returns what begins the names of every cache in `namespace`.
    pub(super) fn below(namespace: &str) -> Result<String, ConfigError> {
        check_namespace(namespace)?;
        Ok(format!("{namespace}:{WIRE_VERSION}:"))
    }

    /// Returns what begins the names of the legacy locks in `namespace`.
    #[cfg(feature = "redis-legacy-lock")]
    pub(super) fn legacy(namespace: &str) -> Result<String, ConfigError> {
        check_namespace(namespace)?;
        Ok(format!("{namespace}:{LEGACY}:"))
    }

    pub(super) fn entry(&self, key: &Key) -> EntryNames {
        let tag = slot_tag(key.as_bytes(), self.secret);
        EntryNames {
            value: self.with_tag(&tag, b":v"),
            lock: self.with_tag(&tag, b":l"),
            right: self.with_tag(&tag, b":r"),
        }
    }

    pub(super) fn value(&self, key: &Key) -> Vec<u8> {
        self.with_tag(&slot_tag(key.as_bytes(), self.secret), b":v")
    }

    /// Returns the channel on which this process is woken.
    pub(super) fn inbox(&self, process: u64) -> String {
        format!("{}:in:{process:016x}", self.prefix)
    }

    /// Returns the channel on which this process is woken for keys of a slot, by a word that has
    /// the slot.
    pub(super) fn slot_inbox(&self, process: u64, tag: &str) -> String {
        format!("{}:in:{{{tag}}}:{process:016x}", self.prefix)
    }

    /// Returns the channel on which all processes hear of invalidations in a database: channels
    /// belong to the server, and keys to the database.
    pub(super) fn broadcast(&self, database: i64) -> String {
        match database {
            0 => format!("{}:inv", self.prefix),
            _ => format!("{}:inv:{database}", self.prefix),
        }
    }

    /// Returns the names of the invalidation log.
    pub(super) fn log(&self) -> LogNames {
        LogNames { tags: format!("{}:tags", self.log), keys: format!("{}:keys", self.log) }
    }

    /// Returns the name under which a probe tries to write, with the part that decides its slot.
    pub(super) fn probe(&self, tag: Option<&str>) -> String {
        match tag {
            Some(tag) => format!("{}:{{{tag}}}:probe", self.prefix),
            None => format!("{}:probe", self.prefix),
        }
    }

    fn with_tag(&self, tag: &[u8], ending: &[u8]) -> Vec<u8> {
        let mut name = Vec::with_capacity(self.prefix.len() + tag.len() + 5);
        name.extend_from_slice(self.prefix.as_bytes());
        name.extend_from_slice(b":{");
        name.extend_from_slice(tag);
        name.push(b'}');
        name.extend_from_slice(ending);
        name
    }
}

/// Returns the name of the record beside a lock, in the lock's slot: the lock's name in braces,
/// unless a part of it decides the slot. None where no name can have that slot for sure.
pub(super) fn lock_record(lock: &[u8]) -> Option<Vec<u8>> {
    const ENDING: &[u8] = b":stampede-lock";
    let has = |brace: u8| lock.contains(&brace);
    if !has(b'{') && !has(b'}') && !lock.is_empty() {
        return Some([b"{", lock, b"}", ENDING].concat());
    }
    let open = lock.iter().position(|byte| *byte == b'{')?;
    let tag = lock[open + 1..].iter().position(|byte| *byte == b'}')?;
    (tag > 0).then(|| [lock, ENDING].concat())
}

/// Braces would begin a hash tag of their own, and the three names of an entry
/// could end up in two slots; blanks and controls cannot be written in a list
/// of rights.
fn check(part: &str, fields: &'static [&'static str]) -> Result<(), ConfigError> {
    if part.is_empty() {
        return Err(ConfigError::new(fields, "is empty"));
    }
    if part.contains(['{', '}']) {
        return Err(ConfigError::new(fields, "has braces, which Redis Cluster gives a meaning"));
    }
    if part.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(ConfigError::new(fields, "has blanks or control characters"));
    }
    Ok(())
}

fn check_namespace(namespace: &str) -> Result<(), ConfigError> {
    if namespace.is_empty() {
        let reason = "is not set; without it all applications of a server would share their keys: \
                      give each application its own, such as `redis.namespace(\"shop\")`";
        return Err(ConfigError::new(&["namespace"], reason));
    }
    check(namespace, &["namespace"])?;
    // The first part of a name that is a number, or the word of legacy locks, ends the namespace: so
    // it has no such part itself. Otherwise `a:1` with the cache `b` would share its names with `a`
    // and the cache `1:b`, and a user with the rights to `a` could read `a:1`.
    let ends = |part: &&str| *part == LEGACY || part.bytes().all(|byte| byte.is_ascii_digit());
    match namespace.split(':').find(ends) {
        None => Ok(()),
        Some(part) => Err(ConfigError::new(
            &["namespace"],
            format!(
                "has the part {part:?} between colons; a number, nothing, or `{LEGACY}` there \
                 makes its names those of another namespace: replace the colon or the part"
            ),
        )),
    }
}

/// Returns what stands between the braces: the key, or its digest where there is a secret, or
/// where the key would be too long, would end the braces, or looks like a digest.
fn slot_tag(key: &[u8], secret: Option<NameSecret>) -> Vec<u8> {
    let plain = (1..=LONGEST_PLAIN).contains(&key.len())
        && key[0] != b'#'
        && !key.iter().any(|byte| matches!(byte, b'{' | b'}'));
    let digest = match secret {
        Some(NameSecret(secret)) => blake3::keyed_hash(&secret, key),
        None if plain => return key.to_vec(),
        None => blake3::hash(key),
    };
    [b"#", &digest.to_hex().as_bytes()[..32]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The slot of a key, by the cluster specification.
    fn slot(name: &[u8]) -> u16 {
        let hashed = name.iter().position(|byte| *byte == b'{').and_then(|open| {
            let rest = &name[open + 1..];
            let close = rest.iter().position(|byte| *byte == b'}')?;
            (close > 0).then(|| &rest[..close])
        });
        crc16(hashed.unwrap_or(name)) % 16384
    }

    fn crc16(bytes: &[u8]) -> u16 {
        bytes.iter().fold(0, |crc, byte| {
            (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc: u16, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
            })
        })
    }

    fn names() -> Names {
        Names::new("shop", "catalog").unwrap()
    }

    #[test]
    fn the_slot_is_computed_as_the_specification_does() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
        assert_eq!(slot(b"foo{}{bar}"), crc16(b"foo{}{bar}") % 16384);
    }

    #[test]
    fn the_record_of_a_lock_shares_its_slot() {
        for name in ["orders:42", "{orders}:42", "a{b}c{d}", "x"] {
            let record = lock_record(name.as_bytes()).expect(name);
            assert_eq!(slot(&record), slot(name.as_bytes()), "{name}");
            assert_ne!(record, name.as_bytes());
        }
        for odd in ["", "a}b", "a{b", "{}a", "}{"] {
            assert_eq!(lock_record(odd.as_bytes()), None, "{odd}");
        }
    }

    #[test]
    fn names_hold_the_namespace_the_wire_version_and_the_cache() {
        let entry = names().entry(&Key::from("user:7"));
        assert_eq!(entry.value, b"shop:2:catalog:{user:7}:v");
        assert_eq!(entry.lock, b"shop:2:catalog:{user:7}:l");
        assert_eq!(entry.right, b"shop:2:catalog:{user:7}:r");
        assert_eq!(names().value(&Key::from("user:7")), entry.value);
        assert_eq!(names().inbox(255), "shop:2:catalog:in:00000000000000ff");
        assert_eq!(names().broadcast(0), "shop:2:catalog:inv");
        assert_eq!(names().broadcast(3), "shop:2:catalog:inv:3");
        let log = names().log();
        assert_eq!(log.tags, "shop:2:catalog:{#catalog}:tags");
        assert_eq!(log.keys, "shop:2:catalog:{#catalog}:keys");
    }

    #[test]
    fn keys_that_cannot_stand_between_braces_are_digested() {
        let long = "x".repeat(201);
        for odd in ["", "a{b", "a}b", "#a", &long] {
            let tag = slot_tag(odd.as_bytes(), None);
            assert_eq!((tag.len(), tag[0]), (33, b'#'), "{odd:?}");
        }
        assert_eq!(slot_tag(&[b'x'; 200], None), [b'x'; 200]);
        assert_eq!(slot_tag(b"a#", None), b"a#");
    }

    #[test]
    fn with_a_secret_no_name_shows_its_key_and_another_secret_makes_another_name() {
        let hashed = |secret| names().hashed(Some(NameSecret([secret; 32])));
        let value = |names: &Names| names.value(&Key::from("user:7"));
        assert!(value(&hashed(1)).starts_with(b"shop:2:catalog:{#"));
        assert_eq!(value(&hashed(1)), hashed(1).entry(&Key::from("user:7")).value);
        assert_ne!(value(&hashed(1)), value(&hashed(2)));
        assert_ne!(value(&hashed(1)), hashed(1).value(&Key::from("user:8")));
        assert!(!format!("{:?}", hashed(1)).contains("[1"));
    }

    #[test]
    fn the_names_of_the_log_share_a_slot_that_another_cache_does_not_take() {
        let (log, other) = (names().log(), Names::new("shop", "users").unwrap().log());
        assert_eq!(slot(log.tags.as_bytes()), slot(log.keys.as_bytes()));
        assert_ne!(slot(log.tags.as_bytes()), slot(other.tags.as_bytes()));
    }

    #[test]
    fn a_name_that_redis_would_misread_is_refused_by_its_field() {
        for odd in ["a{b", "a}", "", "a b", "a\n"] {
            assert_eq!(Names::new(odd, "catalog").unwrap_err().fields(), ["namespace"], "{odd:?}");
            assert_eq!(Names::new("shop", odd).unwrap_err().fields(), ["name"], "{odd:?}");
        }
    }

    #[test]
    fn a_namespace_that_reads_as_a_namespace_and_a_cache_is_refused_by_its_part() {
        for (odd, part) in [
            ("a:1", "\"1\""),
            ("a:1:b", "\"1\""),
            ("2", "\"2\""),
            ("a:", "\"\""),
            ("a:legacy", "\"legacy\""),
        ] {
            let error = Names::new(odd, "b").unwrap_err();
            assert_eq!(error.fields(), ["namespace"], "{odd}");
            assert!(error.to_string().contains(part), "{odd}: {error}");
        }
        assert_eq!(Names::new("shop:v1:a1", "1:b").unwrap().broadcast(0), "shop:v1:a1:2:1:b:inv");
    }

    proptest! {
        #[test]
        fn caches_whose_names_or_namespaces_differ_share_no_name(
            a in "[a:1]{1,6}", b in "[a:1]{1,6}", c in "[a:1]{1,6}", d in "[a:1]{1,6}",
            ending in "|:in|:inv|:tags|:probe",
        ) {
            let (cache, other) = (format!("{b}{ending}"), d);
            if let (Ok(one), Ok(two)) = (Names::new(&a, &cache), Names::new(&c, &other)) {
                let all = |names: &Names| {
                    let entry = names.entry(&Key::from("k"));
                    let LogNames { tags, keys } = names.log();
                    let others =
                        [names.inbox(1), names.broadcast(0), tags, keys, names.probe(None)];
                    let others = others.map(String::into_bytes);
                    [vec![entry.value, entry.lock, entry.right], others.to_vec()].concat()
                };
                let shares = all(&one).iter().any(|name| all(&two).contains(name));
                prop_assert_eq!(shares, (&a, &cache) == (&c, &other));
            }
        }

        #[test]
        fn the_names_of_an_entry_share_their_slot(key: Vec<u8>) {
            let entry = names().entry(&Key::from_encoded(&key));
            prop_assert_eq!(slot(&entry.value), slot(&entry.lock));
            prop_assert_eq!(slot(&entry.value), slot(&entry.right));
        }

        #[test]
        fn different_keys_have_different_names(a: Vec<u8>, b: Vec<u8>) {
            let names = names();
            let (one, other) = (Key::from_encoded(&a), Key::from_encoded(&b));
            prop_assert_eq!(a == b, names.entry(&one) == names.entry(&other));
        }

        #[test]
        fn no_entry_has_the_name_of_the_log(key in "#?[a-z]{0,40}") {
            let names = Names::new("shop", key.trim_start_matches('#')).unwrap_or_else(|_| names());
            let LogNames { tags, keys } = names.log();
            let EntryNames { value, lock, right } = names.entry(&Key::from(key.as_str()));
            for name in [value, lock, right] {
                prop_assert!(name != tags.as_bytes() && name != keys.as_bytes());
            }
        }
    }
}
