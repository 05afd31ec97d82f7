//! Pages of one user are never those of another.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::task::JoinSet;
use tokio::time::advance;
use tower_stampede::CacheOutcome;

use super::site::Site;

#[tokio::test]
async fn a_user_gets_orders_from_the_cache_and_never_those_of_another() {
    let site = Site::open();
    let (ada, grace) = (site.log_in("Ada").await, site.log_in("Grace").await);
    for expected in [CacheOutcome::Computed, CacheOutcome::Hit] {
        let answer = site.get_as(&ada, "/orders").await;
        assert_eq!((&*answer.text, answer.outcome), ("orders of Ada", Some(expected)));
        let answer = site.get_as(&grace, "/orders").await;
        assert_eq!((&*answer.text, answer.outcome), ("orders of Grace", Some(expected)));
    }
    assert_eq!(site.get("/orders").await.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn two_users_who_ask_at_once_get_their_own_pages() {
    let site = Site::open();
    let users = [("Ada", site.log_in("Ada").await), ("Grace", site.log_in("Grace").await)];
    let (site, mut requests) = (Arc::new(site), JoinSet::new());
    for _ in 0..50 {
        for path in ["orders", "account"] {
            for (name, cookie) in users.clone() {
                let site = site.clone();
                requests.spawn(async move {
                    let answer = site.get_as(&cookie, &format!("/{path}")).await;
                    assert_eq!(answer.text, format!("{path} of {name}"));
                });
            }
        }
    }
    while let Some(request) = requests.join_next().await {
        request.unwrap();
    }
    // One for each session.
    assert_eq!(site.queries(), 2);
}

#[tokio::test]
async fn the_account_is_not_stored() {
    let site = Site::open();
    let ada = site.log_in("Ada").await;
    for _ in 0..2 {
        let answer = site.get_as(&ada, "/account").await;
        assert_eq!(answer.text, "account of Ada");
        assert_ne!(answer.outcome, Some(CacheOutcome::Hit));
    }
    assert_eq!(site.shop.pages.stats().entries, 0);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ended_opens_no_page() {
    let site = Site::open();
    let ada = site.log_in("Ada").await;
    assert_eq!(site.get_as(&ada, "/orders").await.status, StatusCode::OK);
    assert_eq!(site.log_out(&ada).await.status, StatusCode::NO_CONTENT);
    assert_eq!(site.get_as(&ada, "/orders").await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(site.get_as(&ada, "/account").await.status, StatusCode::UNAUTHORIZED);
    // The cookie of no session costs one query in ten seconds.
    let queries = site.queries();
    advance(Duration::from_secs(9)).await;
    assert_eq!(site.get_as(&ada, "/account").await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(site.queries(), queries);
}

#[tokio::test]
async fn a_user_who_logs_in_is_known_although_the_session_was_unknown() {
    let site = Site::open();
    let cookie = "session=session-of-Ada";
    assert_eq!(site.get_as(cookie, "/orders").await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(site.log_in("Ada").await, cookie);
    assert_eq!(site.get_as(cookie, "/orders").await.text, "orders of Ada");
}
