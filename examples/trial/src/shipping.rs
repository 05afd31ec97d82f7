//! A service of its own types behind the layer for any tower service.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tower::limit::ConcurrencyLimitLayer;
use tower::{Service, ServiceBuilder, service_fn};
use tower_stampede::{ConfigError, FailureAction, Stampede};

/// Asks what a parcel costs.
#[derive(Clone, Debug)]
pub struct Parcel {
    pub country: &'static str,
    pub grams: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Quote {
    pub cents: u32,
}

#[derive(Debug, PartialEq)]
pub enum ShippingError {
    NoSuchCountry(&'static str),
}

impl fmt::Display for ShippingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::NoSuchCountry(country) = self;
        write!(f, "no parcels to {country}")
    }
}

impl std::error::Error for ShippingError {}

/// Quotes for parcels. The carrier answers one request at a time; quotes do not differ within
/// a kilogram, so the request is turned into what matters of it for the key.
pub fn quotes(
    calls: Arc<AtomicUsize>,
) -> Result<
    impl Service<Parcel, Response = Quote, Error = tower_stampede::Error, Future: Send> + Clone,
    ConfigError,
> {
    let cache = Stampede::builder("quotes")
        .ttl(Duration::from_secs(60))
        .on_failure(|error| match error.downcast_ref::<ShippingError>() {
            Some(ShippingError::NoSuchCountry(_)) => {
                FailureAction::Remember(Duration::from_secs(5))
            }
            None => FailureAction::Hold,
        })
        .build()?;
    let carrier = service_fn(move |parcel: Parcel| {
        calls.fetch_add(1, Ordering::SeqCst);
        ask_carrier(parcel)
    });
    Ok(ServiceBuilder::new()
        .layer(cache.layer(|parcel: &Parcel| Some((parcel.country, parcel.grams / 1000))))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(carrier))
}

async fn ask_carrier(parcel: Parcel) -> Result<Quote, ShippingError> {
    tokio::time::sleep(Duration::from_millis(200)).await;
    match parcel.country {
        "DE" => Ok(Quote { cents: 500 + parcel.grams / 1000 * 100 }),
        country => Err(ShippingError::NoSuchCountry(country)),
    }
}
