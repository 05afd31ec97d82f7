//! The HTTP layer in one process: what it stores, for whom, for how long, and what
//! clients and the origin see of it. Time is paused.

#![cfg(feature = "http")]

#[path = "../kit/mod.rs"]
mod kit;

#[cfg(feature = "admin")]
mod admin;
#[cfg(feature = "axum")]
mod arriving_bytes;
mod attacks;
#[cfg(feature = "axum")]
mod body;
#[cfg(feature = "axum")]
mod clients;
#[cfg(feature = "axum")]
mod codings;
#[cfg(feature = "axum")]
mod cold_ranges;
#[cfg(feature = "axum")]
mod conditions;
#[cfg(feature = "axum")]
mod credential_settings;
mod credentials;
#[cfg(feature = "axum")]
mod engine_edges;
#[cfg(feature = "axum")]
mod fields;
#[cfg(feature = "axum")]
mod heads;
#[cfg(feature = "axum")]
mod herd;
#[cfg(feature = "axum")]
mod hostile_input;
#[cfg(feature = "axum")]
mod in_front_of_a_router;
#[cfg(feature = "axum")]
mod keys;
mod lifetimes;
#[cfg(feature = "axum")]
mod methods;
#[cfg(feature = "axum")]
mod named_cookies;
#[cfg(feature = "axum")]
mod neighbour_layers;
#[cfg(feature = "axum")]
mod nested_at_random;
#[cfg(feature = "axum")]
mod nested_layers;
#[cfg(feature = "axum")]
mod nested_privacy;
#[cfg(feature = "axum")]
mod nested_rewrites;
#[cfg(all(feature = "axum", feature = "remote", feature = "test-util"))]
mod outages;
#[cfg(feature = "axum")]
mod own_etags;
#[cfg(feature = "axum")]
mod owned_routes;
#[cfg(feature = "axum")]
mod placement;
#[cfg(feature = "axum")]
mod privacy_model;
#[cfg(all(feature = "axum", feature = "remote", feature = "test-util"))]
mod privacy_storm;
#[cfg(feature = "axum")]
mod query;
#[cfg(feature = "axum")]
mod ranges;
#[cfg(feature = "axum")]
mod refresh_lifecycle;
#[cfg(feature = "axum")]
mod refresh_pauses;
mod refresh_requests;
#[cfg(feature = "axum")]
mod request_directives;
#[cfg(feature = "axum")]
mod request_identity;
#[cfg(feature = "axum")]
mod route_rules;
#[cfg(feature = "axum")]
mod safe_posts;
#[cfg(feature = "axum")]
mod second_leader;
#[cfg(feature = "axum")]
mod sharing;
#[cfg(feature = "axum")]
mod sharing_model;
#[cfg(feature = "axum")]
mod soft_purges;
#[cfg(feature = "axum")]
mod status_lifetimes;
#[cfg(feature = "axum")]
mod steering;
#[cfg(feature = "axum")]
mod stored_responses;
#[cfg(feature = "axum")]
mod streaming;
#[cfg(feature = "axum")]
mod uncacheable;
#[cfg(feature = "axum")]
mod unreachable_origin;
#[cfg(all(feature = "axum", feature = "remote", feature = "test-util"))]
mod validation;
#[cfg(feature = "axum")]
mod variants;
#[cfg(all(feature = "axum", feature = "tracing"))]
mod write_hint;
#[cfg(feature = "axum")]
mod writes;
