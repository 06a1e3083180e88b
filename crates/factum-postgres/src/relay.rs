use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::connection::millis;
use crate::database::Database;
use crate::dead_letter::text;
use crate::error::DatabaseError;

/// How many slots the outbox's keys are spread over: `slot` is the key's hash modulo 64. Fixed with the table: the
/// column's expression and the 64 rows of `relay_lease` say so, and [`check_schema`](crate::check_schema) compares.
pub const SLOTS: u8 = 64;

const ERROR_BYTES: usize = 1024;

/// What one relay asks the outbox for. Relays share the slots: at most one holds a slot at a time, so the events of one
/// key leave in order whatever the number of relays (public case 16).
///
/// A claim reads rows without locking them. `FOR UPDATE SKIP LOCKED` alone, as OBX-2 has it, lets
/// a second relay step over a key's first row and send its second; here the lease of the slot keeps others
/// out, with a fencing token of the slot that every statement checks.
///
/// Relays know of each other by `relay_member`: each says by every [`renew`](RelayStore::renew) that it is there, and
/// learns how many slots are its [`share`](Lease::share). One that has more gives some back, one that has fewer takes free
/// ones, one that died loses all by the clock, which is the database's.
#[derive(Debug, Clone)]
pub struct RelayStore {
    db: Database,
    owner: String,
    lease: Duration,
    occasions: bool,
}

/// The right to send the rows of some slots until a time. All slots of a relay end at the same time; each has a token of
/// its own.
#[derive(Debug, Clone)]
pub struct Lease {
    tokens: BTreeMap<i16, i64>,
    share: usize,
    relays: usize,
    expires_at: Instant,
}

/// What became different with a [`renew`](RelayStore::renew).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseChange {
    /// Slots that are held from now on, ascending.
    pub taken: Vec<i16>,
    /// Slots that another relay has taken, ascending. One that was lost and is held again with a new token is in both
    /// lists.
    pub lost: Vec<i16>,
}

/// How much one claim takes at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimLimit {
    /// Rows.
    pub rows: u32,
    /// Bytes of payload; the row that reaches it is still taken, so that a large row gets through.
    pub bytes: u64,
}

impl Lease {
    /// The slots held, ascending, each of 0 to 63.
    #[must_use]
    pub fn slots(&self) -> Vec<i16> {
        self.tokens.keys().copied().collect()
    }

    /// The fencing token of a slot that is held: greater at every change of hands.
    #[must_use]
    pub fn token(&self, slot: i16) -> Option<i64> {
        self.tokens.get(&slot).copied()
    }

    /// How many slots are this relay's when all relays have as many as they should.
    #[must_use]
    pub fn share(&self) -> usize {
        self.share
    }

    /// How many slots to give back, because other relays have too few.
    #[must_use]
    pub fn surplus(&self) -> usize {
        self.tokens.len().saturating_sub(self.share)
    }

    /// How many relays are there, this one included.
    #[must_use]
    pub fn relays(&self) -> usize {
        self.relays
    }

    /// When it ends by this machine's clock; counted from before the statement was sent, so never
    /// later than the database thinks.
    #[must_use]
    pub fn expires_at(&self) -> Instant {
        self.expires_at
    }

    /// The part of it for these slots, for a batch that holds rows of no others.
    #[must_use]
    pub fn part(&self, slots: &[i16]) -> Lease {
        let held = slots
            .iter()
            .filter_map(|slot| Some((*slot, self.token(*slot)?)));
        Lease {
            tokens: held.collect(),
            ..self.clone()
        }
    }

    fn columns(&self) -> (Vec<i16>, Vec<i64>) {
        self.tokens.iter().unzip()
    }
}

