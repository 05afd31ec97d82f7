//! 200 calls of `get_many`.

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
            let batch = cache.get_many([number], move |keys: Vec<u64>| async move {
                let mut pairs = Vec::new();
                for key in keys {
                    pairs.push((key, load(key).await?));
                }
                Ok::<_, compile_cost::LoadError>(pairs)
            });
            batch.await.complete().unwrap();
        };
    }
    compile_cost::two_hundred!(call);
    println!("{key}");
}
