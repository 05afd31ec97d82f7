//! Recipes: one problem on each page, with code that runs as a test.
//!
#![doc = include_str!("links.md")]
#![doc = include_str!("../../docs/recipes/README.md")]

page!(repository, "recipes/repository.md");
page!(sessions, "recipes/sessions.md", feature = "axum");
page!(tenants, "recipes/tenants.md", feature = "axum");
page!(routes, "recipes/routes.md", feature = "axum");
page!(errors, "recipes/errors.md", feature = "axum");
page!(fallback, "recipes/fallback.md");
page!(two_caches, "recipes/two-caches.md", feature = "axum");
page!(outgoing_client, "recipes/outgoing-client.md", feature = "http");
page!(grpc, "recipes/grpc.md");
page!(graphql, "recipes/graphql.md", feature = "axum");
page!(model_gateway, "recipes/model-gateway.md", feature = "axum");
page!(sql_batches, "recipes/sql-batches.md");
page!(oauth_token, "recipes/oauth-token.md");
page!(warm_up, "recipes/warm-up.md");
page!(outbox, "recipes/outbox.md");
page!(observe_only, "recipes/observe-only.md", feature = "axum");
page!(php, "recipes/php.md", feature = "http");

// Their code needs crates of its own: `examples/recipes` runs it.
page!(reqwest, "recipes/reqwest.md", any());
page!(poem_and_salvo, "recipes/poem-and-salvo.md", any());
page!(sqlx, "recipes/sqlx.md", any());
page!(opentelemetry, "recipes/opentelemetry.md", any());
