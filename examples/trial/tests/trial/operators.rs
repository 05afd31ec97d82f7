//! What an operator of the shop sees and does, and other users do not.

use http::StatusCode;
use rusqlite::Connection;
use serde_json::{Value, json};

use super::site::Site;

#[tokio::test]
async fn only_an_operator_reaches_the_figures() {
    let site = Site::open();
    let (ada, grace) = (site.log_in("Ada").await, site.log_in("Grace").await);
    site.get("/products/1").await;
    assert_eq!(site.get("/admin/products/stats").await.status, StatusCode::UNAUTHORIZED);
    let answer = site.get_as(&ada, "/admin/products/stats").await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    let answer = site.get_as(&grace, "/admin/products/stats").await;
    assert_eq!(answer.status, StatusCode::OK);
    let stats: Value = serde_json::from_str(&answer.text).unwrap();
    assert_eq!(stats["computations"], 1);
}

#[tokio::test]
async fn an_operator_purges_what_another_program_has_changed() {
    let site = Site::open();
    let grace = site.log_in("Grace").await;
    site.get("/products/1").await;
    let other = Connection::open(site.database_file()).unwrap();
    other.execute("UPDATE products SET cents = 2500 WHERE id = 1", ()).unwrap();
    assert!(site.get("/products/1").await.text.contains("2900"));

    let keys = site.get_as(&grace, "/admin/products/keys").await;
    let keys: Value = serde_json::from_str(&keys.text).unwrap();
    let row = json!({ "key": keys["keys"][0]["key"] });
    for (cache, purge) in [("products", row), ("pages", json!({ "path": "/products/1" }))] {
        let path = format!("/admin/{cache}/purge");
        let answer = site.post_as(&grace, &path, &purge.to_string()).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    }
    assert!(site.get("/products/1").await.text.contains("2500"));
}
