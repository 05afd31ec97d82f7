//! gRPC, over a real connection: one computation on the server, one call of the client, and
//! the status of the server for each caller.

use std::sync::atomic::Ordering;

use tonic::Code;
use tonic::transport::{Channel, Server};
use trial::rates::{CachedRates, Calls, Pair, Rates, RatesClient, RatesServer};

/// Starts a server, and returns what it counts and a channel to it.
async fn start_server() -> (Calls, Channel) {
    let calls = Calls::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let service = RatesServer::new(Rates::new(calls.clone()).unwrap());
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    (calls, channel.connect().await.unwrap())
}

fn pair(from: &str, to: &str) -> Pair {
    Pair { from: from.to_owned(), to: to.to_owned() }
}

#[tokio::test]
async fn fifty_calls_are_one_computation_on_the_server() {
    let (calls, channel) = start_server().await;
    let herd: Vec<_> = (0..50)
        .map(|_| {
            let mut client = RatesClient::new(channel.clone());
            tokio::spawn(async move { client.latest(pair("EUR", "USD")).await })
        })
        .collect();
    for call in herd {
        assert_eq!(call.await.unwrap().unwrap().into_inner().value, 1.25);
    }
    assert_eq!(calls.received.load(Ordering::SeqCst), 50);
    assert_eq!(calls.computed.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn fifty_callers_of_a_cached_client_are_one_call_of_the_server() {
    let (calls, channel) = start_server().await;
    let client = CachedRates::new(channel).unwrap();
    let herd: Vec<_> = (0..50)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.latest(pair("EUR", "USD")).await })
        })
        .collect();
    for call in herd {
        assert_eq!(call.await.unwrap().unwrap(), 1.25);
    }
    assert_eq!(calls.received.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn the_status_of_the_server_reaches_every_caller_and_is_remembered() {
    let (calls, channel) = start_server().await;
    let client = CachedRates::new(channel).unwrap();
    for _ in 0..3 {
        let status = client.latest(pair("EUR", "XXX")).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::NotFound, "no rate from EUR to XXX"));
    }
    assert_eq!(calls.received.load(Ordering::SeqCst), 1);
    // A remembered answer is a hit; what is held back would be refused.
    let stats = client.stats();
    assert_eq!((stats.hits, stats.refused), (2, 0));
}
