//! Transactions of people's commands: short, with a time limit of their own, so that a look at the tables never
//! becomes the trouble that it looks for.

use sqlx::PgConnection;

use crate::database::Database;
use crate::error::{self, DatabaseError, ErrorKind};

/// The time that PostgreSQL gives each statement of a read.
const READ_LIMIT: &str = "2s";
/// The time that it gives each statement of an action.
const ACTION_LIMIT: &str = "30s";
/// "canceling statement due to statement timeout".
const CUT: &str = "57014";

/// Reads in one snapshot. `None` when a statement took longer than two seconds and was cut.
pub(crate) async fn read_or_cut<T>(
    db: &Database,
    what: &'static str,
    read: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
) -> Result<Option<T>, DatabaseError> {
    let mut held = db.hold().await?;
    let answer = held
        .answered(async |conn| {
            begin(
                conn,
                "ISOLATION LEVEL REPEATABLE READ READ ONLY",
                READ_LIMIT,
            )
            .await?;
            let answer = read(&mut *conn).await?;
            sqlx::raw_sql("COMMIT").execute(&mut *conn).await?;
            Ok(answer)
        })
        .await;
    match answer {
        Ok(answer) => {
            held.give_back();
            Ok(Some(answer))
        }
        // The connection is dropped, and with it the transaction.
        Err(err) if error::code(&err) == CUT => Ok(None),
        Err(err) => Err(DatabaseError::new(what, &err)),
    }
}

/// Reads in one snapshot.
pub(crate) async fn read<T>(
    db: &Database,
    what: &'static str,
    read: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
) -> Result<T, DatabaseError> {
    let answer = read_or_cut(db, what, read).await?;
    answer.ok_or_else(|| {
        DatabaseError::plain(
            ErrorKind::Other,
            what,
            format!("it took longer than {READ_LIMIT} and was cut"),
            "narrow it, for example by consumer",
        )
    })
}

/// Changes something: commits if `act` says `Ok`, and rolls back what it refuses.
pub(crate) async fn act<T, R>(
    db: &Database,
    what: &'static str,
    act: impl AsyncFnOnce(&mut PgConnection) -> Result<Result<T, R>, sqlx::Error>,
) -> Result<Result<T, R>, DatabaseError> {
    let mut held = db.hold().await?;
    let answer = held
        .answered(async |conn| {
            begin(conn, "ISOLATION LEVEL READ COMMITTED", ACTION_LIMIT).await?;
            let answer = act(&mut *conn).await?;
            let end = if answer.is_ok() { "COMMIT" } else { "ROLLBACK" };
            sqlx::raw_sql(end).execute(&mut *conn).await?;
            Ok(answer)
        })
        .await
        .map_err(|err| DatabaseError::new(what, &err))?;
    held.give_back();
    Ok(answer)
}

async fn begin(
    conn: &mut PgConnection,
    mode: &'static str,
    limit: &'static str,
) -> Result<(), sqlx::Error> {
    let begin = format!("BEGIN {mode}; SET LOCAL statement_timeout = '{limit}'");
    sqlx::raw_sql(sqlx::AssertSqlSafe(begin))
        .execute(conn)
        .await
        .map(drop)
}
