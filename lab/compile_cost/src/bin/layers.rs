//! 20 services of types of their own, each behind a layer.

use compile_cost::load;
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_stampede::Stampede;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let cache: Stampede<String> = Stampede::in_memory(std::time::Duration::from_secs(60));
    let mut key = 0;
    macro_rules! call {
        () => {
            key += 1;
            let layer = cache.layer(|number: &u64| Some(*number));
            let service = layer.layer(service_fn(|number: u64| async move { load(number).await }));
            service.oneshot(key).await.unwrap();
        };
    }
    compile_cost::twenty!(call);
    println!("{key}");
}
