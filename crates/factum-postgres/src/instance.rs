//! Which processes of which service run now (table `instance`).

use std::time::Duration;

use serde_json::{Map, json};
use uuid::Uuid;

use crate::database::Database;
use crate::error::DatabaseError;
use crate::event_id::new_event_id;

/// How long one statement may take; the process goes on without.
const LIMIT: Duration = Duration::from_secs(5);

/// Names one process, made anew at each start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct InstanceId(pub(crate) Uuid);

impl InstanceId {
    /// A new one.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "each call gives another")]
    pub fn new() -> Self {
        Self(new_event_id().as_uuid())
    }
}

/// What a process says of one of its consumers.
#[derive(Debug, Clone)]
pub struct RunningConsumer {
    /// The consumer's stable name.
    pub name: String,
    /// Partitions that it reads in this process now.
    pub lanes: u64,
    /// Events that it has handled in this process.
    pub processed: u64,
}

/// One process, as it writes itself down every 5 s, see [`Instance::beat`].
#[derive(Debug, Clone)]
pub struct Instance<'a> {
    /// Its own.
    pub id: InstanceId,
    /// The service's name.
    pub service: &'a str,
    /// The service's build; empty if nobody said.
    pub build: &'a str,
    /// The machine's name.
    pub host: &'a str,
    /// The process's id on that machine.
    pub process_id: u32,
    /// Its consumers. Column `state` holds `{"consumers": {"<name>": {"lanes": 3, "processed": 41}}}`.
    pub consumers: &'a [RunningConsumer],
}

impl Instance<'_> {
    /// Says that the process lives, in one short statement of its own. Who hasn't said so for 20 s by the database's
    /// clock doesn't live.
    ///
    /// # Errors
    /// No connection, or the statement failed or wasn't done within five seconds. Nothing depends on it but what the
    /// command shows and whether it lets a replay begin.
    pub async fn beat(&self, db: &Database) -> Result<(), DatabaseError> {
        let names: Vec<&str> = self.consumers.iter().map(|c| c.name.as_str()).collect();
        let state = self.consumers.iter().map(|consumer| {
            let state = json!({"lanes": consumer.lanes, "processed": consumer.processed});
            (consumer.name.clone(), state)
        });
        let state = json!({"consumers": Map::from_iter(state)});
        let statement = sqlx::query(
            "INSERT INTO instance (id, service, build, host, process_id, consumers, state) \
             VALUES ($1, $2, $3, $4, $5, $6, $7::text::jsonb) \
             ON CONFLICT (id) DO UPDATE SET state = excluded.state, seen_at = clock_timestamp()",
        )
        .bind(self.id.0)
        .bind(self.service)
        .bind(self.build)
        .bind(self.host)
        .bind(i32::try_from(self.process_id).unwrap_or(i32::MAX))
        .bind(names)
        .bind(state.to_string());
        let mut held = db.hold().await?;
        held.answered_within(LIMIT, async |conn| statement.execute(conn).await)
            .await
            .map_err(|err| DatabaseError::new("say that this process lives", &err))?;
        held.give_back();
        Ok(())
    }

    /// Takes the process out of the list: it ends.
    ///
    /// # Errors
    /// No connection, or the statement failed or wasn't done within five seconds. The process then counts as living
    /// for another 20 s.
    pub async fn leave(&self, db: &Database) -> Result<(), DatabaseError> {
        let statement = sqlx::query("DELETE FROM instance WHERE id = $1").bind(self.id.0);
        let mut held = db.hold().await?;
        held.answered_within(LIMIT, async |conn| statement.execute(conn).await)
            .await
            .map_err(|err| DatabaseError::new("say that this process ends", &err))?;
        held.give_back();
        Ok(())
    }
}

/// Forgets processes that haven't been seen for a day, 1,000 at most, and says how many.
///
/// # Errors
/// No connection, or the statement failed or wasn't done within five seconds.
pub async fn forget_instances(db: &Database) -> Result<u64, DatabaseError> {
    let mut held = db.hold().await?;
    let done = held
        .answered_within(LIMIT, async |conn| {
            sqlx::query(
                "DELETE FROM instance WHERE id IN (SELECT id FROM instance \
                 WHERE seen_at < clock_timestamp() - interval '1 day' LIMIT 1000 FOR UPDATE SKIP LOCKED)",
            )
            .execute(conn)
            .await
        })
        .await
        .map_err(|err| DatabaseError::new("forget processes that ended", &err))?;
    held.give_back();
    Ok(done.rows_affected())
}
