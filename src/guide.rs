//! Longer texts: how the crate works, and how to live with it.
//!
//! Every piece of code in them runs as a test.

#[doc = include_str!("../docs/how-it-works.md")]
pub mod how_it_works {}

#[doc = include_str!("../docs/time-outs.md")]
pub mod time_outs {}

// Always to be read; its code needs the manual clock.
#[cfg_attr(
    any(not(doctest), feature = "test-util"),
    doc = include_str!("../docs/testing.md")
)]
#[cfg_attr(all(doctest, not(feature = "test-util")), doc = "Testing.")]
pub mod testing {}
