//! What stands in an envelope that is whole.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tower_stampede::__fuzz as door;

fuzz_target!(|bytes: Vec<u8>| {
    let bytes = Bytes::from(bytes);
    let _ = door::response(&bytes);
    let _ = door::open(&door::wrap(bytes));
});
