//! 200 calls of a loader and `Cache::get`.

use compile_cost::load;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut key = 0;
    macro_rules! call {
        () => {
            key += 1;
            let number = key;
            let handle = tower_stampede::Stampede::in_memory(std::time::Duration::from_secs(60));
            let cache =
                tower_stampede::Cache::new(handle, |key: u64| async move { load(key).await });
            cache.get(number).await.unwrap();
        };
    }
    compile_cost::two_hundred!(call);
    println!("{key}");
}
