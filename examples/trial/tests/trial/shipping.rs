//! A service of its own types: one call for many requests, and its own error.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::advance;
use tower::ServiceExt;
use trial::shipping::{Parcel, Quote, ShippingError, quotes};

#[tokio::test(start_paused = true)]
async fn a_hundred_requests_with_one_answer_call_the_carrier_once() {
    let calls = Arc::new(AtomicUsize::new(0));
    let quotes = quotes(calls.clone()).unwrap();
    let parcels = (0..100).map(|n| Parcel { country: "DE", grams: 2000 + n });
    let herd: Vec<_> = parcels.map(|parcel| tokio::spawn(quotes.clone().oneshot(parcel))).collect();
    for request in herd {
        assert_eq!(request.await.unwrap().unwrap(), Quote { cents: 700 });
    }
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    quotes.oneshot(Parcel { country: "DE", grams: 3000 }).await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn the_error_of_the_carrier_comes_back_and_is_remembered() {
    let calls = Arc::new(AtomicUsize::new(0));
    let quotes = quotes(calls.clone()).unwrap();
    for _ in 0..3 {
        let error = quotes.clone().oneshot(Parcel { country: "XX", grams: 1 }).await.unwrap_err();
        let own = error.inner::<ShippingError>();
        assert_eq!(own, Some(&ShippingError::NoSuchCountry("XX")));
        advance(Duration::from_secs(2)).await;
    }
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}
