//! Connections that never go back by accident.
//!
//! A connection is of use to the next borrower only when the last one said, after its last
//! statement had been answered, that it is done. So giving back is an explicit call here, and a
//! dropped [`Held`] (a cancelled future, a panic, an early return) closes the socket. That is the
//! whole cure for sqlx issue 4393 (public case 63), where a cancelled `begin()` put a connection
//! with an open transaction back into the pool.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use secrecy::ExposeSecret;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::database::DatabaseSettings;
use crate::error::{DatabaseError, ErrorKind};

/// An idle connection older than this is asked whether it still lives before it is lent again.
const ASK_AFTER_IDLE: Duration = Duration::from_secs(1);
/// However short the handlers' limit is: a process that only waits for its turn on a busy machine isn't
/// frozen, and relay and maintenance have slower statements.
const IDLE_LEAST: Duration = Duration::from_secs(4);
const STATEMENT_LEAST: Duration = Duration::from_secs(30);

pub(crate) struct Connections {
    options: PgConnectOptions,
    /// Sent once on every new connection.
    set_up: String,
    acquire_timeout: Duration,
    answer_timeout: Duration,
    max_connections: u32,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Idle>>,
}

struct Idle {
    conn: PgConnection,
    since: Instant,
}

impl Connections {
    pub(crate) fn new(settings: &DatabaseSettings) -> Result<Self, DatabaseError> {
        // The parser's own error text may quote the URL, which holds the password.
        let options: PgConnectOptions = settings.url.expose_secret().parse().map_err(|_| {
            DatabaseError::plain(
                ErrorKind::Other,
                "read the database URL",
                "it isn't of the form postgres://user:password@host:5432/database",
                "correct DATABASE_URL (percent-encode special characters in the password)",
            )
        })?;
        if settings.max_connections == 0 {
            return Err(DatabaseError::plain(
                ErrorKind::Other,
                "use the database settings",
                "max_connections is 0",
                "set it to at least 1",
            ));
        }
        Ok(Self {
            options: options
                .application_name(&settings.application_name)
                // A handler's statement may hold literals: they belong in no log (SEC-3).
                .disable_statement_logging(),
            set_up: set_up(settings),
            acquire_timeout: settings.acquire_timeout,
            answer_timeout: statement_timeout(settings) + Duration::from_secs(5),
            max_connections: settings.max_connections,
            permits: Arc::new(Semaphore::new(settings.max_connections as usize)),
            idle: Mutex::new(Vec::new()),
        })
    }

    /// Lends a connection, new or idle; waits for at most `acquire_timeout` in all.
    pub(crate) async fn lend(self: &Arc<Self>) -> Result<Held, DatabaseError> {
        tokio::time::timeout(self.acquire_timeout, self.lend_unbounded())
            .await
            .unwrap_or_else(|_| {
                let busy = self.max_connections as usize - self.permits.available_permits();
                Err(DatabaseError::plain(
                    ErrorKind::Unavailable,
                    self.place(),
                    format!(
                        "no connection within {:?} ({busy} of {} in use)",
                        self.acquire_timeout, self.max_connections
                    ),
                    "check that the server answers, or raise FACTUM_DATABASE_MAX_CONNECTIONS",
                ))
            })
    }

    async fn lend_unbounded(self: &Arc<Self>) -> Result<Held, DatabaseError> {
        let permit = Arc::clone(&self.permits)
            .acquire_owned()
            .await
            .map_err(|_| {
                DatabaseError::plain(
                    ErrorKind::Unavailable,
                    self.place(),
                    "the connections were closed",
                    "the service is stopping",
                )
            })?;
        while let Some(mut idle) = self.take_idle() {
            if idle.since.elapsed() < ASK_AFTER_IDLE || idle.conn.ping().await.is_ok() {
                return Ok(Held {
                    conn: idle.conn,
                    permit,
                    home: Arc::clone(self),
                });
            }
        }
        let conn = self
            .open()
            .await
            .map_err(|err| DatabaseError::new(self.place(), &err))?;
        check_version(&conn)?;
        Ok(Held {
            conn,
            permit,
            home: Arc::clone(self),
        })
    }

    /// How to open one.
    pub(crate) fn options(&self) -> PgConnectOptions {
        self.options.clone()
    }

    /// What each is sent first.
    pub(crate) fn set_up(&self) -> String {
        self.set_up.clone()
    }

    pub(crate) fn acquire_timeout(&self) -> Duration {
        self.acquire_timeout
    }

