//! Networks between processes and Redis that delay, lose, cut and half-open.

use tower_stampede::Health;

use crate::kit::origin::{MS, Origin};
use crate::kit::redis::{Proxy, Server, eventually};
use crate::kit::redis_caches::*;

/// Processes behind one network that misbehaves as long as the test says.
struct Behind {
    server: Server,
    proxy: Proxy,
    caches: Vec<Cache>,
}

impl Behind {
    async fn hasty() -> Self {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        let caches = hasty_ones(4, &proxy.url()).await;
        Self { server, proxy, caches }
    }

    async fn patient() -> Self {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        let caches = processes(4, &proxy.url());
        all_listen(&caches).await;
        Self { server, proxy, caches }
    }

    /// No process is harmed while the fault lasts, and soon no request asks
    /// Redis; then all is well again.
    async fn survives(&self, fault: impl FnOnce(&Proxy)) {
        let held = Held::by(&self.caches).await;
        let mut breakers: Vec<_> = self.caches.iter().map(Breaker::of).collect();
        fault(&self.proxy);
        for _ in 0..5 {
            assert_unharmed(&self.caches, &held).await;
        }
        for (cache, breaker) in self.caches.iter().zip(&mut breakers) {
            breaker.has_opened().await;
            assert_left_alone(cache).await;
        }
        self.proxy.pass();
        assert_healed(&self.server, &self.caches).await;
    }

    /// As long as it lasts, and afterwards, one computes for all.
    async fn costs_nothing(&self) {
        for _ in 0..5 {
            let (origin, key) = (Origin::taking(50 * MS), fresh_key());
            herd(&self.caches, 20, &origin, &key).await;
            assert_eq!(origin.calls(), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_come_too_late_open_the_breaker() {
    Behind::hasty().await.survives(|proxy| proxy.delay(3 * OP_TIMEOUT)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_handshake_after_a_cut_is_waited_for() {
    let behind = Behind::hasty().await;
    // Each call is answered at once, so that none may take longer than `op_timeout`.
    behind.costs_nothing().await;
    behind.proxy.slow_handshakes(OP_TIMEOUT * 3 / 2);
    for _ in 0..2 {
        behind.proxy.cut();
        behind.costs_nothing().await;
    }
    let away = behind.caches.iter().filter(|cache| cache.health() != Health::Up).count();
    assert_eq!(away, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_come_late_are_waited_for() {
    let behind = Behind::patient().await;
    behind.proxy.delay(100 * MS);
    behind.costs_nothing().await;
    behind.proxy.pass();
    assert_healed(&behind.server, &behind.caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_leave_no_lease_behind() {
    Behind::hasty().await.survives(Proxy::lose_replies).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_whose_reply_is_lost_is_given_up() {
    let Behind { server, proxy, caches } = Behind::hasty().await;
    let origin = Origin::new();
    // The look gets its reply, the lease does not.
    proxy.cut_after(b"$-1\r\n".len());
    load(&caches[0], &origin, "k").await;
    proxy.pass();
    let lock = record("k", 'l');
    eventually("the lease is given up", || server.cli(&["GET", &lock]).is_nil()).await;
    assert_eq!(origin.calls(), 1);
    assert_healed(&server, &caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_requests_open_the_breaker() {
    Behind::hasty().await.survives(Proxy::swallow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_connections_are_given_up() {
    Behind::hasty().await.survives(Proxy::stall).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_connections_open_the_breaker() {
    let refuse = |proxy: &Proxy| {
        proxy.refuse_connections(true);
        proxy.cut();
    };
    Behind::hasty().await.survives(refuse).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_cut_in_the_middle_open_the_breaker() {
    Behind::hasty().await.survives(|proxy| proxy.cut_after(0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_cut_in_the_middle_is_not_taken_for_a_value() {
    let behind = Behind::patient().await;
    let origin = Origin::new();
    for bytes in [1, 4, 7, 30, 60] {
        let key = fresh_key();
        load(&behind.caches[0], &origin, &*key).await;
        let value = record(&key, 'v');
        eventually("it is filled", || !behind.server.cli(&["GET", &value]).is_nil()).await;
        let before = origin.calls();
        behind.proxy.cut_after(bytes);
        let proxy = &behind.proxy;
        let (value, ()) = tokio::join!(load(&behind.caches[1], &origin, &*key), async {
            let accepted = proxy.accepted();
            eventually("it was cut", || proxy.accepted() > accepted).await;
            proxy.pass();
        });
        // Asked for again; or computed, if that was cut as well.
        let calls = origin.calls();
        assert!(calls <= before + 1, "cut after {bytes} bytes");
        assert_eq!(value, calls as u64, "cut after {bytes} bytes");
    }
    assert_healed(&behind.server, &behind.caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_all_the_time_cost_nothing_but_time() {
    let behind = Behind::patient().await;
    for _ in 0..10 {
        let before = behind.proxy.accepted();
        behind.proxy.cut();
        // A lease whose grant is cut off on its way is used by no process, and costs a call.
        eventually("all have connected again", || {
            behind.proxy.accepted() >= before + behind.caches.len()
        })
        .await;
        behind.costs_nothing().await;
    }
    assert_healed(&behind.server, &behind.caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_subscribers_those_who_wait_poll() {
    let behind = Behind::patient().await;
    behind.proxy.block_subscribers(true);
    eventually("nobody hears anything", || {
        behind.caches.iter().all(|cache| cache.health() == Health::Degraded)
    })
    .await;
    behind.costs_nothing().await;
    let polls: u64 = behind.caches.iter().map(|cache| cache.stats().wakes_by_poll).sum();
    let pushes: u64 = behind.caches.iter().map(|cache| cache.stats().wakes_by_push).sum();
    assert!(polls >= 15 && pushes == 0, "{polls} polls, {pushes} pushes");
    behind.proxy.pass();
    behind.costs_nothing().await;
    assert_healed(&behind.server, &behind.caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_without_a_subscriber_ends_soon_after_the_fill() {
    let behind = Behind::patient().await;
    behind.proxy.block_subscribers(true);
    eventually("nobody hears anything", || {
        behind.caches.iter().all(|cache| cache.health() == Health::Degraded)
    })
    .await;
    let gated = Gated::new();
    let leader = gated.lead(&behind.caches[0], "k").await;
    let waiter = gated.ask(&behind.caches[1], "k");
    eventually("it polls", || behind.caches[1].stats().wakes_by_poll > 3).await;
    assert_eq!(registered(&behind.server, "k"), 0, "who cannot hear does not register");
    gated.open();
    assert_eq!(answer(leader).await, 1);
    assert_eq!(answer(waiter).await, 1);
    assert_eq!(gated.calls(), 1);
}
