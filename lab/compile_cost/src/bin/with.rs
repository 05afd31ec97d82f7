//! 200 calls of `get_or_compute_with`.

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
            let call = move || async move { load(number).await.map(tower_stampede::Computed::new) };
            cache.get_or_compute_with(number, call).await.unwrap();
        };
    }
    compile_cost::two_hundred!(call);
    println!("{key}");
}
