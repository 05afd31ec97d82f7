//! The handle without tower, before a slow database: absent rows are
//! remembered for less long, and a write ends the use of what it changed.
//!
//! ```sh
//! cargo run --example database_loader
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tower_stampede::{Computed, Stampede};

/// Stands for a database that takes its time.
#[derive(Default)]
struct Database {
    names: Mutex<HashMap<u64, Arc<str>>>,
    queries: AtomicU32,
}

impl Database {
    async fn load(&self, id: u64) -> io::Result<Option<Arc<str>>> {
        self.queries.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok(self.names.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned())
    }

    async fn rename(&self, id: u64, name: &str) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.insert(id, name.into());
    }
}

/// What the rest of the application holds.
#[derive(Clone)]
struct Users {
    database: Arc<Database>,
    // `Option`: that there is no such user is an answer too.
    cache: Stampede<Option<Arc<str>>>,
}

impl Users {
    fn new(database: Database) -> Result<Self, tower_stampede::ConfigError> {
        let cache = Stampede::builder("users")
            .ttl(Duration::from_secs(60))
            .negative_ttl(Duration::from_secs(5))
            .weigher(|name: &Option<Arc<str>>| name.as_ref().map_or(16, |name| 16 + name.len()))
            .build()?;
        Ok(Self { database: Arc::new(database), cache })
    }

    /// One caller loads; callers that come meanwhile get its value.
    async fn name(&self, id: u64) -> Result<Option<Arc<str>>, tower_stampede::Error> {
        let database = Arc::clone(&self.database);
        let load = move || async move {
            let name = database.load(id).await?;
            Ok::<_, io::Error>(Computed::new(name).tag(format!("user:{id}")))
        };
        self.cache.get_or_compute_with(("name", id), load).await
    }

    /// Writes, then ends the use of everything that carries the user's tag;
    /// also of what is being loaded at this moment.
    async fn rename(&self, id: u64, name: &str) {
        self.database.rename(id, name).await;
        self.cache.invalidate_tag(format!("user:{id}")).await;
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("database_loader: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let users = Users::new(Database::default())?;
    let queries = || users.database.queries.load(Ordering::Relaxed);

    herd(&users, 7).await?;
    println!("a user who does not exist: {} query", queries());
    users.rename(7, "Ada").await;
    println!("after the write it is {:?}: {} queries", users.name(7).await?, queries());
    herd(&users, 7).await?;
    println!("a thousand more readers: {} queries", queries());
    Ok(())
}

/// A thousand readers at once.
async fn herd(users: &Users, id: u64) -> Result<(), Box<dyn Error>> {
    let reader = |users: Users| tokio::spawn(async move { users.name(id).await });
    let readers: Vec<_> = (0..1000).map(|_| reader(users.clone())).collect();
    for reader in readers {
        reader.await??;
    }
    Ok(())
}
