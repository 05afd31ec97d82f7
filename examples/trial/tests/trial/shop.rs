//! Pages for all clients, rows of the database, and what may go wrong with them.

use std::time::Duration;

use http::StatusCode;
use rusqlite::Connection;
use tokio::time::{sleep, timeout};
use tower_stampede::{CacheOutcome, Failure};
use trial::shop::{ProductId, ShopError};

use super::site::Site;

#[tokio::test]
async fn a_hundred_clients_of_one_page_cost_one_query() {
    let site = Site::open();
    for answer in site.herd(100, "/products/1").await {
        assert_eq!(answer.status, StatusCode::OK);
        assert!(answer.text.contains("kettle"), "{}", answer.text);
    }
    assert_eq!(site.queries(), 1);
}

#[tokio::test]
async fn a_page_for_all_is_shared_by_clients_with_and_without_a_session() {
    let site = Site::open();
    let cookie = site.log_in("Ada").await;
    site.get_as(&cookie, "/products/1").await;
    assert_eq!(site.get("/products/1").await.outcome, Some(CacheOutcome::Hit));
    assert_eq!(site.get_as("session=other", "/products/1").await.outcome, Some(CacheOutcome::Hit));
    assert_eq!(site.queries(), 1);
}

#[tokio::test]
async fn a_list_loads_the_products_that_no_page_has_loaded_by_one_query() {
    let site = Site::open();
    site.get("/products/1").await;
    assert_eq!(site.queries(), 1);
    let list = site.get("/products?ids=3,1,9,2").await;
    let names = ["spoon", "kettle", "pan"].map(|name| list.text.find(name).unwrap());
    assert!(names.is_sorted(), "{}", list.text);
    assert_eq!(site.queries(), 2);
    assert!(site.get("/products/2").await.text.contains("pan"));
    assert_eq!(site.queries(), 2);
    // The route names the parameter that matters.
    let list = site.get("/products?ids=3,1,9,2&campaign=spring").await;
    assert_eq!(list.outcome, Some(CacheOutcome::Hit));
}

#[tokio::test]
async fn what_is_not_there_is_404_and_is_remembered() {
    let site = Site::open();
    for _ in 0..3 {
        assert_eq!(site.get("/products/9").await.status, StatusCode::NOT_FOUND);
    }
    assert_eq!(site.queries(), 1);
}

#[tokio::test]
async fn a_product_that_is_added_is_there_at_once() {
    let site = Site::open();
    assert_eq!(site.get("/products/9").await.status, StatusCode::NOT_FOUND);
    let whisk = r#"{ "id": 9, "name": "whisk", "cents": 700 }"#;
    assert_eq!(site.post("/products", whisk).await.status, StatusCode::CREATED);
    assert!(site.get("/products/9").await.text.contains("whisk"));
}

#[tokio::test]
async fn a_new_price_is_on_the_page_at_once() {
    let site = Site::open();
    for page in ["/products/1", "/products?ids=1"] {
        assert!(site.get(page).await.text.contains("2900"));
    }
    let answer = site.post("/products/1/price", r#"{ "cents": 2500 }"#).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.text);
    for page in ["/products/1", "/products?ids=1"] {
        assert!(site.get(page).await.text.contains("2500"));
    }
    assert_eq!(site.queries(), 2);
}

#[tokio::test]
async fn a_new_price_is_on_the_page_although_its_client_has_hung_up() {
    let site = Site::open();
    site.get("/products/1").await;
    // The write waits for the database, and the client for the write.
    let lock = site.shop.database.lock();
    let post = site.post("/products/1/price", r#"{ "cents": 2500 }"#);
    assert!(timeout(Duration::from_millis(50), post).await.is_err());
    // Nothing is invalidated before it is written: the page needs no query.
    let page = timeout(Duration::from_secs(5), site.get("/products/1")).await;
    assert_eq!(page.unwrap().outcome, Some(CacheOutcome::Hit));
    drop(lock);
    let page = async {
        while !site.get("/products/1").await.text.contains("2500") {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(5), page).await.expect("the old price stays on the page");
}

#[tokio::test]
async fn a_database_that_is_down_is_503_and_nothing_is_remembered_of_it() {
    let site = Site::open();
    let lock = Connection::open(site.database_file()).unwrap();
    lock.execute_batch("BEGIN EXCLUSIVE").unwrap();
    for _ in 0..3 {
        let answer = site.get("/products/1").await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(answer.text.contains("locked"), "{}", answer.text);
    }
    // Two more were held back.
    assert_eq!(site.queries(), 1);

    lock.execute_batch("COMMIT").unwrap();
    site.shop.products.invalidate(&ProductId(1)).await;
    assert_eq!(site.get("/products/1").await.status, StatusCode::OK);
}

#[tokio::test]
async fn the_error_of_the_database_comes_back_as_it_was() {
    let site = Site::open();
    let lock = Connection::open(site.database_file()).unwrap();
    lock.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let Err(Failure::Computation(error)) = site.shop.products.get(ProductId(1)).await else {
        panic!("the database is down");
    };
    let ShopError::DatabaseDown(error) = &*error else { panic!("{error}") };
    assert_eq!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::DatabaseBusy));

    let batch = site.shop.products.get_many([ProductId(2), ProductId(3)]).await;
    assert_eq!(batch.failures.len(), 2);
    let error: ShopError = batch.complete().unwrap_err().into();
    assert!(matches!(error, ShopError::DatabaseDown(_)), "{error}");
}
