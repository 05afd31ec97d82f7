//! Envelopes whose payload is compressed, whose content is encrypted, or both.

use crate::remote::codec::coding::EncryptionKeys;
use crate::remote::envelope::*;

const MAX: usize = 1 << 20;

/// Each bit of an envelope changed at random; `BIT_FLIPS=1000000` sets how many.
fn flips() -> usize {
    std::env::var("BIT_FLIPS").map_or(20_000, |n| n.parse().expect("a whole number"))
}

fn keys(number: u32) -> EncryptionKeys {
    EncryptionKeys::new(number, &[number as u8; 32])
}

fn coding(keys: Option<EncryptionKeys>, compressed_above: Option<usize>) -> EnvelopeCoding {
    EnvelopeCoding { number: 3, compressed_above, keys, scope: "shop\ncatalog".into() }
}

/// Plain, compressed, encrypted, and both.
fn codings() -> [EnvelopeCoding; 4] {
    [
        coding(None, None),
        coding(None, Some(64)),
        coding(Some(keys(1)), None),
        coding(Some(keys(1)), Some(64)),
    ]
}

fn envelope(kind: Kind, payload: impl Into<Bytes>) -> Envelope {
    Envelope {
        kind,
        started: ServerTime::from_millis(1_700_000_000_000),
        stamp: Epoch::new(5).map(|epoch| Stamp::new(epoch, 6)),
        fresh: Duration::from_secs(60),
        stale_for: Duration::from_secs(600),
        stale_if_error: Duration::from_secs(3600),
        kept_longer: Duration::from_secs(600),
        took: Duration::from_millis(30),
        age: Duration::from_millis(40),
        tags: vec!["secret-tag".into()],
        validator: Some("secret-validator".into()),
        payload: payload.into(),
    }
}

fn secret() -> Envelope {
    envelope(Kind::Value, "the secret value ".repeat(20))
}

fn write(envelope: &Envelope, coding: &EnvelopeCoding) -> Bytes {
    encode(envelope, &"secret-key".into(), coding, Version::new(42).unwrap()).unwrap()
}

fn read(bytes: &[u8], coding: &EnvelopeCoding) -> Result<Envelope, Damage> {
    let bytes = Bytes::copy_from_slice(bytes);
    open(&bytes, &"secret-key".into(), coding, MAX)
}

#[test]
fn what_is_written_in_any_coding_is_read_by_the_same_one() {
    let random: Vec<u8> = (0..300).map(|_| fastrand::u8(..)).collect();
    let marker = Bytes::from_static(&[7; 8]);
    let envelopes = [
        secret(),
        envelope(Kind::Value, random),
        envelope(Kind::Value, ""),
        envelope(Kind::Uncacheable, marker),
    ];
    for envelope in envelopes {
        for coding in codings() {
            let bytes = write(&envelope, &coding);
            assert_eq!(read(&bytes, &coding).unwrap(), envelope, "{coding:?}");
            assert_eq!(version_of(&bytes), Version::new(42));
        }
    }
}

#[test]
fn each_coding_does_what_it_says() {
    let shows =
        |bytes: &[u8], word: &str| bytes.windows(word.len()).any(|at| at == word.as_bytes());
    let [plain, compressed, encrypted, both] = codings().map(|coding| write(&secret(), &coding));
    assert_eq!([plain[3], compressed[3], encrypted[3], both[3]], [8, 10, 12, 14]);
    assert!(compressed.len() + 200 < plain.len() && both.len() + 150 < plain.len());
    for word in ["secret-key", "secret-tag", "secret-validator", "the secret value"] {
        assert!(shows(&plain, word));
        assert!(!shows(&encrypted, word) && !shows(&both, word), "{word}");
    }
    // The same again is not seen to be the same.
    assert_ne!(encrypted[HEAD..], write(&secret(), &codings()[2])[HEAD..]);
}

