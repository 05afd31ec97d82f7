//! From another cache to this one: a table of words, and the same program before and after.

page!(moka, "migration/moka.md");
page!(amalgam_cache, "migration/amalgam-cache.md");
page!(cachet, "migration/cachet.md");
page!(fusioncache, "migration/fusioncache.md");
page!(nginx, "migration/nginx.md", feature = "axum");
page!(varnish, "migration/varnish.md", feature = "axum");
page!(laravel_flexible, "migration/laravel-flexible.md");
page!(dogpile, "migration/dogpile.md");
