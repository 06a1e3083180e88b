use std::time::{Duration, Instant};

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::connection::millis;
use crate::database::Database;
use crate::dead_letter::text;
use crate::error::DatabaseError;

/// How many slots the outbox's keys are spread over: `slot` is the key's hash modulo 64.
pub const SLOTS: u8 = 64;

const ERROR_BYTES: usize = 1024;

/// What one relay asks the outbox for. At most one relay holds the lease at a time, so the events
/// of one key leave in order whatever the number of relays (public case 16).
///
/// A claim reads rows without locking them. `FOR UPDATE SKIP LOCKED` alone, as OBX-2 has it, lets
/// a second relay step over a key's first row and send its second; here the lease keeps others
/// out, with a fencing token that every statement checks.
#[derive(Debug, Clone)]
pub struct RelayStore {
    db: Database,
    owner: String,
    lease: Duration,
    occasions: bool,
}

/// The right to send the rows of some slots until a time.
#[derive(Debug)]
pub struct Lease {
    slots: Vec<i16>,
    token: i64,
    expires_at: Instant,
}

impl Lease {
    /// The slots held, ascending, each of 0 to 63.
    #[must_use]
    pub fn slots(&self) -> &[i16] {
        &self.slots
    }

    /// The fencing token: greater at every change of hands.
    #[must_use]
    pub fn token(&self) -> i64 {
        self.token
    }

    /// When it ends by this machine's clock; counted from before the statement was sent, so never
    /// later than the database thinks.
    #[must_use]
    pub fn expires_at(&self) -> Instant {
        self.expires_at
    }
}

/// An outbox row to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow {
    /// Its place in the order.
    pub id: i64,
    /// The event's id.
    pub event_id: Uuid,
    /// The event's type.
    pub event_type: String,
    /// The topic to send it to.
    pub topic: String,
    /// The record's key.
    pub key: String,
    /// The record's value, byte for byte.
    pub payload: Vec<u8>,
    /// The record's headers, by name.
    pub headers: Vec<(String, String)>,
    /// Of a row that is no domain event ([`RawRecord`](crate::RawRecord)): what is sent instead of key, headers and,
    /// for a tombstone, the payload.
    pub record: Option<RowRecord>,
    /// What happened to whom and when; only for a store that was asked
    /// ([`with_occasions`](RelayStore::with_occasions)).
    pub occasion: Option<Occasion>,
}

/// What the row of a raw record holds beside the payload, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowRecord {
    /// The record's key.
    pub key: Option<Vec<u8>>,
    /// The record's headers, in order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// Whether the record has no value.
    pub tombstone: bool,
}

/// What an outbox row says of its event beside type and payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occasion {
    /// The aggregate's id.
    pub aggregate_id: String,
    /// When it happened in the business: RFC 3339 in UTC, with six digits of a second's fraction.
    pub occurred_at: String,
}

impl RelayStore {
    /// `owner` names this process (for people who look at `relay_lease`); a lease lasts for
    /// `lease` unless renewed.
    #[must_use]
    pub fn new(db: Database, owner: String, lease: Duration) -> Self {
        Self {
            db,
            owner: text(owner, 255),
            lease,
            occasions: false,
        }
    }

    /// Claims read the [`Occasion`] of each row, too. Without it they neither ask for it nor carry it.
    #[must_use]
    pub fn with_occasions(mut self) -> Self {
        self.occasions = true;
        self
    }

    /// Takes the lease if it is free or expired; `None` while another relay holds it.
    ///
    /// # Errors
    /// The statement failed.
    pub async fn acquire(&self) -> Result<Option<Lease>, DatabaseError> {
        let asked_at = Instant::now();
        let (owner, lease) = (&self.owner, millis(self.lease));
        let rows = self
            .run("acquire the relay's lease", async |conn| {
                // Locked in order, so that two relays don't deadlock; who comes second sees the
                // new expiry once the rows are free, and takes nothing. With any slot held by
                // another relay nothing is taken either: the slots go together.
                sqlx::query(
                    "WITH free AS ( \
                         SELECT slot, token FROM relay_lease \
                         WHERE expires_at <= clock_timestamp() ORDER BY slot FOR UPDATE \
                     ) \
                     UPDATE relay_lease AS l \
                     SET owner = $1, token = (SELECT max(token) + 1 FROM free), \
                         expires_at = clock_timestamp() + make_interval(secs => $2 / 1000.0) \
                     FROM free \
                     WHERE l.slot = free.slot AND (SELECT count(*) FROM free) = $3 \
                     RETURNING l.slot, l.token",
                )
                .bind(owner)
                .bind(f64::from(lease))
                .bind(i64::from(SLOTS))
                .fetch_all(conn)
                .await?
                .iter()
                .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
                .collect::<Result<Vec<(i16, i64)>, sqlx::Error>>()
            })
            .await?;
        let Some(&(_, token)) = rows.first() else {
            return Ok(None);
        };
        let mut slots: Vec<i16> = rows.into_iter().map(|(slot, _)| slot).collect();
        slots.sort_unstable();
        Ok(Some(Lease {
            slots,
            token,
            expires_at: asked_at + self.lease,
        }))
    }

