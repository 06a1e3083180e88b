use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;

use crate::connection::{Connections, Held, Purpose, Turn};
use crate::error::DatabaseError;

/// How to reach a database, and the limits on every connection to it.
///
/// Durations count in whole milliseconds, at least 1: PostgreSQL takes 0 for "no limit", and here
/// every wait has one.
#[derive(Debug, Clone)]
pub struct DatabaseSettings {
    /// `postgres://user:password@host:5432/database`; never shown by `Debug`.
    pub url: SecretString,
    /// At most so many connections, at least 1.
    pub max_connections: u32,
    /// Of them so many at the most for sessions that wait for their [turn](Database::turn), at least 1: those of
    /// lanes, workers, retries and replays. Relay, maintenance and checks have the rest for themselves.
    pub max_turns: u32,
    /// How long to wait for a connection, the time to open it included.
    pub acquire_timeout: Duration,
    /// `lock_timeout` of every connection: how long to wait for another transaction's row.
    pub lock_timeout: Duration,
    /// A handler's time limit. `statement_timeout` is 5 seconds more, so that the consumer's own
    /// limit speaks first, and at least 35 s; `idle_in_transaction_session_timeout`, which is how long a
    /// frozen process keeps its successor waiting, is twice as much, and at least 4 s.
    pub handler_timeout: Duration,
    /// Shown in `pg_stat_activity`, so that a person sees whose connection it is (SEC-2).
    pub application_name: String,
}

impl DatabaseSettings {
    /// Ten connections, all of which may be used in turn, 5 s to get one, 10 s for a lock, 30 s for a handler.
    #[must_use]
    pub fn new(url: SecretString) -> Self {
        Self {
            url,
            max_connections: 10,
            max_turns: 10,
            acquire_timeout: Duration::from_secs(5),
            lock_timeout: Duration::from_secs(10),
            handler_timeout: Duration::from_secs(30),
            application_name: "factum".to_owned(),
        }
    }
}

/// A PostgreSQL database, 14 or newer. Cheap to clone; clones share the connections.
///
/// Every connection runs with READ COMMITTED, UTC, the time limits of [`DatabaseSettings`], and
/// `client_connection_check_interval` of one second where the server's platform knows it. A
/// database that says `synchronous_commit = off` is overruled: an offset must not outlive the
/// transaction that it stands for.
#[derive(Clone)]
pub struct Database {
    connections: Arc<Connections>,
}

impl Database {
    /// Reads the settings and opens the first connection, so that a wrong URL, host, password or
    /// version shows at once.
    ///
    /// # Errors
    /// The URL can't be read, `max_connections` is 0, the server can't be reached, refuses the
    /// login, or is older than PostgreSQL 14. The text names host, port and database, never the
    /// password.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), factum_postgres::DatabaseError> {
    /// use factum_postgres::{Database, DatabaseSettings};
    ///
    /// let url = "postgres://orders:secret@localhost:5432/orders";
    /// let db = Database::connect(&DatabaseSettings::new(url.into())).await?;
    /// db.ping().await?;
    /// # Ok(()) }
    /// ```
    pub async fn connect(settings: &DatabaseSettings) -> Result<Self, DatabaseError> {
        let db = Self {
            connections: Arc::new(Connections::new(settings)?),
        };
        db.hold().await?.give_back();
        Ok(db)
    }

    /// Asks the server for a sign of life.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when there is none within the
    /// acquire timeout.
    pub async fn ping(&self) -> Result<(), DatabaseError> {
        let mut held = self.hold().await?;
        held.answered(async |conn| sqlx::raw_sql("SELECT 1").execute(conn).await)
            .await
            .map_err(|err| DatabaseError::new("ping the database", &err))?;
        held.give_back();
        Ok(())
    }

    /// Closes the idle connections and lends no more. A [`Session`](crate::Session) that is still
    /// open keeps its connection until its own end.
    pub async fn close(&self) {
        self.connections.close().await;
    }

    /// Waits for the turn to open a session, in the order of asking and without limit. It holds nothing meanwhile, and
    /// may be dropped at any moment.
    ///
    /// ```no_run
    /// # async fn example(db: factum_postgres::Database) -> Result<(), factum_postgres::DatabaseError> {
    /// use factum_postgres::Session;
    ///
    /// let turn = db.turn().await;
    /// let session = Session::open_in(&db, turn).await?;
    /// // One transaction after the other; whenever another waits, it is time to let it in.
    /// if db.is_turn_wanted() {
    ///     session.give_back();
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn turn(&self) -> Turn {
        self.connections.turn().await
    }

    /// Whether somebody waits for a turn.
    #[must_use]
    pub fn is_turn_wanted(&self) -> bool {
        self.connections.is_turn_wanted()
    }

    /// Waits until somebody waits for a turn: for who holds a session and has nothing to do with it. May be dropped at
    /// any moment.
    pub async fn turn_wanted(&self) {
        self.connections.turn_wanted().await;
    }

    pub(crate) fn connections(&self) -> &Connections {
        &self.connections
    }

    pub(crate) async fn hold(&self) -> Result<Held, DatabaseError> {
        self.connections.lend(Purpose::Statement).await
    }

    pub(crate) async fn hold_for_session(&self) -> Result<Held, DatabaseError> {
        self.connections.lend(Purpose::Session).await
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").finish_non_exhaustive()
    }
}
