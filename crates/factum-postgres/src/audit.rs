//! Who did what, and why (table `audit`): a row in the transaction of each action.

use sqlx::PgConnection;

use crate::dead_letter::text;

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