    /// Makes the lease last from now on. `false` when another relay has taken it: stop sending.
    ///
    /// # Errors
    /// The statement failed; the lease ends at its [`expires_at`](Lease::expires_at).
    pub async fn renew(&self, lease: &mut Lease) -> Result<bool, DatabaseError> {
        let asked_at = Instant::now();
        let renewed = self
            .run("renew the relay's lease", async |conn| {
                sqlx::query(
                    "WITH held AS ( \
                         SELECT slot FROM relay_lease WHERE owner = $1 AND token = $2 \
                         ORDER BY slot FOR UPDATE \
                     ) \
                     UPDATE relay_lease AS l \
                     SET expires_at = clock_timestamp() + make_interval(secs => $3 / 1000.0) \
                     FROM held WHERE l.slot = held.slot",
                )
                .bind(&self.owner)
                .bind(lease.token)
                .bind(f64::from(millis(self.lease)))
                .execute(conn)
                .await
            })
            .await?
            .rows_affected();
        let kept = usize::try_from(renewed) == Ok(lease.slots.len());
        if kept {
            lease.expires_at = asked_at + self.lease;
        }
        Ok(kept)
    }

    /// Gives the lease up, so that another relay needn't wait for its end. Nothing to do when it
    /// was lost.
    ///
    /// # Errors
    /// The statement failed; the lease then ends by itself.
    pub async fn release(&self, lease: Lease) -> Result<(), DatabaseError> {
        self.run("release the relay's lease", async |conn| {
            sqlx::query(
                "WITH held AS ( \
                     SELECT slot FROM relay_lease WHERE owner = $1 AND token = $2 \
                     ORDER BY slot FOR UPDATE \
                 ) \
                 UPDATE relay_lease AS l SET expires_at = '-infinity' \
                 FROM held WHERE l.slot = held.slot",
            )
            .bind(&self.owner)
            .bind(lease.token)
            .execute(conn)
            .await
        })
        .await?;
        Ok(())
    }

    /// The next rows to send, at most `limit`, in order of their ids: unpublished, not set aside,
    /// due, of no held key. By state and never by `id > last`, so a row that commits late is
    /// found (public case 14). Empty when the lease has expired or was lost.
    ///
    /// # Errors
    /// The statement failed.
    pub async fn claim(
        &self,
        lease: &Lease,
        limit: u32,
        held_keys: &[String],
    ) -> Result<Vec<OutboxRow>, DatabaseError> {
        self.run("claim outbox rows", async |conn| {
            sqlx::query(
                "SELECT o.id, o.event_id, o.event_type, o.topic, o.key, o.payload, \
                        o.headers::text, \
                        CASE WHEN $5 THEN o.aggregate_id END, \
                        CASE WHEN $5 THEN to_char(o.occurred_at AT TIME ZONE 'UTC', \
                                                  'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') END, \
                        o.purpose <> 'event', o.record_key, o.header_names, o.header_values, \
                        o.tombstone \
                 FROM outbox AS o \
                 WHERE o.published_at IS NULL AND o.set_aside_at IS NULL \
                   AND (o.not_before IS NULL OR o.not_before <= clock_timestamp()) \
                   AND o.key <> ALL($3) \
                   AND o.slot = ANY(ARRAY(SELECT l.slot FROM relay_lease AS l \
                                          WHERE l.owner = $1 AND l.token = $2 \
                                            AND l.expires_at > clock_timestamp())) \
                 ORDER BY o.id LIMIT $4",
            )
            .bind(&self.owner)
            .bind(lease.token)
            .bind(held_keys)
            .bind(i64::from(limit))
            .bind(self.occasions)
            .fetch_all(conn)
            .await?
            .iter()
            .map(|row| {
                let headers: String = row.try_get(6)?;
                let aggregate_id: Option<String> = row.try_get(7)?;
                let occurred_at: Option<String> = row.try_get(8)?;
                Ok(OutboxRow {
                    id: row.try_get(0)?,
                    event_id: row.try_get(1)?,
                    event_type: row.try_get(2)?,
                    topic: row.try_get(3)?,
                    key: row.try_get(4)?,
                    payload: row.try_get(5)?,
                    headers: header_list(&headers),
                    record: row_record(row)?,
                    occasion: aggregate_id
                        .zip(occurred_at)
                        .map(|(aggregate_id, occurred_at)| Occasion {
                            aggregate_id,
                            occurred_at,
                        }),
                })
            })
            .collect()
        })
        .await
    }

