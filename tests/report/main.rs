//! The report of the benches: its page, and the figures that the texts quote from it.

mod figures;
mod fixtures;
mod page;
#[path = "../../benches/report/mod.rs"]
mod report;
