//! The handle without tower, before a slow database: absent rows are remembered for less long, and a
//! write ends the use of what it changed.
//!
//! ```sh
//! cargo run --example database_loader
//! ```

use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::RwLock;
use tower_stampede::{Computed, Stampede};

/// Stand for a database that takes its time: the name of user 7, and how often it was asked.
static NAME: RwLock<Option<String>> = RwLock::const_new(None);
static QUERIES: AtomicU32 = AtomicU32::new(0);

/// What the rest of the application holds. `Option`: that there is no such user is an answer too.
#[derive(Clone)]
struct Users(Stampede<Option<String>>);

impl Users {
    /// One caller loads; callers that come meanwhile get its value.
    async fn name(&self, id: u64) -> Result<Option<String>, tower_stampede::Error> {
        let load = move || async move {
            QUERIES.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(100)).await;
            let name = NAME.read().await.clone();
            Ok::<_, io::Error>(Computed::new(name).tag(format!("user:{id}")))
        };
        self.0.get_or_compute_with(("name", id), load).await
    }

    /// Writes, then ends the use of everything that carries the user's tag; also of what is being
    /// loaded at this moment.
    async fn rename(&self, id: u64, name: &str) {
        *NAME.write().await = Some(name.to_owned());
        self.0.invalidate_tag(format!("user:{id}")).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let cache = Stampede::builder("users").ttl(Duration::from_secs(60));
    let users = Users(cache.negative_ttl(Duration::from_secs(5)).build()?);
    let queries = || QUERIES.load(Ordering::Relaxed);

    let readers = || (0..1000).map(|_| users.name(7));
    futures_util::future::try_join_all(readers()).await?;
    println!("a user who does not exist: queries: {}", queries());
    users.rename(7, "Ada").await;
    println!("after the write: {:?}, queries: {}", users.name(7).await?, queries());
    futures_util::future::try_join_all(readers()).await?;
    println!("a thousand more readers: queries: {}", queries());
    Ok(())
}
