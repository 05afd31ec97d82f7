//! 200 calls of moka's `try_get_with`.

use compile_cost::load;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let cache: moka::future::Cache<u64, String> = moka::future::Cache::new(1000);
    let mut key = 0;
    macro_rules! call {
        () => {
            key += 1;
            let number = key;
            cache.try_get_with(number, async move { load(number).await }).await.unwrap();
        };
    }
    compile_cost::two_hundred!(call);
    println!("{key}");
}
