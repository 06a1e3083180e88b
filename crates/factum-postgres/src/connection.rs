//! Connections that never go back by accident.
//!
//! A connection is of use to the next borrower only when the last one said, after its last
//! statement had been answered, that it is done. So giving back is an explicit call here, and a
//! dropped [`Held`] (a cancelled future, a panic, an early return) closes the socket. That is the
//! whole cure for sqlx issue 4393 (public case 63), where a cancelled `begin()` put a connection
//! with an open transaction back into the pool.
//!
//! **Who may wait for what.** Those that work through records take a [`Turn`] before they open a session, in the
//! order of asking; there are fewer turns than connections. A statement of anybody else (relay, maintenance,
//! heartbeat) needs no turn, so it never waits behind handlers. A session may wait for such a connection while it
//! holds its own; the other way round nobody does, so no circle of waits can close.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use secrecy::ExposeSecret;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

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
    turns: Arc<Semaphore>,
    /// How many wait for a turn.
    waiting: watch::Sender<usize>,
    idle: Mutex<IdleConnections>,
}

#[derive(Default)]
struct IdleConnections {
    /// Fit for single statements.
    plain: Vec<Idle>,
    /// Prepared by a session, for the next one: what a handler may have SET stays among handlers.
    of_sessions: Vec<Idle>,
}

struct Idle {
    conn: PgConnection,
    since: Instant,
}

/// What a connection is borrowed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Statement,
    Session,
}

impl IdleConnections {
    fn of(&mut self, purpose: Purpose) -> &mut Vec<Idle> {
        match purpose {
            Purpose::Statement => &mut self.plain,
            Purpose::Session => &mut self.of_sessions,
        }
    }

    fn all(&self) -> usize {
        self.plain.len() + self.of_sessions.len()
    }
}

/// The right to open one [`Session`](crate::Session), from [`Database::turn`](crate::Database::turn). Dropping it, or
/// what was opened with it, lets the next one in.
#[derive(Debug)]
#[must_use = "a turn that is dropped goes to the next"]
pub struct Turn {
    _permit: OwnedSemaphorePermit,
}

/// One that waits for a turn, for as long as it waits.
struct Waiting<'a>(&'a watch::Sender<usize>);

impl<'a> Waiting<'a> {
    fn begin(waiting: &'a watch::Sender<usize>) -> Waiting<'a> {
        waiting.send_modify(|waiting| *waiting += 1);
        Waiting(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|waiting| *waiting -= 1);
    }
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
        for (limit, what) in [
            (settings.max_connections, "max_connections is 0"),
            (settings.max_turns, "max_turns is 0"),
        ] {
            if limit == 0 {
                return Err(DatabaseError::plain(
                    ErrorKind::Other,
                    "use the database settings",
                    what,
                    "set it to at least 1",
                ));
            }
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
            turns: Arc::new(Semaphore::new(settings.max_turns as usize)),
            waiting: watch::Sender::new(0),
            idle: Mutex::default(),
        })
    }

    /// Waits for a turn, in the order of asking.
    pub(crate) async fn turn(&self) -> Turn {
        // With others waiting there is none to take at once: nobody is overtaken.
        let permit = if let Ok(permit) = Arc::clone(&self.turns).try_acquire_owned() {
            permit
        } else {
            let _waiting = Waiting::begin(&self.waiting);
            let turn = Arc::clone(&self.turns).acquire_owned().await;
            turn.expect("the turns are never closed")
        };
        Turn { _permit: permit }
    }

    pub(crate) fn is_turn_wanted(&self) -> bool {
        *self.waiting.borrow() > 0
    }

    pub(crate) async fn turn_wanted(&self) {
        let mut waiting = self.waiting.subscribe();
        let wanted = waiting.wait_for(|waiting| *waiting > 0).await;
        wanted.expect("its sender is in `self`");
    }

    /// Lends a connection, new or idle; waits for at most `acquire_timeout` in all.
    pub(crate) async fn lend(self: &Arc<Self>, purpose: Purpose) -> Result<Held, DatabaseError> {
        tokio::time::timeout(self.acquire_timeout, self.lend_unbounded(purpose))
            .await
            .unwrap_or_else(|_| {
                let busy = self.max_connections as usize - self.permits.available_permits();
                let mend = if busy < self.max_connections as usize {
                    "check that the server answers"
                } else {
                    "check that the server answers, or raise FACTUM_DATABASE_MAX_CONNECTIONS"
                };
                Err(DatabaseError::plain(
                    ErrorKind::Unavailable,
                    self.place(),
                    format!(
                        "no connection within {:?} ({busy} of {} in use)",
                        self.acquire_timeout, self.max_connections
                    ),
                    mend,
                ))
            })
    }

    async fn lend_unbounded(self: &Arc<Self>, purpose: Purpose) -> Result<Held, DatabaseError> {
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
        while let Some(mut idle) = self.take_idle(purpose) {
            if idle.since.elapsed() < ASK_AFTER_IDLE || idle.conn.ping().await.is_ok() {
                return Ok(Held {
                    conn: idle.conn,
                    kept_for: purpose,
                    turn: None,
                    permit,
                    home: Arc::clone(self),
                });
            }
        }
        if let Some(surplus) = self.take_surplus() {
            // Best effort: the server also notices a closed socket.
            let _ = surplus.conn.close().await;
        }
        let conn = self
            .open()
            .await
            .map_err(|err| DatabaseError::new(self.place(), &err))?;
        check_version(&conn)?;
        Ok(Held {
            conn,
            kept_for: Purpose::Statement,
            turn: None,
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

    fn take_idle(&self, purpose: Purpose) -> Option<Idle> {
        self.idle().of(purpose).pop()
    }

    /// An idle connection that must go before another is opened, or there would be more than the limit.
    fn take_surplus(&self) -> Option<Idle> {
        let mut idle = self.idle();
        if idle.all() <= self.permits.available_permits() {
            return None;
        }
        let plain = idle.plain.pop();
        plain.or_else(|| idle.of_sessions.pop())
    }

    fn idle(&self) -> MutexGuard<'_, IdleConnections> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lends nothing from now on and closes what is idle.
    pub(crate) async fn close(&self) {
        self.permits.close();
        for purpose in [Purpose::Statement, Purpose::Session] {
            while let Some(idle) = self.take_idle(purpose) {
                // Best effort: the server also notices a closed socket.
                let _ = idle.conn.close().await;
            }
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
    kept_for: Purpose,
    /// Ends with the loan.
    turn: Option<Turn>,
    permit: OwnedSemaphorePermit,
    home: Arc<Connections>,
}

impl Held {
    /// Whether a session has prepared it already.
    pub(crate) fn is_prepared(&self) -> bool {
        self.kept_for == Purpose::Session
    }

    /// A session has prepared it: from now on it is for sessions alone.
    pub(crate) fn keep_for_sessions(&mut self, turn: Option<Turn>) {
        self.kept_for = Purpose::Session;
        self.turn = turn;
    }

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
        let Self {
            conn,
            kept_for,
            turn,
            permit,
            home,
        } = self;
        if !home.permits.is_closed() {
            let idle = Idle {
                conn,
                since: Instant::now(),
            };
            home.idle().of(kept_for).push(idle);
        }
        // After the push: who gets the permit finds the connection. And the turn last, for the same reason.
        drop(permit);
        drop(turn);
    }

    /// Says goodbye to the server, then closes.
    pub(crate) async fn close(self) {
        let Self {
            conn, turn, permit, ..
        } = self;
        // Best effort: the server also notices a closed socket.
        let _ = conn.close().await;
        drop(permit);
        drop(turn);
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