    async fn open(&self) -> Result<PgConnection, sqlx::Error> {
        let mut conn = self.options.connect().await?;
        sqlx::raw_sql(AssertSqlSafe(self.set_up.clone()))
            .execute(&mut conn)
            .await?;
        // The server notices within a second that we are gone, and frees our row locks. Not every
        // platform can do it, and nothing depends on it but the wait: so a refusal is fine.
        let checked = sqlx::raw_sql("SET client_connection_check_interval = '1s'")
            .execute(&mut conn)
            .await;
        if let Err(err) = checked
            && crate::error::ends_connection(&err)
        {
            return Err(err);
        }
        Ok(conn)
    }

    fn take_idle(&self) -> Option<Idle> {
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()
    }

    /// Lends nothing from now on and closes what is idle.
    pub(crate) async fn close(&self) {
        self.permits.close();
        while let Some(idle) = self.take_idle() {
            // Best effort: the server also notices a closed socket.
            let _ = idle.conn.close().await;
        }
    }

    fn place(&self) -> String {
        format!(
            "connect to PostgreSQL at {}:{}, database {}",
            self.options.get_host(),
            self.options.get_port(),
            self.options.get_database().unwrap_or("(the user's)"),
        )
    }
}

/// A lent connection: an open one that counts against the limit.
pub(crate) struct Held {
    conn: PgConnection,
    permit: OwnedSemaphorePermit,
    home: Arc<Connections>,
}

impl Held {
    pub(crate) fn conn(&mut self) -> &mut PgConnection {
        &mut self.conn
    }

    /// Waits for a statement's answer, but not for ever: `statement_timeout` is the server's, and
    /// a server that fell off the network says nothing. The error then ends the connection.
    pub(crate) async fn answered<T>(
        &mut self,
        statement: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, sqlx::Error> {
        let limit = self.home.answer_timeout;
        self.answered_within(limit, statement).await
    }

    /// The same with a limit of its own: for several statements, or slow ones.
    pub(crate) async fn answered_within<T>(
        &mut self,
        limit: Duration,
        statement: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, sqlx::Error> {
        tokio::time::timeout(limit, statement(&mut self.conn))
            .await
            .unwrap_or_else(|_| {
                Err(sqlx::Error::Io(std::io::Error::from(
                    std::io::ErrorKind::TimedOut,
                )))
            })
    }

    /// Gives the connection to the next borrower. Call it only after a statement was answered
    /// in full, outside of any transaction.
    pub(crate) fn give_back(self) {
        let Self { conn, permit, home } = self;
        if !home.permits.is_closed() {
            let idle = Idle {
                conn,
                since: Instant::now(),
            };
            home.idle
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(idle);
        }
        // After the push: who gets the permit finds the connection.
        drop(permit);
    }

    /// Says goodbye to the server, then closes.
    pub(crate) async fn close(self) {
        let Self { conn, permit, .. } = self;
        // Best effort: the server also notices a closed socket.
        let _ = conn.close().await;
        drop(permit);
    }
}

fn set_up(settings: &DatabaseSettings) -> String {
    format!(
        "SET lock_timeout = {}; \
         SET statement_timeout = {}; \
         SET idle_in_transaction_session_timeout = {}; \
         SET timezone = 'UTC'; \
         SET default_transaction_isolation = 'read committed'; \
         SELECT set_config('synchronous_commit', 'on', false) \
          WHERE current_setting('synchronous_commit') = 'off'",
        millis(settings.lock_timeout),
        millis(statement_timeout(settings)),
        millis((settings.handler_timeout * 2).max(IDLE_LEAST)),
    )
}

fn statement_timeout(settings: &DatabaseSettings) -> Duration {
    settings.handler_timeout.max(STATEMENT_LEAST) + Duration::from_secs(5)
}

/// PostgreSQL takes 0 for "no limit": every wait here has one.
pub(crate) fn millis(limit: Duration) -> i32 {
    i32::try_from(limit.as_millis()).unwrap_or(i32::MAX).max(1)
}

fn check_version(conn: &PgConnection) -> Result<(), DatabaseError> {
    match conn.server_version_num() {
        Some(version) if version < 140_000 => Err(DatabaseError::plain(
            ErrorKind::Other,
            "use this PostgreSQL server",
            format!("it is version {}", version / 10_000),
            "use 14 or newer",
        )),
        _ => Ok(()),
    }
}
