//! Tests of the observer from inside.

use std::panic::panic_any;

use crate::observe::contain_panic;
use crate::observe::occurrence::ComputationEnd;

#[test]
fn a_panic_is_contained_even_if_the_drop_of_its_payload_panics() {
    struct PanicsInDrop;
    impl Drop for PanicsInDrop {
        fn drop(&mut self) {
            panic!("a payload panics when it is dropped");
        }
    }
    assert_eq!(contain_panic(|| 1), Some(1));
    assert_eq!(contain_panic(|| -> u8 { panic_any(PanicsInDrop) }), None);
}

#[test]
fn each_end_of_a_computation_has_the_word_at_its_place() {
    assert_eq!(ComputationEnd::Declined.as_str(), "declined");
    assert_eq!(ComputationEnd::Dropped.as_str(), "dropped");
    assert_eq!(ComputationEnd::Dropped as usize + 1, ComputationEnd::WORDS.len());
}

#[test]
fn from_failed_on_every_end_is_a_failure() {
    assert!(
        ![ComputationEnd::Stored, ComputationEnd::Shared, ComputationEnd::Declined]
            .iter()
            .any(|end| end.is_failure())
    );
    let failures = [
        ComputationEnd::Failed,
        ComputationEnd::TimedOut,
        ComputationEnd::Panicked,
        ComputationEnd::Dropped,
    ];
    assert!(failures.iter().all(|end| end.is_failure()));
}
