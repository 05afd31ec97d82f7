//! Handlers under tokio's paused time: nothing sleeps, and every moment is exact.
//!
//! The database is the real one. tokio holds its clock while a task of `spawn_blocking` runs.

use std::time::Duration;

use http::StatusCode;
use rusqlite::Connection;
use tokio::time::{advance, sleep};
use tower_stampede::CacheOutcome;

use super::site::Site;

#[tokio::test(start_paused = true)]
async fn a_page_is_fresh_for_ten_seconds_then_stale_while_it_is_refreshed() {
    let site = Site::open();
    assert_eq!(site.get("/products/1").await.outcome, Some(CacheOutcome::Computed));
    advance(Duration::from_millis(9_999)).await;
    assert_eq!(site.get("/products/1").await.outcome, Some(CacheOutcome::Hit));

    advance(Duration::from_millis(1)).await;
    assert_eq!(site.get("/products/1").await.outcome, Some(CacheOutcome::Stale));
    sleep(Duration::from_millis(1)).await;
    assert_eq!(site.get("/products/1").await.outcome, Some(CacheOutcome::Hit));
    // The row lives longer than the page.
    assert_eq!(site.queries(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_page_that_has_expired_is_made_again() {
    let site = Site::open();
    site.get("/products/1").await;
    advance(Duration::from_secs(90)).await;
    assert_eq!(site.get("/products/1").await.outcome, Some(CacheOutcome::Computed));
    assert_eq!(site.queries(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_a_hundred_requests_after_the_end_of_a_page_is_one_query() {
    let site = Site::open();
    site.get("/products/1").await;
    advance(Duration::from_secs(90)).await;
    for answer in site.herd(100, "/products/1").await {
        assert_eq!(answer.status, StatusCode::OK);
    }
    assert_eq!(site.queries(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_there_is_looked_for_again_after_its_own_lifetimes() {
    let site = Site::open();
    // The page lives for 5 s, and that there is no row is remembered for 10 s.
    for (seconds, queries) in [(0, 1), (9, 1), (6, 2)] {
        advance(Duration::from_secs(seconds)).await;
        assert_eq!(site.get("/products/9").await.status, StatusCode::NOT_FOUND);
        assert_eq!(site.queries(), queries);
    }
}

#[tokio::test(start_paused = true)]
async fn a_database_that_is_back_is_asked_after_a_second() {
    let site = Site::open();
    let lock = Connection::open(site.database_file()).unwrap();
    lock.execute_batch("BEGIN EXCLUSIVE").unwrap();
    assert_eq!(site.get("/products/1").await.status, StatusCode::SERVICE_UNAVAILABLE);
    lock.execute_batch("COMMIT").unwrap();
    advance(Duration::from_millis(999)).await;
    assert_eq!(site.get("/products/1").await.status, StatusCode::SERVICE_UNAVAILABLE);
    advance(Duration::from_millis(1)).await;
    assert_eq!(site.get("/products/1").await.status, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_row_that_is_stale_stands_in_while_the_database_is_down() {
    let site = Site::open();
    site.get("/products/1").await;
    let lock = Connection::open(site.database_file()).unwrap();
    lock.execute_batch("BEGIN EXCLUSIVE").unwrap();
    advance(Duration::from_secs(61)).await;
    assert_eq!(site.get("/products/1").await.status, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_list_does_not_look_again_for_what_is_not_there() {
    let site = Site::open();
    for (seconds, queries) in [(0, 1), (11, 2), (9, 2), (11, 3)] {
        advance(Duration::from_secs(seconds)).await;
        site.shop.pages.invalidate_all().await;
        let list = site.get("/products?ids=1,9").await;
        assert_eq!(list.status, StatusCode::OK);
        assert_eq!(site.queries(), queries);
    }
}

#[tokio::test(start_paused = true)]
async fn the_orders_of_a_user_are_refreshed_in_the_background_for_this_user() {
    let site = Site::open();
    let cookies = [("Ada", site.log_in("Ada").await), ("Grace", site.log_in("Grace").await)];
    let rounds = [(0, CacheOutcome::Computed), (10, CacheOutcome::Stale), (0, CacheOutcome::Hit)];
    for (seconds, outcome) in rounds {
        advance(Duration::from_secs(seconds)).await;
        for (name, cookie) in &cookies {
            let answer = site.get_as(cookie, "/orders").await;
            assert_eq!((answer.text, answer.outcome), (format!("orders of {name}"), Some(outcome)));
        }
        sleep(Duration::from_millis(1)).await;
    }
}
