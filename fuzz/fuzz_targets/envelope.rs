//! Whatever stands in the remote, as it is and behind a right checksum.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tower_stampede::__fuzz as door;

fuzz_target!(|bytes: Vec<u8>| {
    let mut bytes = bytes;
    let _ = door::open(&Bytes::from(bytes.clone()));
    door::seal(&mut bytes);
    let _ = door::open(&Bytes::from(bytes));
});
