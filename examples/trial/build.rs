//! Makes the gRPC client and server of `src/rates.rs` from a description in Rust.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let latest = Method::builder()
        .name("latest")
        .route_name("Latest")
        .input_type("crate::rates::Pair")
        .output_type("crate::rates::Rate")
        .codec_path("tonic_prost::ProstCodec")
        .build();
    let rates = Service::builder().package("trial").name("Rates").method(latest).build();
    Builder::new().compile(&[rates]);
}