/// An outbox row to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow {
    /// Its place in the order.
    pub id: i64,
    /// The slot of its key.
    pub slot: i16,
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

    /// Announces this relay and takes free slots, up to its share. Without a free one the lease has no slots: renew it
    /// until it has.
    ///
    /// # Errors
    /// The statement failed.
    pub async fn join(&self) -> Result<Lease, DatabaseError> {
        let mut lease = Lease {
            tokens: BTreeMap::new(),
            share: 0,
            relays: 0,
            expires_at: Instant::now(),
        };
        self.renew(&mut lease).await?;
        Ok(lease)
    }

    /// Makes the lease last from now on, drops the slots that another relay has taken from it, and takes free ones up to
    /// the relay's share. One statement, whatever the number of slots.
    ///
    /// # Errors
    /// The statement failed; the lease ends at its [`expires_at`](Lease::expires_at).
    pub async fn renew(&self, lease: &mut Lease) -> Result<LeaseChange, DatabaseError> {
        let asked_at = Instant::now();
        let (slots, tokens) = lease.columns();
        let row = self
            .run("renew the relay's lease", async |conn| {
                // All rows are locked, in order, so that relays come one after the other and don't deadlock. One that
                // waited sees the rows as they are then. Other relays' announcements it sees as they were when it
                // asked; the next renewal mends a share that was wrong. One statement, because a process that is
                // stopped between two would keep the locks.
                // A slot of ours that we don't know of was taken by a statement whose answer was lost.
                sqlx::query(
                    "WITH slot AS MATERIALIZED ( \
                         SELECT slot, owner, token, expires_at FROM relay_lease ORDER BY slot FOR UPDATE \
                     ), announced AS ( \
                         INSERT INTO relay_member (owner, expires_at) \
                         VALUES ($1, clock_timestamp() + make_interval(secs => $2 / 1000.0)) \
                         ON CONFLICT (owner) DO UPDATE SET expires_at = excluded.expires_at \
                     ), forgotten AS ( \
                         DELETE FROM relay_member WHERE owner IN ( \
                             SELECT owner FROM relay_member \
                             WHERE owner <> $1 AND expires_at < clock_timestamp() - interval '1 hour' \
                             FOR UPDATE SKIP LOCKED) \
                     ), others AS MATERIALIZED ( \
                         SELECT count(*) AS number, count(*) FILTER (WHERE owner COLLATE \"C\" < $1) AS before \
                         FROM relay_member WHERE owner <> $1 AND expires_at > clock_timestamp() \
                     ), share AS MATERIALIZED ( \
                         SELECT $5 / (number + 1) + (before < $5 % (number + 1))::int AS slots FROM others \
                     ), kept AS MATERIALIZED ( \
                         SELECT slot, token FROM slot \
                         JOIN unnest($3::smallint[], $4::bigint[]) AS held (slot, token) USING (slot, token) \
                         WHERE owner = $1 \
                     ), free AS ( \
                         SELECT slot, token + 1 AS token FROM slot \
                         WHERE (expires_at <= clock_timestamp() OR owner = $1) \
                           AND slot NOT IN (SELECT slot FROM kept) \
                         ORDER BY slot \
                         LIMIT greatest(0, (SELECT slots FROM share) - (SELECT count(*) FROM kept)) \
                     ), renewed AS ( \
                         UPDATE relay_lease AS l \
                         SET owner = $1, token = mine.token, \
                             expires_at = clock_timestamp() + make_interval(secs => $2 / 1000.0) \
                         FROM (SELECT * FROM kept UNION ALL SELECT * FROM free) AS mine \
                         WHERE l.slot = mine.slot \
                         RETURNING l.slot, l.token \
                     ) \
                     SELECT ARRAY(SELECT slot FROM renewed ORDER BY slot), \
                            ARRAY(SELECT token FROM renewed ORDER BY slot), \
                            (SELECT slots FROM share), (SELECT number + 1 FROM others)",
                )
                .bind(&self.owner)
                .bind(f64::from(millis(self.lease)))
                .bind(slots)
                .bind(tokens)
                .bind(i64::from(SLOTS))
                .fetch_one(conn)
                .await
            })
            .await?;
        let read = || -> Result<(Vec<i16>, Vec<i64>, i64, i64), sqlx::Error> {
            Ok((
                row.try_get(0)?,
                row.try_get(1)?,
                row.try_get(2)?,
                row.try_get(3)?,
            ))
        };
        let (slots, tokens, share, relays) =
            read().map_err(|err| DatabaseError::new("renew the relay's lease", &err))?;
        let tokens: BTreeMap<i16, i64> = slots.into_iter().zip(tokens).collect();
        let missing_in = |of: &BTreeMap<i16, i64>, from: &BTreeMap<i16, i64>| -> Vec<i16> {
            let missing = of
                .iter()
                .filter(|(slot, token)| from.get(slot) != Some(token));
            missing.map(|(slot, _)| *slot).collect()
        };
        let change = LeaseChange {
            taken: missing_in(&tokens, &lease.tokens),
            lost: missing_in(&lease.tokens, &tokens),
        };
        *lease = Lease {
            tokens,
            share: usize::try_from(share).unwrap_or(0),
            relays: usize::try_from(relays).unwrap_or(0),
            expires_at: asked_at + self.lease,
        };
        Ok(change)
    }

    /// Gives slots up, so that another relay needn't wait for the lease's end. Nothing of theirs may be on its way. Those
    /// that were lost, or not held, are left alone.
    ///
    /// # Errors
    /// The statement failed; the slots are still held.
    pub async fn give_back(&self, lease: &mut Lease, slots: &[i16]) -> Result<(), DatabaseError> {
        self.release(&lease.part(slots)).await?;
        lease.tokens.retain(|slot, _| !slots.contains(slot));
        Ok(())
    }

    /// Gives all slots up, and takes this relay from the list. Nothing to do for what was lost.
    ///
    /// # Errors
    /// The statement failed; the lease then ends by itself.
    pub async fn leave(&self, lease: Lease) -> Result<(), DatabaseError> {
        self.release(&lease).await?;
        self.run("take the relay from the list", async |conn| {
            sqlx::query("DELETE FROM relay_member WHERE owner = $1")
                .bind(&self.owner)
                .execute(conn)
                .await
        })
        .await?;
        Ok(())
    }

    async fn release(&self, lease: &Lease) -> Result<(), DatabaseError> {
        let (slots, tokens) = lease.columns();
        self.run("release the relay's slots", async |conn| {
            sqlx::query(
                "WITH held AS ( \
                     SELECT l.slot FROM relay_lease AS l \
                     JOIN unnest($2::smallint[], $3::bigint[]) AS held (slot, token) USING (slot, token) \
                     WHERE l.owner = $1 ORDER BY l.slot FOR UPDATE OF l \
                 ) \
                 UPDATE relay_lease AS l SET expires_at = '-infinity' \
                 FROM held WHERE l.slot = held.slot",
            )
            .bind(&self.owner)
            .bind(slots)
            .bind(tokens)
            .execute(conn)
            .await
        })
        .await?;
        Ok(())
    }

    /// The next rows to send of these slots: unpublished, not set aside,
    /// due, of no held key. Slot by slot in the given order, so that callers rotate it, and in each by id. By
    /// state and never by `id > last`, so a row that commits late is
    /// found (public case 14). Empty when the lease has expired; nothing of a slot that was lost.
    ///
    /// # Errors
    /// The statement failed.
    pub async fn claim(
        &self,
        lease: &Lease,
        slots: &[i16],
        limit: ClaimLimit,
        held_keys: &[String],
    ) -> Result<Vec<OutboxRow>, DatabaseError> {
        let (slots, tokens): (Vec<i16>, Vec<i64>) = slots
            .iter()
            .filter_map(|slot| Some((*slot, lease.token(*slot)?)))
            .unzip();
        self.run("claim outbox rows", async |conn| {
            // It reads as many rows as it takes, however long the backlog: the loop over the slots ends at the limit. An
            // outbox in which nothing waits costs one look. The order and the range of one slot are written so that only
            // the index by slot fits: the planner takes those by id for as good, and then reads the published rows, or
            // those of all slots. The limit of one slot hides its number, else the planner takes a bitmap, which reads the
            // index's entries of rows that were sent, again and again. No plan is kept: one from when the
            // table was empty reads the whole table. A value outside the row's page is read for taken rows alone.
            sqlx::query(
                "WITH held AS MATERIALIZED ( \
                     SELECT l.slot, given.place \
                     FROM unnest($2::smallint[], $3::bigint[]) WITH ORDINALITY AS given (slot, token, place) \
                     JOIN relay_lease AS l ON l.slot = given.slot AND l.token = given.token \
                     WHERE l.owner = $1 AND l.expires_at > clock_timestamp() \
                       AND (SELECT id FROM outbox WHERE published_at IS NULL AND set_aside_at IS NULL \
                            ORDER BY slot, id LIMIT 1) IS NOT NULL \
                     ORDER BY given.place \
                 ), next AS ( \
                     SELECT held.place, o.* FROM held CROSS JOIN LATERAL ( \
                         SELECT * FROM outbox \
                         WHERE slot BETWEEN held.slot AND held.slot \
                           AND published_at IS NULL AND set_aside_at IS NULL \
                           AND (not_before IS NULL OR not_before <= clock_timestamp()) \
                           AND key <> ALL($4) \
                         ORDER BY slot, id LIMIT (SELECT $5::bigint)) AS o \
                     LIMIT $5 \
                 ), sized AS ( \
                     SELECT next.*, sum(octet_length(payload)) OVER \
                            (ORDER BY place, id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes \
                     FROM next \
                 ) \
                 SELECT o.id, o.event_id, o.event_type, o.topic, o.key, o.payload, \
                        o.headers::text, \
                        CASE WHEN $7 THEN o.aggregate_id END, \
                        CASE WHEN $7 THEN to_char(o.occurred_at AT TIME ZONE 'UTC', \
                                                  'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') END, \
                        o.purpose <> 'event', o.record_key, o.header_names, o.header_values, \
                        o.tombstone, o.slot \
                 FROM sized AS o WHERE coalesce(o.bytes, 0) < $6 ORDER BY o.place, o.id",
            )
            .persistent(false)
            .bind(&self.owner)
            .bind(slots)
            .bind(tokens)
            .bind(held_keys)
            .bind(i64::from(limit.rows))
            .bind(i64::try_from(limit.bytes).unwrap_or(i64::MAX))
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
                    slot: row.try_get(14)?,
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

    /// Whether any row waits in the outbox, whoever may send it and when: a look that costs next to nothing, for a relay
    /// whose last claim was empty.
    ///
    /// # Errors
    /// The statement failed.
    pub async fn anything_waits(&self) -> Result<bool, DatabaseError> {
        self.run("look into the outbox", async |conn| {
            // The order leaves no index but the one by slot, whenever the plan was made.
            let first = sqlx::query(
                "SELECT id FROM outbox WHERE published_at IS NULL AND set_aside_at IS NULL \
                 ORDER BY slot, id LIMIT 1",
            )
            .fetch_optional(conn)
            .await?;
            Ok(first.is_some())
        })
        .await
    }

    /// Sets `published_at` (OBX-5): for rows that the broker has acknowledged, and for no others.
    /// Gives the number of rows set: fewer than asked when another relay has taken a slot.
    ///
    /// # Errors
    /// The statement failed. The rows will be sent again, and the consumers' dedup absorbs it
    /// (public case 19).
    pub async fn mark_published(&self, lease: &Lease, ids: &[i64]) -> Result<u64, DatabaseError> {
        let (slots, tokens) = lease.columns();
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
                                              JOIN unnest($2::smallint[], $4::bigint[]) \
                                                   AS held (slot, token) USING (slot, token) \
                                              WHERE l.owner = $1))",
                )
                .persistent(false)
                .bind(&self.owner)
                .bind(slots)
                .bind(ids)
                .bind(tokens)
                .execute(conn)
                .await
            })
            .await?;
        Ok(done.rows_affected())
    }

    /// Counts a failed send and keeps its error, cut at 1 KiB. Gives the number of attempts so far;
    /// 0 when another relay has taken the slot.
    ///
    /// # Errors
    /// The statement failed.
    pub async fn record_failure(
        &self,
        lease: &Lease,
        id: i64,
        error: &str,
    ) -> Result<u32, DatabaseError> {
        let (slots, tokens) = lease.columns();
        let attempts = self
            .run("record a failed send", async |conn| {
                sqlx::query_scalar::<_, i32>(
                    "UPDATE outbox AS o SET attempts = o.attempts + 1, last_error = $4 \
                     WHERE o.id = $3 AND o.published_at IS NULL \
                       AND o.slot = ANY(ARRAY(SELECT l.slot FROM relay_lease AS l \
                                              JOIN unnest($2::smallint[], $5::bigint[]) \
                                                   AS held (slot, token) USING (slot, token) \
                                              WHERE l.owner = $1)) \
                     RETURNING o.attempts",
                )
                .bind(&self.owner)
                .bind(slots)
                .bind(id)
                .bind(text(error, ERROR_BYTES))
                .bind(tokens)
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
        let (slots, tokens) = lease.columns();
        self.run("set an outbox row aside", async |conn| {
            sqlx::query(
                "UPDATE outbox AS o SET set_aside_at = clock_timestamp(), last_error = $4 \
                 WHERE o.id = $3 AND o.published_at IS NULL AND o.set_aside_at IS NULL \
                   AND o.slot = ANY(ARRAY(SELECT l.slot FROM relay_lease AS l \
                                              JOIN unnest($2::smallint[], $5::bigint[]) \
                                                   AS held (slot, token) USING (slot, token) \
                                              WHERE l.owner = $1))",
            )
            .bind(&self.owner)
            .bind(slots)
            .bind(id)
            .bind(text(reason, ERROR_BYTES))
            .bind(tokens)
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