#[test]
fn a_reader_with_another_coding_reads_a_miss_or_the_value() {
    let [plain, compressed, encrypted, both] = codings();
    let outcome =
        |from: &EnvelopeCoding, to| read(&write(&secret(), from), to).map(|got| got == secret());
    // One that compresses reads both; one that encrypts reads nothing else.
    assert_eq!(outcome(&plain, &compressed), Ok(true));
    assert_eq!(outcome(&compressed, &plain), Err(Damage::Payload));
    assert_eq!(outcome(&encrypted, &both), Ok(true));
    assert_eq!(outcome(&both, &encrypted), Err(Damage::Payload));
    for (from, to) in [(&plain, &encrypted), (&encrypted, &plain), (&compressed, &both)] {
        assert_eq!(outcome(from, to), Err(Damage::Decryption));
    }
}

#[test]
fn an_encrypted_value_is_a_miss_in_every_other_place() {
    let good = coding(Some(keys(1)), None);
    let bytes = write(&secret(), &good);
    let find =
        |key: &str, coding: &EnvelopeCoding| open(&bytes, &key.into(), coding, MAX).unwrap_err();
    assert_eq!(find("other-key", &good), Damage::Decryption);
    let elsewhere = EnvelopeCoding { scope: "shop\nusers".into(), ..coding(Some(keys(1)), None) };
    assert_eq!(find("secret-key", &elsewhere), Damage::Decryption);
    // Of another type, where a client has written its number there.
    let mut moved = bytes.to_vec();
    moved[84..88].copy_from_slice(&4_u32.to_be_bytes());
    seal(&mut moved);
    let other_type = EnvelopeCoding { number: 4, ..coding(Some(keys(1)), None) };
    assert_eq!(read(&moved, &other_type), Err(Damage::Decryption));
    // An unknown key, and another one of the same number.
    assert_eq!(find("secret-key", &coding(Some(keys(2)), None)), Damage::Decryption);
    let same_number = EncryptionKeys::new(1, &[9; 32]);
    assert_eq!(find("secret-key", &coding(Some(same_number), None)), Damage::Decryption);
}

/// With a right checksum, so that the encryption alone is what finds it.
#[test]
fn a_million_flipped_bits_are_a_million_misses() {
    let coding = coding(Some(keys(1)), Some(64));
    let bytes = write(&secret(), &coding);
    let mut random = fastrand::Rng::with_seed(1);
    for n in 0..flips() {
        let mut changed = bytes.to_vec();
        let at = loop {
            let at = random.usize(..bytes.len());
            // A server replaces the version, and the checksum is made anew.
            if !(VERSION.start..CHECKSUM.end).contains(&at) {
                break at;
            }
        };
        changed[at] ^= 1 << random.u8(..8);
        seal(&mut changed);
        assert!(read(&changed, &coding).is_err(), "flip {n} in byte {at}");
    }
}

#[test]
fn a_compressed_value_of_too_many_bytes_is_a_miss() {
    let coding = coding(None, Some(64));
    let large = envelope(Kind::Value, vec![0; MAX + 1]);
    let bytes = write(&large, &coding);
    assert!(bytes.len() < 1000, "a bomb");
    assert_eq!(read(&bytes, &coding), Err(Damage::Payload));
    let just = envelope(Kind::Value, vec![0; MAX]);
    assert!(read(&write(&just, &coding), &coding).is_ok());
    // Whatever it says of its size.
    for at in HEAD..bytes.len() {
        let mut liar = bytes.to_vec();
        liar[at] ^= 0xff;
        seal(&mut liar);
        let _ = read(&liar, &coding);
    }
}

#[test]
fn a_new_key_comes_without_a_miss_if_all_can_read_it_first() {
    let old = coding(Some(keys(1)), None);
    let reads_new = coding(Some(keys(1).and_read(2, &[2; 32])), None);
    let writes_new = coding(Some(keys(2).and_read(1, &[1; 32])), None);
    let new = coding(Some(keys(2)), None);
    for (from, to) in [(&old, &reads_new), (&reads_new, &old), (&reads_new, &writes_new)] {
        assert_eq!(read(&write(&secret(), from), to).unwrap(), secret());
    }
    for (from, to) in [(&writes_new, &reads_new), (&writes_new, &new), (&new, &writes_new)] {
        assert_eq!(read(&write(&secret(), from), to).unwrap(), secret());
    }
    assert_eq!(read(&write(&secret(), &old), &new), Err(Damage::Decryption));
    assert!(!format!("{new:?}").contains("[2, 2"));
}
