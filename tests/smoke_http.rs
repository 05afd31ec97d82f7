use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::{Router, body::Body, http::Request, routing::get};
use tower::ServiceExt;
use tower_stampede::Stampede;

#[tokio::test(start_paused = true)]
async fn axum_router_layer_works() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let cache = Stampede::in_memory(Duration::from_secs(60));
    let app: Router = Router::new()
        .route(
            "/report",
            get(move || {
                counted.fetch_add(1, Ordering::SeqCst);
                async {
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    "expensive"
                }
            }),
        )
        .layer(cache.http_layer());
    let mut tasks = Vec::new();
    for _ in 0..1000 {
        let app = app.clone();
        tasks.push(tokio::spawn(async move {
            app.oneshot(Request::get("/report").body(Body::empty()).unwrap()).await.unwrap()
        }));
    }
    for task in tasks {
        let response = task.await.unwrap();
        assert_eq!(response.status(), 200);
    }
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    let response = app.oneshot(Request::get("/report").body(Body::empty()).unwrap()).await.unwrap();
    println!("{response:?}");
}
