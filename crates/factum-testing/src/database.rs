//! A fresh database per test.

use std::str::FromStr as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection};

use crate::postgres::{PostgresBinaries, PostgresServer};

/// Names the server that tests use instead of a private one: the URL of a database whose user may
/// create databases.
pub const DATABASE_URL: &str = "FACTUM_TEST_DATABASE_URL";

/// An empty database of its own for one test; dropped with this value.
#[derive(Debug)]
pub struct TestDatabase {
    name: String,
    server: String,
    url: String,
}

/// A fresh, empty database: on the server that `FACTUM_TEST_DATABASE_URL` names, else on a private
/// one that all tests of this test binary share and that ends with it.
///
/// May be called from a test with or without a runtime; it blocks its thread for some 50 ms, and
/// half a second when it starts the server.
///
/// ```no_run
/// let database = factum_testing::database();
/// println!("a test may do as it likes with {}", database.name());
/// ```
///
/// # Panics
///
/// When there is no server: a test can't go on, and the text says what to install or to set.
pub fn database() -> TestDatabase {
    let server = match std::env::var(DATABASE_URL) {
        Ok(url) => url,
        Err(_) => private_server().url(),
    };
    match TestDatabase::create(server) {
        Ok(database) => database,
        Err(failure) => panic!("no database for this test: {failure:#}"),
    }
}

fn private_server() -> &'static PostgresServer {
    static SERVER: OnceLock<PostgresServer> = OnceLock::new();
    SERVER.get_or_init(|| {
        match PostgresBinaries::find().and_then(|binaries| PostgresServer::start(&binaries)) {
            Ok(server) => server,
            Err(failure) => panic!(
                "no private PostgreSQL for this test: {failure:#}\n\
                 Or set {DATABASE_URL} to a server whose user may create databases."
            ),
        }
    })
}

impl TestDatabase {
    /// A fresh database on the server of this URL, whose user may create databases.
    ///
    /// # Errors
    ///
    /// When the server doesn't answer or refuses.
    pub fn create(server: String) -> Result<TestDatabase> {
        let name = unique_name();
        // The name is ours: letters, digits and underscores.
        run(&server, format!("CREATE DATABASE {name}"))
            .context("creating a database for a test; the server's user must be allowed to")?;
        let url = with_database(&server, &name);
        Ok(TestDatabase { name, server, url })
    }

    /// The database's URL, with its password.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The database's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Cuts everyone off, as an outage of the database would: sessions end, and no new one comes in
    /// until [`let_in`](TestDatabase::let_in).
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn shut_out(&self) {
        let name = &self.name;
        // First the door, then the sessions: nobody slips in between.
        self.must(format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false"));
        self.must(format!(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{name}'"
        ));
    }

    /// Ends the outage of [`shut_out`](TestDatabase::shut_out).
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn let_in(&self) {
        self.must(format!(
            "ALTER DATABASE {} ALLOW_CONNECTIONS true",
            self.name
        ));
    }

    fn must(&self, sql: String) {
        if let Err(failure) = run(&self.server, sql) {
            panic!("the test's server refuses: {failure:#}");
        }
    }

    /// A connection of the test's own, to look at what the code under test has done.
    ///
    /// # Panics
    ///
    /// When the server doesn't answer.
    pub async fn connect(&self) -> PgConnection {
        match PgConnection::connect(&self.url).await {
            Ok(connection) => connection,
            Err(failure) => panic!("connecting to the test's database: {failure}"),
        }
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        // A given server outlives the test and must not fill up. Sessions that a failed test left
        // open don't keep the database. If it can't be dropped, the test has its verdict already.
        let _ = run(
            &self.server,
            format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name),
        );
    }
}

/// Unique among all tests that share a server, on whatever machine they run.
fn unique_name() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    format!("factum_test_{}_{now:x}_{number}", std::process::id())
}

/// `url` with another database's name.
fn with_database(url: &str, name: &str) -> String {
    let (base, query) = match url.split_once('?') {
        Some((base, query)) => (base, format!("?{query}")),
        None => (url, String::new()),
    };
    let host_at = base.find("://").map_or(0, |at| at + 3);
    let end = base[host_at..]
        .find('/')
        .map_or(base.len(), |at| host_at + at);
    format!("{}/{name}{query}", &base[..end])
}

/// One statement, on a runtime of its own: callers may or may not be inside one.
fn run(url: &str, sql: String) -> Result<()> {
    let options = PgConnectOptions::from_str(url).context("reading the URL")?;
    std::thread::spawn(move || -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let mut connection = options.connect().await?;
            sqlx::raw_sql(AssertSqlSafe(sql))
                .execute(&mut connection)
                .await?;
            connection.close().await?;
            Ok(())
        })
    })
    .join()
    .map_err(|_| anyhow::anyhow!("the thread that creates databases panicked"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_database_changes_in_a_url() {
        let cases = [
            ("postgres://u:p@h:1/a", "postgres://u:p@h:1/x"),
            ("postgres://u:p@h:1", "postgres://u:p@h:1/x"),
            (
                "postgres://u:p@h:1/a?sslmode=require",
                "postgres://u:p@h:1/x?sslmode=require",
            ),
            (
                "postgres://u@h?host=/run/pg",
                "postgres://u@h/x?host=/run/pg",
            ),
        ];
        for (url, expected) in cases {
            assert_eq!(with_database(url, "x"), expected);
        }
    }

    #[tokio::test]
    async fn an_outage_ends_sessions_and_lets_nobody_in() {
        let database = database();
        let mut connection = database.connect().await;
        database.shut_out().await;
        sqlx::raw_sql("SELECT 1")
            .execute(&mut connection)
            .await
            .unwrap_err();
        PgConnection::connect(database.url()).await.unwrap_err();
        database.let_in().await;
        sqlx::raw_sql("SELECT 1")
            .execute(&mut database.connect().await)
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn each_test_has_a_database_of_its_own_that_goes_with_it() {
        let (one, two) = (database(), database());
        for database in [&one, &two] {
            let mut connection = database.connect().await;
            sqlx::raw_sql("CREATE TABLE here (id int)")
                .execute(&mut connection)
                .await
                .unwrap();
            let name: String = sqlx::query_scalar("SELECT current_database()::text")
                .fetch_one(&mut connection)
                .await
                .unwrap();
            assert_eq!(name, database.name());
        }
        let gone = one.name().to_owned();
        drop(one);
        let left: Vec<String> = sqlx::query_scalar("SELECT datname::text FROM pg_database")
            .fetch_all(&mut two.connect().await)
            .await
            .unwrap();
        assert!(!left.contains(&gone) && left.iter().any(|name| name == two.name()));
    }
}
