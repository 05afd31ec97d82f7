//! The crate as its users use it: each module is a small application.

pub mod rates;
pub mod shipping;
pub mod shop;
