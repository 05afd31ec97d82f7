//! What the applications of this workspace do, as their users see it.

mod client;
mod clock;
mod operators;
mod processes;
mod rates;
mod sessions;
mod shipping;
mod shop;
mod site;
