//! What values take in the remote, and what writing and reading them costs, with each codec.
//!
//! `cargo bench -p tower-stampede-lab --bench codecs --features __fuzz`

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde::{Deserialize, Serialize};
use tower_stampede::__fuzz::Coder;
use tower_stampede::remote::{Codec, EncryptionKeys};

const NOTICES: [&str; 6] = [
    "Ships within two days",
    "Only a few left in stock",
    "Free returns within thirty days",
    "Tested by our own workshop",
    "Made of recycled material",
    "Spare parts for ten years",
];

const CITIES: [&str; 4] = ["Berlin", "Lyon", "Porto", "Turin"];

/// What an application's API might answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Product {
    id: u64,
    name: String,
    description: String,
    price_cents: u32,
    rating: f64,
    tags: Vec<String>,
    stock: BTreeMap<String, u32>,
}

fn product(random: &mut Rng) -> Product {
    let mut one_of = |words: &[&str]| words[random.usize(..words.len())].to_owned();
    let description = [one_of(&NOTICES), one_of(&NOTICES)].join(". ");
    let cities = [one_of(&CITIES), one_of(&CITIES)];
    Product {
        id: random.u64(..1 << 40),
        name: format!("Lamp {}", random.u32(..1000)),
        description,
        price_cents: random.u32(100..100_000),
        rating: f64::from(random.u32(..50)) / 10.0,
        tags: vec!["light".into(), format!("series-{}", random.u32(..20))],
        stock: cities.map(|city| (city, random.u32(..500))).into(),
    }
}

type MakeCodec = fn() -> Codec<Vec<Product>>;

/// Products of about so many bytes of JSON.
fn products(bytes: usize) -> Vec<Product> {
    let mut random = Rng::with_seed(1);
    let mut products = Vec::new();
    let mut taken = 2;
    while products.is_empty() || taken + 100 < bytes {
        let product = product(&mut random);
        taken += serde_json::to_vec(&product).expect("it has names").len() + 1;
        products.push(product);
    }
    products
}

/// The least time that a call took, of several rounds.
fn time(mut call: impl FnMut()) -> Duration {
    let begun = Instant::now();
    call();
    let calls = (20_000_000 / begun.elapsed().as_nanos().max(1)).clamp(3, 20_000) as u32;
    let round = |_| {
        let begun = Instant::now();
        (0..calls).for_each(|_| call());
        begun.elapsed() / calls
    };
    (0..7).map(round).min().expect("there are rounds")
}

fn main() {
    let keys = || EncryptionKeys::new(1, &[7; 32]);
    let codecs: [(&str, MakeCodec); 4] = [
        ("postcard", Codec::postcard),
        ("postcard, zstd", || Codec::postcard().compress_above(512)),
        ("JSON", Codec::json),
        ("JSON, zstd", || Codec::json().compress_above(512)),
    ];
    println!(
        "| value | codec | bytes | write, µs | read, µs | encrypted: bytes | write, µs | read, µs |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for (name, size) in [("200 B", 200), ("10 KiB", 10 << 10), ("1 MiB", 1 << 20)] {
        let value = products(size);
        for (codec_name, codec) in codecs {
            let row = |codec| {
                let coder = Coder::new(codec);
                // The first fills are checked.
                (0..20).for_each(|_| drop(coder.write(&value)));
                let bytes = coder.write(&value).expect("it can be written");
                let write = time(|| drop(coder.write(&value)));
                let read = time(|| drop(coder.read(&bytes).expect("it can be read")));
                let micros = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e6);
                format!("{} | {} | {}", bytes.len(), micros(write), micros(read))
            };
            println!(
                "| {name} | {codec_name} | {} | {} |",
                row(codec()),
                row(codec().encrypt(keys()))
            );
        }
    }
}
