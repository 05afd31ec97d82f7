//! Searches the models. See README.md.
mod checker;
mod protocol;
mod rules;
mod scopes;
mod system;

fn main() {}