    /// Sets `published_at` (OBX-5): for rows that the broker has acknowledged, and for no others.
    /// Gives the number of rows set; 0 when the lease has been taken by another relay.
    ///
    /// # Errors
    /// The statement failed. The rows will be sent again, and the consumers' dedup absorbs it
    /// (public case 19).
    pub async fn mark_published(&self, lease: &Lease, ids: &[i64]) -> Result<u64, DatabaseError> {
        let done = self
            .run("mark outbox rows as published", async |conn| {
                // By the primary key, whatever the statistics say. A plan kept from when the table was
                // empty reads all of a backlog for every batch (1,300 ms for 1,000 of 100,000 rows
                // instead of 20), so none is kept; and the condition is written so that the partial
                // indexes, which grow with the backlog, don't fit.
                sqlx::query(
                    "UPDATE outbox AS o SET published_at = clock_timestamp() \
                     WHERE o.id = ANY($3) AND coalesce(o.published_at, 'infinity') = 'infinity' \
                       AND o.slot = ANY(ARRAY(SELECT l.slot FROM relay_lease AS l \
                                              WHERE l.owner = $1 AND l.token = $2))",
                )
                .persistent(false)
                .bind(&self.owner)
                .bind(lease.token)
                .bind(ids)
                .execute(conn)
                .await
            })
            .await?;
        Ok(done.rows_affected())
    }

    /// Counts a failed send and keeps its error, cut at 1 KiB. Gives the number of attempts so far;
    /// 0 when the lease has been taken by another relay.
    ///
    /// # Errors
    /// The statement failed.
    pub async fn record_failure(
        &self,
        lease: &Lease,
        id: i64,
        error: &str,
    ) -> Result<u32, DatabaseError> {
        let attempts = self
            .run("record a failed send", async |conn| {
                sqlx::query_scalar::<_, i32>(
                    "UPDATE outbox AS o SET attempts = o.attempts + 1, last_error = $4 \
                     WHERE o.id = $3 AND o.published_at IS NULL \
                       AND o.slot = ANY(ARRAY(SELECT l.slot FROM relay_lease AS l \
                                              WHERE l.owner = $1 AND l.token = $2)) \
                     RETURNING o.attempts",
                )
                .bind(&self.owner)
                .bind(lease.token)
                .bind(id)
                .bind(text(error, ERROR_BYTES))
                .fetch_optional(conn)
                .await
            })
            .await?;
        Ok(attempts.map_or(0, |attempts| u32::try_from(attempts).unwrap_or(0)))
    }

    /// Sets a hopeless row aside: no claim returns it any more, the key's later rows flow, and
    /// the row stays for a person to see. The reason is cut at 1 KiB.
    ///
    /// # Errors
    /// The statement failed.
    pub async fn set_aside(
        &self,
        lease: &Lease,
        id: i64,
        reason: &str,
    ) -> Result<(), DatabaseError> {
        self.run("set an outbox row aside", async |conn| {
            sqlx::query(
                "UPDATE outbox AS o SET set_aside_at = clock_timestamp(), last_error = $4 \
                 WHERE o.id = $3 AND o.published_at IS NULL AND o.set_aside_at IS NULL \
                   AND o.slot = ANY(ARRAY(SELECT l.slot FROM relay_lease AS l \
                                          WHERE l.owner = $1 AND l.token = $2))",
            )
            .bind(&self.owner)
            .bind(lease.token)
            .bind(id)
            .bind(text(reason, ERROR_BYTES))
            .execute(conn)
            .await
        })
        .await?;
        Ok(())
    }

    /// One statement on a lent connection, in a transaction of its own.
    async fn run<T>(
        &self,
        what: &'static str,
        statement: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, DatabaseError> {
        let mut held = self.db.hold().await?;
        let done = held.answered(statement).await;
        // An ordinary answer leaves the connection sound.
        if done
            .as_ref()
            .err()
            .is_none_or(|err| !crate::error::ends_connection(err))
        {
            held.give_back();
        }
        done.map_err(|err| DatabaseError::new(what, &err))
    }
}

fn row_record(row: &PgRow) -> Result<Option<RowRecord>, sqlx::Error> {
    if !row.try_get::<bool, _>(9)? {
        return Ok(None);
    }
    let names: Vec<String> = row.try_get(11)?;
    let values: Vec<Option<Vec<u8>>> = row.try_get(12)?;
    Ok(Some(RowRecord {
        key: row.try_get(10)?,
        headers: names.into_iter().zip(values).collect(),
        tombstone: row.try_get(13)?,
    }))
}

/// Headers are an object of texts; what another language wrote as a number goes as its JSON text.
fn header_list(json: &str) -> Vec<(String, String)> {
    let headers: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(json).unwrap_or_default();
    headers
        .into_iter()
        .filter_map(|(name, value)| match value {
            serde_json::Value::String(value) => Some((name, value)),
            serde_json::Value::Null => None,
            other => Some((name, other.to_string())),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::header_list;

    #[test]
    fn headers_of_other_languages_become_texts() {
        let headers = header_list(r#"{"a":"x","b":7,"c":null,"d":{"e":true}}"#);
        let expected = [("a", "x"), ("b", "7"), ("d", r#"{"e":true}"#)];
        assert_eq!(
            headers,
            expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
        assert!(header_list("[]").is_empty());
    }
}
