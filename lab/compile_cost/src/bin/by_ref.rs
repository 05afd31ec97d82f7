//! 200 calls of `entry`.

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
            cache
                .entry(number)
                .get_or_compute(move || async move { load(number).await })
                .await
                .unwrap();
        };
    }
    compile_cost::two_hundred!(call);
    println!("{key}");
}
