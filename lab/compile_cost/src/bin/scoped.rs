//! 200 calls of `get_or_compute_scoped`.

use compile_cost::load;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let cache: tower_stampede::Stampede<String> =
        tower_stampede::Stampede::in_memory(std::time::Duration::from_secs(60));
    let mut key = 0;
    macro_rules! call {
        () => {
            key += 1;
            let number = key;
            cache.get_or_compute_scoped(number, || async { load(number).await }).await.unwrap();
        };
    }
    compile_cost::two_hundred!(call);
    println!("{key}");
}
