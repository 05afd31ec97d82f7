use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tower_stampede::Stampede;

#[tokio::test(start_paused = true)]
async fn a_cold_key_is_computed_once() {
    let cache: Stampede<u32> = Stampede::in_memory(Duration::from_secs(60));
    let calls = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for _ in 0..10_000 {
        let (cache, calls) = (cache.clone(), calls.clone());
        tasks.push(tokio::spawn(async move {
            cache
                .get_or_compute("k", move || async move {
                    calls.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    Ok::<_, std::io::Error>(1)
                })
                .await
        }));
    }
    for task in tasks {
        assert_eq!(task.await.unwrap().unwrap(), 1);
    }
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}
