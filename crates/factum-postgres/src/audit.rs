//! Who did what, and why (table `audit`): a row in the transaction of each action.

use sqlx::PgConnection;

use crate::bounded;
use crate::database::Database;
use crate::dead_letter::text;
use crate::error::DatabaseError;

const ACTOR_BYTES: usize = 255;
const REASON_BYTES: usize = 1024;

/// Who acts, and why. Both are shown to whoever reads the audit.
///
/// Limits: the actor is cut at 255 bytes, the reason at 1 KiB.
#[derive(Debug, Clone, Copy)]
pub struct Actor<'a> {
    /// A person's name.
    pub name: &'a str,
    /// Through what: `cli`.
    pub via: &'static str,
    /// Why, in the person's own words.
    pub reason: &'a str,
}

/// What was done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deed<'a> {
    /// `replay`, `discard`, …
    pub(crate) action: &'static str,
    pub(crate) consumer: &'a str,
    /// What it was done to: `r-88`, `letter 48213`.
    pub(crate) subject: &'a str,
    pub(crate) events: i64,
}

pub(crate) async fn write(
    conn: &mut PgConnection,
    actor: Actor<'_>,
    deed: Deed<'_>,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO audit (actor, via, action, consumer, subject, events, reason) \
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(text(actor.name, ACTOR_BYTES))
    .bind(actor.via)
    .bind(deed.action)
    .bind(deed.consumer)
    .bind(deed.subject)
    .bind(deed.events)
    .bind(text(actor.reason, REASON_BYTES))
    .execute(conn)
    .await?;
    Ok(())
}

/// Says that a person is about to see the values of a dead letter. Call it before they are shown.
///
/// # Errors
/// No connection, or the statement failed: then nothing may be shown.
///
/// ```no_run
/// # async fn example(db: factum_postgres::Database) -> Result<(), factum_postgres::DatabaseError> {
/// use factum_postgres::audit::{self, Actor};
///
/// let ana = Actor { name: "ana", via: "cli", reason: "#4411" };
/// audit::record_reveal(&db, ana, "billing-order-confirmed", 48213).await?;
/// # Ok(()) }
/// ```
pub async fn record_reveal(
    db: &Database,
    actor: Actor<'_>,
    consumer: &str,
    letter: i64,
) -> Result<(), DatabaseError> {
    let subject = format!("letter {letter}");
    let deed = Deed {
        action: "reveal",
        consumer,
        subject: &subject,
        events: 1,
    };
    let written = bounded::act(db, "write the audit row", async |conn| {
        write(conn, actor, deed)
            .await
            .map(Ok::<(), std::convert::Infallible>)
    });
    written.await.map(|Ok(())| ())
}
