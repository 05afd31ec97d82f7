//! What an operator needs beside the pages: dashboard and alerts, and where it runs.
//!
#![doc = include_str!("links.md")]
#![doc = include_str!("../../docs/operations/README.md")]

page!(where_it_runs, "operations/where-it-runs.md");
