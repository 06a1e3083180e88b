//! What wakes a relay that sleeps: a trigger that notifies, and the connection that hears it.

use std::fmt;
use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgConnection};

use crate::bounded;
use crate::database::Database;
use crate::error::{DatabaseError, ErrorKind};

/// The class of the advisory lock, "fact"; the object is the outbox's oid. The trigger of migration 9 has the same.
const CLASS: i32 = 0x6661_6374;
/// How long switching the trigger may wait for the table. Whoever comes after it, waits behind it.
const SWITCH_LOCK_LIMIT: &str = "1s";

/// Whether inserts into the outbox notify relays that sleep.
///
/// # Errors
/// The statement failed.
pub async fn relay_wake_is_on(db: &Database) -> Result<bool, DatabaseError> {
    let mut held = db.hold().await?;
    let on = held
        .answered(is_on)
        .await
        .map_err(|err| DatabaseError::new("look at the trigger outbox_wake", &err))?;
    held.give_back();
    Ok(on)
}

/// Lets inserts into the outbox notify relays that sleep, or no longer. `true` if that is a change.
///
/// It needs the table's owner, and for a moment nobody else may write to the table: it waits a second for that at
/// most.
///
/// # Errors
/// The table was busy for that long, the role doesn't own it, or there is no trigger (migration 9).
pub async fn switch_relay_wake(db: &Database, on: bool) -> Result<bool, DatabaseError> {
    const WHAT: &str = "switch the trigger outbox_wake";
    bounded::act(db, WHAT, async |conn| {
        if is_on(conn).await? == on {
            return Ok(Ok::<_, DatabaseError>(false));
        }
        let word = if on { "ENABLE" } else { "DISABLE" };
        let switch = format!(
            "SET LOCAL lock_timeout = '{SWITCH_LOCK_LIMIT}'; \
             ALTER TABLE outbox {word} TRIGGER outbox_wake"
        );
        sqlx::raw_sql(AssertSqlSafe(switch)).execute(conn).await?;
        Ok(Ok(true))
    })
    .await?
}

async fn is_on(conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let on = sqlx::query_scalar(
        "SELECT tgenabled IN ('O', 'A') FROM pg_trigger \
         WHERE tgrelid = to_regclass('outbox') AND tgname = 'outbox_wake'",
    )
    .fetch_optional(conn)
    .await?;
    Ok(on.unwrap_or(false))
}

/// A connection of its own, outside the limit of [`DatabaseSettings`](crate::DatabaseSettings), that hears of new
/// outbox rows while its relay sleeps.
///
/// Writers notify only while some relay says that it sleeps: by a shared advisory lock of this connection, which goes
/// with it, so that a relay that died costs nobody a NOTIFY. A row whose INSERT came before that lock, and whose COMMIT
/// came after the relay's last look, is not told of: a sleeping relay looks by itself now and then.
pub struct RelayListener {
    listener: PgListener,
    /// The outbox's oid, as an advisory lock takes it.
    table: i32,
    limit: Duration,
}

impl RelayListener {
    /// Opens the connection and listens.
    ///
    /// # Errors
    /// The server can't be reached, or there is no outbox.
    pub async fn connect(db: &Database) -> Result<Self, DatabaseError> {
        const WHAT: &str = "listen for new outbox rows";
        let connections = db.connections();
        let limit = connections.acquire_timeout();
        let opened = tokio::time::timeout(limit, async {
            let pool = PgPoolOptions::new()
                .max_connections(1)
                .idle_timeout(None)
                .max_lifetime(None)
                // What comes back still holds the lock of a sleeper: it is closed.
                .after_release(|_, _| Box::pin(async { Ok(false) }))
                .connect_with(connections.options())
                .await?;
            let mut listener = PgListener::connect_with(&pool).await?;
            // A new connection by itself would not hold the lock.
            listener.eager_reconnect(false);
            sqlx::raw_sql(AssertSqlSafe(connections.set_up()))
                .execute(&mut listener)
                .await?;
            let table: i32 = sqlx::query_scalar("SELECT 'outbox'::regclass::oid::integer")
                .fetch_one(&mut listener)
                .await?;
            // As the trigger has it: an oid without a sign.
            let channel = format!("factum_outbox_{}", table.cast_unsigned());
            listener.listen(&channel).await?;
            Ok((listener, table))
        });
        let (listener, table) = answer(WHAT, opened.await)?;
        Ok(Self {
            listener,
            table,
            limit,
        })
    }

    /// From now on writers notify. What was heard before is forgotten: look at the table once more.
    ///
    /// # Errors
    /// The connection was lost: connect again.
    pub async fn sleep(&mut self) -> Result<(), DatabaseError> {
        while self.listener.next_buffered().is_some() {}
        self.ask("SELECT pg_advisory_lock_shared($1, $2)").await
    }

    /// From now on writers don't notify.
    ///
    /// # Errors
    /// The connection was lost, and with it the lock: connect again.
    pub async fn wake(&mut self) -> Result<(), DatabaseError> {
        self.ask("SELECT pg_advisory_unlock_shared($1, $2)").await
    }

    /// Waits until a transaction that wrote outbox rows has committed. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The connection was lost: connect again.
    pub async fn notified(&mut self) -> Result<(), DatabaseError> {
        const WHAT: &str = "hear of new outbox rows";
        match self.listener.try_recv().await {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(DatabaseError::plain(
                ErrorKind::Unavailable,
                WHAT,
                "the connection was lost",
                "connect again",
            )),
            Err(err) => Err(DatabaseError::new(WHAT, &err)),
        }
    }

    /// Asks for a sign of life: a server that fell off the network says nothing.
    ///
    /// # Errors
    /// There is none: connect again.
    pub async fn ping(&mut self) -> Result<(), DatabaseError> {
        self.ask("SELECT $1 = $2").await
    }

    /// One statement about the lock's two numbers.
    async fn ask(&mut self, sql: &'static str) -> Result<(), DatabaseError> {
        let asked = sqlx::query(sql)
            .bind(CLASS)
            .bind(self.table)
            .execute(&mut self.listener);
        let asked = tokio::time::timeout(self.limit, asked).await;
        answer("tell writers whether a relay sleeps", asked).map(drop)
    }
}

fn answer<T>(
    what: &'static str,
    asked: Result<Result<T, sqlx::Error>, tokio::time::error::Elapsed>,
) -> Result<T, DatabaseError> {
    match asked {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(err)) => Err(DatabaseError::new(what, &err)),
        Err(_) => Err(DatabaseError::plain(
            ErrorKind::Unavailable,
            what,
            "the server did not answer in time",
            "check that it runs",
        )),
    }
}

impl fmt::Debug for RelayListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayListener").finish_non_exhaustive()
    }
}
