//! Who did what, and why (table `audit`).

use sqlx::PgConnection;

/// One action of a person.
pub(crate) struct Entry<'a> {
    /// Who.
    pub(crate) actor: &'a str,
    /// By which door: `cli`, `console`.
    pub(crate) via: &'a str,
    /// What was done, as the command names it.
    pub(crate) action: &'a str,
    /// Whose events, or nothing.
    pub(crate) consumer: &'a str,
    /// What it was done to.
    pub(crate) subject: &'a str,
    /// How many events it concerned.
    pub(crate) events: i64,
    /// Why.
    pub(crate) reason: &'a str,
}

/// Writes it into the action's own transaction.
pub(crate) async fn write(conn: &mut PgConnection, entry: &Entry<'_>) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO audit (actor, via, action, consumer, subject, events, reason) \
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(entry.actor)
    .bind(entry.via)
    .bind(entry.action)
    .bind(entry.consumer)
    .bind(entry.subject)
    .bind(entry.events)
    .bind(entry.reason)
    .execute(conn)
    .await?;
    Ok(())
}
