//! SQLite, and the queries of the shop.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params_from_iter};
use tower_stampede::{Weigh, key_struct};

use super::ShopError;

key_struct! {
    /// The number of a product.
    #[derive(Copy, serde::Serialize, serde::Deserialize)]
    #[serde(transparent)]
    pub struct ProductId(pub i64);
}

key_struct! {
    /// What the cookie of a client says.
    pub struct Session(pub String);
}

#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Product {
    pub id: ProductId,
    pub name: String,
    pub cents: i64,
}

impl Weigh for Product {
    fn heap_bytes(&self) -> usize {
        self.name.heap_bytes()
    }
}

#[derive(Clone, Debug)]
pub struct User {
    pub id: i64,
    pub name: String,
}

impl Weigh for User {
    fn heap_bytes(&self) -> usize {
        self.name.heap_bytes()
    }
}

/// A clone is the same connection.
#[derive(Clone)]
pub struct Database {
    connection: Arc<Mutex<Connection>>,
    queries: Arc<AtomicUsize>,
    /// How long a query takes, for a trial with a slow database.
    pub delay: Duration,
}

impl Database {
    /// Opens a file, and makes the tables in it if they are not there.
    pub fn open(file: &Path) -> rusqlite::Result<Self> {
        let connection = Connection::open(file)?;
        connection.busy_timeout(Duration::ZERO)?;
        connection.execute_batch(
            "CREATE TABLE IF NOT EXISTS products (id INTEGER PRIMARY KEY, name TEXT, cents INTEGER);
             CREATE TABLE IF NOT EXISTS users (id INTEGER PRIMARY KEY, name TEXT UNIQUE);
             CREATE TABLE IF NOT EXISTS sessions (token TEXT PRIMARY KEY, user INTEGER);
             INSERT OR IGNORE INTO products VALUES
                 (1, 'kettle', 2900), (2, 'pan', 4500), (3, 'spoon', 300);
             INSERT OR IGNORE INTO users VALUES (1, 'Ada'), (2, 'Grace');",
        )?;
        let connection = Arc::new(Mutex::new(connection));
        Ok(Self { connection, queries: Arc::default(), delay: Duration::ZERO })
    }

    /// Returns how many times the shop has read.
    pub fn queries(&self) -> usize {
        self.queries.load(Ordering::SeqCst)
    }

    /// Returns those of the products that there are, by one query.
    pub async fn products(
        &self,
        ids: Vec<ProductId>,
    ) -> Result<Vec<(ProductId, Product)>, ShopError> {
        self.read(move |connection| {
            let places = vec!["?"; ids.len()].join(", ");
            let query = format!("SELECT id, name, cents FROM products WHERE id IN ({places})");
            connection
                .prepare(&query)?
                .query_map(params_from_iter(ids.iter().map(|id| id.0)), product)?
                .collect()
        })
        .await
    }

    pub async fn user_of(&self, session: Session) -> Result<User, ShopError> {
        let query = "SELECT users.id, name FROM sessions JOIN users ON user = users.id \
                     WHERE token = ?";
        let user = |row: &Row<'_>| Ok(User { id: row.get(0)?, name: row.get(1)? });
        let found = self
            .read(move |connection| connection.query_row(query, [session.0], user).optional())
            .await?;
        found.ok_or(ShopError::NotLoggedIn)
    }

    /// Begins a session of a user who is known by this name.
    pub async fn log_in(&self, name: String, session: Session) -> Result<(), ShopError> {
        let query = "INSERT INTO sessions SELECT ?, id FROM users WHERE name = ?";
        let rows = self.run(move |connection| connection.execute(query, [session.0, name])).await?;
        if rows == 1 { Ok(()) } else { Err(ShopError::NotLoggedIn) }
    }

    pub async fn log_out(&self, session: Session) -> Result<(), ShopError> {
        let query = "DELETE FROM sessions WHERE token = ?";
        self.run(move |connection| connection.execute(query, [session.0])).await?;
        Ok(())
    }

    /// Sets a price. Drops `guard` when the write has ended, however it ends, and also when
    /// the caller has gone by then.
    pub async fn set_price<G>(&self, id: ProductId, cents: i64, guard: G) -> Result<(), ShopError>
    where
        G: Send + 'static,
    {
        let query = "UPDATE products SET cents = ? WHERE id = ?";
        let write = move |connection: &Connection| {
            let _guard = guard;
            connection.execute(query, [cents, id.0])
        };
        if self.run(write).await? == 1 { Ok(()) } else { Err(ShopError::NotFound) }
    }

    pub async fn add(&self, product: Product) -> Result<(), ShopError> {
        let Product { id, name, cents } = product;
        let query = "INSERT INTO products VALUES (?, ?, ?)";
        self.run(move |connection| connection.execute(query, (id.0, name, cents))).await?;
        Ok(())
    }

    /// Keeps every query waiting for as long as the guard lives, for tests.
    pub fn lock(&self) -> impl Drop {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read<T, Q>(&self, query: Q) -> Result<T, ShopError>
    where
        T: Send + 'static,
        Q: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        self.queries.fetch_add(1, Ordering::SeqCst);
        if !self.delay.is_zero() {
            println!("query");
            tokio::time::sleep(self.delay).await;
        }
        self.run(query).await
    }

    async fn run<T, Q>(&self, query: Q) -> Result<T, ShopError>
    where
        T: Send + 'static,
        Q: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let connection = Arc::clone(&self.connection);
        let task = move || query(&connection.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(tokio::task::spawn_blocking(task).await.expect("a query does not panic")?)
    }
}

fn product(row: &Row<'_>) -> rusqlite::Result<(ProductId, Product)> {
    let id = ProductId(row.get(0)?);
    Ok((id, Product { id, name: row.get(1)?, cents: row.get(2)? }))
}
