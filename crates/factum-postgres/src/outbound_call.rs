//! Calls to other systems (table `outbound_call`): written in a handler's transaction, claimed and recorded by
//! whoever sends them, settled in the transaction of the response's handler, and looked at by a person.

use std::time::Duration;

use factum_event::EventId;
use sqlx::postgres::PgRow;
use sqlx::{Connection, PgConnection, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::audit::{self, Actor, Deed};
use crate::connection::millis;
use crate::database::Database;
use crate::dead_letter::text;
use crate::error::{DatabaseError, ends_connection};

/// How long a statement of the caller may take.
const STATEMENT_LIMIT: Duration = Duration::from_secs(10);
const ERROR_BYTES: usize = 1024;
/// Calls are counted up to here.
const COUNT_LIMIT: i64 = 10_000;

/// A call as a handler decides it.
#[derive(Debug, Clone)]
pub struct NewCall<'a> {
    /// Whose caller sends it.
    pub service: &'a str,
    /// The consumer whose handler decides it.
    pub consumer: &'a str,
    /// The event that it follows from.
    pub event_id: EventId,
    /// The event's type.
    pub event_type: &'a str,
    /// Which of the event's calls it is; empty for its only one.
    pub step: &'a str,
    /// The endpoint's name.
    pub endpoint: &'a str,
    /// `POST`, …
    pub method: &'a str,
    /// From the leading `/` on, a query included.
    pub path: &'a str,
    /// Headers besides those that the caller adds.
    pub headers: &'a [(String, Vec<u8>)],
    /// The body, byte for byte.
    pub body: &'a [u8],
    /// The value of the header `Idempotency-Key`.
    pub idempotency_key: &'a str,
    /// The value of the header `traceparent`.
    pub traceparent: Option<&'a str>,
    /// The id of the event's aggregate.
    pub aggregate_id: &'a str,
    /// Whether the calls of that aggregate leave one after the other.
    pub ordered: bool,
}

/// Whether a call was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum CallWritten {
    /// It is new; this is its id.
    Now(i64),
    /// The event has a call of that step already, which stays as it is.
    Before(i64),
}

/// Writes a call into the caller's transaction: one for each consumer, event and step.
///
/// # Errors
/// The statement failed, and with it the transaction.
pub async fn write_call(
    conn: &mut PgConnection,
    call: &NewCall<'_>,
) -> Result<CallWritten, DatabaseError> {
    const WHAT: &str = "write a call";
    let names: Vec<&str> = call.headers.iter().map(|(name, _)| name.as_str()).collect();
    let values: Vec<&[u8]> = call.headers.iter().map(|h| h.1.as_slice()).collect();
    let written = sqlx::query_scalar::<_, i64>(
        "INSERT INTO outbound_call (service, consumer, event_id, event_type, step, endpoint, method, path, \
           header_names, header_values, body, idempotency_key, traceparent, aggregate_id, order_key) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, CASE WHEN $15 THEN $14 END) \
         ON CONFLICT (consumer, event_id, step) DO NOTHING RETURNING id",
    )
    .bind(call.service)
    .bind(call.consumer)
    .bind(call.event_id.as_uuid())
    .bind(call.event_type)
    .bind(call.step)
    .bind(call.endpoint)
    .bind(call.method)
    .bind(call.path)
    .bind(names)
    .bind(values)
    .bind(call.body)
    .bind(call.idempotency_key)
    .bind(call.traceparent)
    .bind(call.aggregate_id)
    .bind(call.ordered)
    .fetch_optional(&mut *conn)
    .await
    .map_err(|err| DatabaseError::new(WHAT, &err))?;
    if let Some(id) = written {
        return Ok(CallWritten::Now(id));
    }
    sqlx::query_scalar(
        "SELECT id FROM outbound_call WHERE consumer = $1 AND event_id = $2 AND step = $3",
    )
    .bind(call.consumer)
    .bind(call.event_id.as_uuid())
    .bind(call.step)
    .fetch_one(conn)
    .await
    .map(CallWritten::Before)
    .map_err(|err| DatabaseError::new(WHAT, &err))
}

/// What one caller asks the table for. Any number of callers may run: a claim is a lease with a token of its own, and
/// an outcome is recorded only by who still has the token and only while the call is pending (public case 11).
#[derive(Debug, Clone)]
pub struct CallStore {
    db: Database,
    service: String,
    owner: String,
}

/// A call to send.
#[derive(Debug, Clone)]
pub struct DueCall {
    /// Its id.
    pub id: i64,
    /// The claim's token.
    pub token: i64,
    /// How often it was claimed, this time included: 1 or more.
    pub attempt: u32,
    /// The event that it follows from.
    pub event_id: Uuid,
    /// `POST`, …
    pub method: String,
    /// From the leading `/` on.
    pub path: String,
    /// Headers besides those that the caller adds.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body, byte for byte.
    pub body: Vec<u8>,
    /// The value of the header `Idempotency-Key`.
    pub idempotency_key: String,
    /// The value of the header `traceparent`.
    pub traceparent: Option<String>,
}

/// What [`CallStore::claim`] found.
#[derive(Debug, Default)]
pub struct ClaimedCalls {
    /// To be sent before the lease ends.
    pub calls: Vec<DueCall>,
    /// So many were set aside as unknown, because their keys have expired.
    pub unknown: u64,
}

/// What became of a call that was sent.
#[derive(Debug, Clone)]
pub struct CallOutcome {
    /// The call.
    pub id: i64,
    /// The token of its claim.
    pub token: i64,
    /// What it is from now on.
    pub next: CallNext,
    /// The response, if there was one.
    pub response: Option<CallResponse>,
    /// What went wrong, without a value.
    pub error: Option<String>,
}

/// The state that a call takes after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallNext {
    /// It is sent again, after so long at the earliest.
    Retry(Duration),
    /// It has its response, which a handler takes.
    Answered,
    /// It has its response, and no handler takes it.
    Done,
    /// It waits for a person.
    SetAside,
}

/// A response as it was received, or the beginning of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallResponse {
    /// The status code.
    pub status: u16,
    /// The headers, in order.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// Whether the body went on.
    pub cut: bool,
}

impl CallStore {
    /// `owner` names this process, for people who look at the table.
    #[must_use]
    pub fn new(db: Database, service: String, owner: String) -> Self {
        Self {
            db,
            service,
            owner: text(owner, 255),
        }
    }

    /// Claims up to `limit` calls of an endpoint that are due, for `lease`, and says when each was first sent: that is
    /// committed before a byte leaves. A call whose key may have been forgotten, which is `key_lifetime` after it was
    /// first sent, becomes unknown instead. A call with an order key waits until the one before it is finished.
    ///
    /// # Errors
    /// The statement failed.
    pub async fn claim(
        &self,
        endpoint: &str,
        limit: u32,
        lease: Duration,
        key_lifetime: Duration,
    ) -> Result<ClaimedCalls, DatabaseError> {
        let rows = self
            .run("claim calls", async |conn| {
                sqlx::query(
                    "WITH due AS ( \
                       SELECT id FROM outbound_call AS c \
                        WHERE service = $1 AND endpoint = $2 AND state = 'pending' \
                          AND next_attempt_at <= clock_timestamp() \
                          AND (order_key IS NULL OR NOT EXISTS ( \
                               SELECT 1 FROM outbound_call AS e \
                                WHERE e.consumer = c.consumer AND e.endpoint = c.endpoint \
                                  AND e.order_key = c.order_key AND e.id < c.id \
                                  AND e.state IN ('pending', 'answered', 'set_aside', 'unknown'))) \
                        ORDER BY next_attempt_at, id LIMIT $3 FOR UPDATE SKIP LOCKED), \
                     moment AS (SELECT clock_timestamp() AS now) \
                     UPDATE outbound_call AS c SET \
                       state = CASE WHEN c.key_expires_at <= now THEN 'unknown' ELSE 'pending' END, \
                       error = CASE WHEN c.key_expires_at <= now \
                               THEN 'the key''s lifetime is over and nobody knows whether the call took effect: reconcile' \
                               ELSE c.error END, \
                       attempts = c.attempts + CASE WHEN c.key_expires_at <= now THEN 0 ELSE 1 END, \
                       claimed_by = CASE WHEN c.key_expires_at <= now THEN NULL ELSE $4 END, \
                       claim_token = c.claim_token + 1, \
                       next_attempt_at = now + $5 * interval '1 millisecond', \
                       first_sent_at = coalesce(c.first_sent_at, now), \
                       last_sent_at = CASE WHEN c.key_expires_at <= now THEN c.last_sent_at ELSE now END, \
                       key_expires_at = coalesce(c.key_expires_at, now + $6 * interval '1 millisecond') \
                     FROM due, moment WHERE c.id = due.id AND c.state = 'pending' \
                     RETURNING c.state, c.id, c.claim_token, c.attempts, c.event_id, c.method, c.path, \
                       c.header_names, c.header_values, c.body, c.idempotency_key, c.traceparent",
                )
                .bind(&self.service)
                .bind(endpoint)
                .bind(i64::from(limit))
                .bind(&self.owner)
                .bind(i64::from(millis(lease)))
                .bind(i64::from(millis(key_lifetime)))
                .fetch_all(conn)
                .await
            })
            .await?;
        let mut claimed = ClaimedCalls::default();
        for row in rows {
            let read = || -> Result<Option<DueCall>, sqlx::Error> {
                if row.try_get::<&str, _>(0)? == "unknown" {
                    return Ok(None);
                }
                let names: Vec<String> = row.try_get(7)?;
                let values: Vec<Vec<u8>> = row.try_get(8)?;
                Ok(Some(DueCall {
                    id: row.try_get(1)?,
                    token: row.try_get(2)?,
                    attempt: u32::try_from(row.try_get::<i32, _>(3)?).unwrap_or(1),
                    event_id: row.try_get(4)?,
                    method: row.try_get(5)?,
                    path: row.try_get(6)?,
                    headers: names.into_iter().zip(values).collect(),
                    body: row.try_get(9)?,
                    idempotency_key: row.try_get(10)?,
                    traceparent: row.try_get(11)?,
                }))
            };
            match read().map_err(|err| DatabaseError::new("claim calls", &err))? {
                Some(call) => claimed.calls.push(call),
                None => claimed.unknown += 1,
            }
        }
        Ok(claimed)
    }

    /// Records outcomes, and gives the ids of those that it recorded: the others had been claimed by somebody else
    /// meanwhile, whose outcome counts.
    ///
    /// # Errors
    /// The statement failed; nothing is recorded.
    pub async fn record(&self, outcomes: &[CallOutcome]) -> Result<Vec<i64>, DatabaseError> {
        let column = |of: fn(&CallOutcome) -> i64| outcomes.iter().map(of).collect::<Vec<i64>>();
        let response = |o: &CallOutcome| o.response.clone();
        let states: Vec<&str> = outcomes.iter().map(|o| o.next.state()).collect();
        let statuses: Vec<Option<i16>> = outcomes
            .iter()
            .map(|o| {
                o.response
                    .as_ref()
                    .and_then(|r| i16::try_from(r.status).ok())
            })
            .collect();
        let headers: Vec<Option<String>> = outcomes
            .iter()
            .map(|o| o.response.as_ref().map(|r| header_pairs(&r.headers)))
            .collect();
        let bodies: Vec<Option<Vec<u8>>> = outcomes
            .iter()
            .map(|o| response(o).map(|r| r.body))
            .collect();
        let cuts: Vec<bool> = outcomes
            .iter()
            .map(|o| o.response.as_ref().is_some_and(|r| r.cut))
            .collect();
        let errors: Vec<Option<String>> = outcomes
            .iter()
            .map(|o| o.error.as_ref().map(|error| text(error, ERROR_BYTES)))
            .collect();
        self.run("record calls", async |conn| {
            sqlx::query_scalar(
                "UPDATE outbound_call AS c SET \
                   state = g.state, status = g.status, response_headers = g.headers::jsonb, response_body = g.body, \
                   response_cut = g.cut, error = g.error, claimed_by = NULL, \
                   next_attempt_at = clock_timestamp() + g.delay * interval '1 millisecond', \
                   answered_at = CASE WHEN g.state IN ('answered', 'done') THEN clock_timestamp() END, \
                   finished_at = CASE WHEN g.state = 'done' THEN clock_timestamp() END \
                 FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::smallint[], $5::text[], $6::bytea[], \
                             $7::boolean[], $8::text[], $9::bigint[]) \
                      AS g (id, token, state, status, headers, body, cut, error, delay) \
                 WHERE c.id = g.id AND c.claim_token = g.token AND c.state = 'pending' \
                 RETURNING c.id",
            )
            .bind(column(|o| o.id))
            .bind(column(|o| o.token))
            .bind(states)
            .bind(statuses)
            .bind(headers)
            .bind(bodies)
            .bind(cuts)
            .bind(errors)
            .bind(column(|o| match o.next {
                CallNext::Retry(delay) => i64::from(millis(delay)),
                _ => 0,
            }))
            .fetch_all(conn)
            .await
        })
        .await
    }

    /// A response's handler failed: it is called again after `retry_after`, or the call is set aside with its response.
    ///
    /// # Errors
    /// The statement failed.
    pub async fn answer_failed(
        &self,
        id: i64,
        retry_after: Option<Duration>,
        error: &str,
    ) -> Result<(), DatabaseError> {
        self.run("record a response's handler's failure", async |conn| {
            sqlx::query(
                "UPDATE outbound_call SET answer_attempts = answer_attempts + 1, error = $2, \
                   state = CASE WHEN $3::bigint IS NULL THEN 'set_aside' ELSE 'answered' END, \
                   next_attempt_at = clock_timestamp() + coalesce($3, 0) * interval '1 millisecond' \
                 WHERE id = $1 AND state = 'answered'",
            )
            .bind(id)
            .bind(text(error, ERROR_BYTES))
            .bind(retry_after.map(|delay| i64::from(millis(delay))))
            .execute(conn)
            .await
            .map(drop)
        })
        .await
    }

    /// How many unfinished calls an endpoint has, by state, each counted up to 10,000.
    ///
    /// # Errors
    /// The statement failed.
    pub async fn count(&self, endpoint: &str) -> Result<Vec<(CallState, i64)>, DatabaseError> {
        let mut counts = Vec::new();
        for state in CallState::UNFINISHED {
            let count = self
                .run("count calls", async |conn| {
                    sqlx::query_scalar(
                        "SELECT count(*) FROM (SELECT 1 FROM outbound_call \
                          WHERE state IN ('pending', 'answered', 'set_aside', 'unknown') AND state = $1 \
                            AND service = $2 AND endpoint = $3 LIMIT $4) AS counted",
                    )
                    .bind(state.as_str())
                    .bind(&self.service)
                    .bind(endpoint)
                    .bind(COUNT_LIMIT)
                    .fetch_one(conn)
                    .await
                })
                .await?;
            counts.push((*state, count));
        }
        Ok(counts)
    }

    async fn run<T>(
        &self,
        what: &'static str,
        statement: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, DatabaseError> {
        run(&self.db, what, statement).await
    }
}

/// One statement on a connection of its own.
async fn run<T>(
    db: &Database,
    what: &'static str,
    statement: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
) -> Result<T, DatabaseError> {
    let mut held = db.hold().await?;
    let done = held.answered_within(STATEMENT_LIMIT, statement).await;
    // An ordinary answer leaves the connection sound.
    if done.as_ref().err().is_none_or(|err| !ends_connection(err)) {
        held.give_back();
    }
    done.map_err(|err| DatabaseError::new(what, &err))
}

impl CallNext {
    fn state(self) -> &'static str {
        match self {
            CallNext::Retry(_) => "pending",
            CallNext::Answered => "answered",
            CallNext::Done => "done",
            CallNext::SetAside => "set_aside",
        }
    }
}

/// A call whose response a handler is to take.
#[derive(Debug, Clone)]
pub struct AnsweredCall {
    /// Its id.
    pub id: i64,
    /// The consumer whose handler decided it.
    pub consumer: String,
    /// The event that it follows from.
    pub event_id: EventId,
    /// The event's type.
    pub event_type: String,
    /// Which of the event's calls it is; empty for its only one.
    pub step: String,
    /// The endpoint's name.
    pub endpoint: String,
    /// The value of the header `traceparent`.
    pub traceparent: Option<String>,
    /// The id of the event's aggregate.
    pub aggregate_id: String,
    /// How often the handler failed.
    pub failures: u32,
    /// The response.
    pub response: CallResponse,
}

/// Locks up to `limit` calls whose response is due for its handler, in the open transaction.
pub(crate) async fn lock_answered(
    conn: &mut PgConnection,
    service: &str,
    endpoints: &[String],
    limit: u32,
) -> Result<Vec<AnsweredCall>, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT id, consumer, event_id, event_type, step, endpoint, traceparent, aggregate_id, answer_attempts, status, \
                response_headers::text, response_body, response_cut \
           FROM outbound_call \
          WHERE service = $1 AND endpoint = ANY($2) AND state = 'answered' AND next_attempt_at <= clock_timestamp() \
          ORDER BY next_attempt_at, id LIMIT $3 FOR UPDATE SKIP LOCKED",
    )
    .bind(service)
    .bind(endpoints)
    .bind(i64::from(limit))
    .fetch_all(conn)
    .await?;
    let read = |row: PgRow| {
        let event_id: Uuid = row.try_get(2)?;
        Ok(AnsweredCall {
            id: row.try_get(0)?,
            consumer: row.try_get(1)?,
            event_id: EventId::foreign(event_id).map_err(|err| sqlx::Error::ColumnDecode {
                index: "event_id".to_owned(),
                source: Box::new(err),
            })?,
            event_type: row.try_get(3)?,
            step: row.try_get(4)?,
            endpoint: row.try_get(5)?,
            traceparent: row.try_get(6)?,
            aggregate_id: row.try_get(7)?,
            failures: u32::try_from(row.try_get::<i32, _>(8)?).unwrap_or(0),
            response: CallResponse {
                status: u16::try_from(row.try_get::<Option<i16>, _>(9)?.unwrap_or(0)).unwrap_or(0),
                headers: pairs(row.try_get::<Option<String>, _>(10)?.as_deref()),
                body: row.try_get::<Option<Vec<u8>>, _>(11)?.unwrap_or_default(),
                cut: row.try_get(12)?,
            },
        })
    };
    rows.into_iter().map(read).collect()
}

/// Marks calls as done, their handlers having succeeded, in the open transaction; how many were still to be done.
pub(crate) async fn finish_answered(
    conn: &mut PgConnection,
    ids: &[i64],
) -> Result<u64, sqlx::Error> {
    sqlx::query(
        "UPDATE outbound_call SET state = 'done', finished_at = clock_timestamp(), error = NULL \
          WHERE id = ANY($1) AND state = 'answered'",
    )
    .bind(ids)
    .execute(conn)
    .await
    .map(|done| done.rows_affected())
}

/// Where a call stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallState {
    /// It is to be sent, for the first time or again.
    Pending,
    /// Its response is there, and its handler has yet to take it.
    Answered,
    /// Finished.
    Done,
    /// A person must look at its response.
    SetAside,
    /// Nobody knows whether it took effect, and it isn't sent any more: a person must reconcile.
    Unknown,
    /// A person has settled it.
    Resolved,
}

impl CallState {
    /// The states of calls that are not finished.
    pub const UNFINISHED: &'static [CallState] = &[
        CallState::Pending,
        CallState::Answered,
        CallState::SetAside,
        CallState::Unknown,
    ];

    /// Its name in the table and on the screen.
    pub const fn as_str(self) -> &'static str {
        match self {
            CallState::Pending => "pending",
            CallState::Answered => "answered",
            CallState::Done => "done",
            CallState::SetAside => "set_aside",
            CallState::Unknown => "unknown",
            CallState::Resolved => "resolved",
        }
    }

    fn parse(name: &str) -> CallState {
        match name {
            "pending" => CallState::Pending,
            "answered" => CallState::Answered,
            "done" => CallState::Done,
            "set_aside" => CallState::SetAside,
            "resolved" => CallState::Resolved,
            // The table's own check leaves nothing else.
            _ => CallState::Unknown,
        }
    }
}

/// A call as a person sees it: neither the body nor a header's value of request or response.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CallRow {
    /// Its id.
    pub id: i64,
    /// Whose caller sends it.
    pub service: String,
    /// The consumer whose handler decided it.
    pub consumer: String,
    /// The event that it follows from.
    pub event_id: Uuid,
    /// The event's type.
    pub event_type: String,
    /// Which of the event's calls it is; empty for its only one.
    pub step: String,
    /// The endpoint's name.
    pub endpoint: String,
    /// `POST`, …
    pub method: String,
    /// From the leading `/` on.
    pub path: String,
    /// The value of the header `Idempotency-Key`.
    pub idempotency_key: String,
    /// Where it stands.
    pub state: CallState,
    /// How often it was claimed to be sent.
    pub attempts: u32,
    /// The last response's status.
    pub status: Option<u16>,
    /// What went wrong at last.
    pub error: Option<String>,
    /// Length of the body in bytes.
    pub body_bytes: u64,
    /// Length of the last response's body in bytes, as far as it was kept.
    pub response_bytes: Option<u64>,
    /// When it was decided.
    pub created_at: OffsetDateTime,
    /// When it was first sent.
    pub first_sent_at: Option<OffsetDateTime>,
    /// When it is due.
    pub next_attempt_at: OffsetDateTime,
    /// From when on it is never sent again.
    pub key_expires_at: Option<OffsetDateTime>,
    /// Calls of the same order key that wait for this one, up to 1,000.
    pub waiting: u64,
    /// What a person found out about it: their outcome and reason, from the audit.
    pub resolution: Option<String>,
}

const ROW: &str = "\
    id, service, consumer, event_id, event_type, step, endpoint, method, path, idempotency_key, state, attempts, \
    status, error, length(body)::bigint, length(response_body)::bigint, created_at, first_sent_at, next_attempt_at, \
    key_expires_at, \
    (SELECT count(*) FROM (SELECT 1 FROM outbound_call AS later \
      WHERE later.consumer = c.consumer AND later.endpoint = c.endpoint AND later.order_key = c.order_key \
        AND later.id > c.id AND later.state IN ('pending', 'answered', 'set_aside', 'unknown') LIMIT 1000) AS counted), \
    CASE WHEN state = 'resolved' THEN (SELECT a.reason FROM audit a \
      WHERE a.action = 'calls resolve' AND a.subject = 'call ' || c.id ORDER BY a.id DESC LIMIT 1) END";

fn read_row(row: &PgRow) -> Result<CallRow, sqlx::Error> {
    let size = |n: Option<i64>| n.and_then(|n| u64::try_from(n).ok());
    Ok(CallRow {
        id: row.try_get(0)?,
        service: row.try_get(1)?,
        consumer: row.try_get(2)?,
        event_id: row.try_get(3)?,
        event_type: row.try_get(4)?,
        step: row.try_get(5)?,
        endpoint: row.try_get(6)?,
        method: row.try_get(7)?,
        path: row.try_get(8)?,
        idempotency_key: row.try_get(9)?,
        state: CallState::parse(row.try_get(10)?),
        attempts: u32::try_from(row.try_get::<i32, _>(11)?).unwrap_or(0),
        status: row
            .try_get::<Option<i16>, _>(12)?
            .and_then(|status| u16::try_from(status).ok()),
        error: row.try_get(13)?,
        body_bytes: size(row.try_get(14)?).unwrap_or(0),
        response_bytes: size(row.try_get(15)?),
        created_at: row.try_get(16)?,
        first_sent_at: row.try_get(17)?,
        next_attempt_at: row.try_get(18)?,
        key_expires_at: row.try_get(19)?,
        waiting: size(row.try_get(20)?).unwrap_or(0),
        resolution: row.try_get(21)?,
    })
}

/// Unfinished calls: those in doubt (set aside, unknown) before those under way, each by id from `after` on; of one
/// state or of all, of one endpoint or of all; at most `limit`.
///
/// # Errors
/// The statement failed.
pub async fn unfinished_calls(
    db: &Database,
    endpoint: Option<&str>,
    state: Option<CallState>,
    after: i64,
    limit: u32,
) -> Result<Vec<CallRow>, DatabaseError> {
    const DOUBT: &str = "state IN ('set_aside', 'unknown')";
    const UNDER_WAY: &str = "state IN ('pending', 'answered', 'set_aside', 'unknown') AND state IN ('pending', 'answered')";
    const WHAT: &str = "list calls";
    let mut calls = Vec::new();
    for group in [DOUBT, UNDER_WAY] {
        let left = i64::from(limit) - i64::try_from(calls.len()).unwrap_or(i64::MAX);
        if left <= 0 {
            break;
        }
        let sql = sqlx::AssertSqlSafe(format!(
            "SELECT {ROW} FROM outbound_call AS c WHERE {group} AND id > $1 \
               AND ($2::text IS NULL OR endpoint = $2) AND ($3::text IS NULL OR state = $3) ORDER BY id LIMIT $4"
        ));
        let rows = run(db, WHAT, async |conn| {
            sqlx::query(sql)
                .bind(after)
                .bind(endpoint)
                .bind(state.map(CallState::as_str))
                .bind(left)
                .fetch_all(conn)
                .await
        })
        .await?;
        for row in &rows {
            calls.push(read_row(row).map_err(|err| DatabaseError::new(WHAT, &err))?);
        }
    }
    Ok(calls)
}

/// One call; `None` when there is none of that id.
///
/// # Errors
/// The statement failed.
pub async fn find_call(db: &Database, id: i64) -> Result<Option<CallRow>, DatabaseError> {
    const WHAT: &str = "read a call";
    let sql = sqlx::AssertSqlSafe(format!(
        "SELECT {ROW} FROM outbound_call AS c WHERE id = $1"
    ));
    let row = run(db, WHAT, async |conn| {
        sqlx::query(sql).bind(id).fetch_optional(conn).await
    })
    .await?;
    row.as_ref()
        .map(read_row)
        .transpose()
        .map_err(|err| DatabaseError::new(WHAT, &err))
}

/// Why an action on a call was refused. Nothing was done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallRefusal {
    /// There is no such call.
    #[error("there is no call of that id")]
    NoCall,
    /// It isn't in a state for that.
    #[error("the call is {}", .0.as_str())]
    State(CallState),
    /// Nobody knows whether it took effect, and its key may be forgotten.
    #[error("nobody knows whether the call took effect, and its key may be forgotten")]
    Unknown,
    /// The other system may have forgotten the key: sent again, the call could take effect twice.
    #[error("the key's lifetime ended at {0}")]
    KeyExpired(OffsetDateTime),
    /// The database failed.
    #[error(transparent)]
    Database(DatabaseError),
}

/// Has a call that was set aside sent again, with the same key and bytes; or, where its response's handler had failed,
/// has that handler called again.
///
/// # Errors
/// See [`CallRefusal`].
pub async fn retry_call(db: &Database, id: i64, actor: Actor<'_>) -> Result<(), CallRefusal> {
    act(db, "retry a call", async |conn| {
        let row = sqlx::query(
            "SELECT state, consumer, answered_at IS NOT NULL, key_expires_at, key_expires_at <= clock_timestamp() \
               FROM outbound_call WHERE id = $1 FOR UPDATE",
        )
        .bind(id)
        .fetch_optional(&mut *conn)
        .await?;
        let Some(row) = row else {
            return Ok(Err(CallRefusal::NoCall));
        };
        let (state, answered) = (CallState::parse(row.try_get(0)?), row.try_get::<bool, _>(2)?);
        let expires_at: Option<OffsetDateTime> = row.try_get(3)?;
        let expired = row.try_get::<Option<bool>, _>(4)?.unwrap_or(false);
        match (state, expires_at) {
            (CallState::Unknown, _) => return Ok(Err(CallRefusal::Unknown)),
            (CallState::SetAside, Some(at)) if expired && !answered => {
                return Ok(Err(CallRefusal::KeyExpired(at)));
            }
            (CallState::SetAside, _) => {}
            (state, _) => return Ok(Err(CallRefusal::State(state))),
        }
        sqlx::query(
            "UPDATE outbound_call SET state = CASE WHEN answered_at IS NULL THEN 'pending' ELSE 'answered' END, \
               answer_attempts = 0, next_attempt_at = clock_timestamp() \
             WHERE id = $1 AND state = 'set_aside'",
        )
        .bind(id)
        .execute(&mut *conn)
        .await?;
        write_audit(conn, id, row.try_get(1)?, "calls retry", actor).await?;
        Ok(Ok(()))
    })
    .await
}

/// Settles a call in doubt by what a person found out; what waits for it in its order goes on.
///
/// # Errors
/// See [`CallRefusal`].
pub async fn resolve_call(
    db: &Database,
    id: i64,
    outcome: &str,
    actor: Actor<'_>,
) -> Result<(), CallRefusal> {
    act(db, "resolve a call", async |conn| {
        let row = sqlx::query("SELECT state, consumer FROM outbound_call WHERE id = $1 FOR UPDATE")
            .bind(id)
            .fetch_optional(&mut *conn)
            .await?;
        let Some(row) = row else {
            return Ok(Err(CallRefusal::NoCall));
        };
        match CallState::parse(row.try_get(0)?) {
            CallState::SetAside | CallState::Unknown => {}
            state => return Ok(Err(CallRefusal::State(state))),
        }
        sqlx::query(
            "UPDATE outbound_call SET state = 'resolved', finished_at = clock_timestamp() \
              WHERE id = $1 AND state IN ('set_aside', 'unknown')",
        )
        .bind(id)
        .execute(&mut *conn)
        .await?;
        let reason = format!("{outcome}: {}", actor.reason);
        let actor = Actor {
            reason: &reason,
            ..actor
        };
        write_audit(conn, id, row.try_get(1)?, "calls resolve", actor).await?;
        Ok(Ok(()))
    })
    .await
}

/// The last response of a call; that somebody has seen it is in `audit`. `None` when there was none.
///
/// # Errors
/// See [`CallRefusal`].
pub async fn reveal_response(
    db: &Database,
    id: i64,
    actor: Actor<'_>,
) -> Result<Option<CallResponse>, CallRefusal> {
    act(db, "read a call's response", async |conn| {
        let row = sqlx::query(
            "SELECT consumer, status, response_headers::text, response_body, response_cut \
               FROM outbound_call WHERE id = $1",
        )
        .bind(id)
        .fetch_optional(&mut *conn)
        .await?;
        let Some(row) = row else {
            return Ok(Err(CallRefusal::NoCall));
        };
        write_audit(conn, id, row.try_get(0)?, "calls show --response", actor).await?;
        let status: Option<i16> = row.try_get(1)?;
        let Some(status) = status.and_then(|status| u16::try_from(status).ok()) else {
            return Ok(Ok(None));
        };
        Ok(Ok(Some(CallResponse {
            status,
            headers: pairs(row.try_get::<Option<String>, _>(2)?.as_deref()),
            body: row.try_get::<Option<Vec<u8>>, _>(3)?.unwrap_or_default(),
            cut: row.try_get(4)?,
        })))
    })
    .await
}

async fn write_audit(
    conn: &mut PgConnection,
    id: i64,
    consumer: &str,
    action: &'static str,
    actor: Actor<'_>,
) -> Result<(), sqlx::Error> {
    let subject = format!("call {id}");
    let deed = Deed {
        action,
        consumer,
        subject: &subject,
        events: 1,
    };
    audit::write(conn, actor, deed).await
}

/// A transaction of a person's action: committed if it was done, else rolled back.
async fn act<T>(
    db: &Database,
    what: &'static str,
    work: impl AsyncFnOnce(&mut PgConnection) -> Result<Result<T, CallRefusal>, sqlx::Error>,
) -> Result<T, CallRefusal> {
    let failed = |err: &sqlx::Error| CallRefusal::Database(DatabaseError::new(what, err));
    let mut held = db.hold().await.map_err(CallRefusal::Database)?;
    // The connection is dropped after a failure, so that nothing of the transaction is left.
    let done = held
        .answered_within(STATEMENT_LIMIT, async |conn| {
            let mut tx = conn.begin().await?;
            let done = work(&mut tx).await?;
            match &done {
                Ok(_) => tx.commit().await?,
                Err(_) => tx.rollback().await?,
            }
            Ok(done)
        })
        .await
        .map_err(|err| failed(&err))?;
    held.give_back();
    done
}

fn header_pairs(headers: &[(String, String)]) -> String {
    let list = headers
        .iter()
        // jsonb takes no NUL.
        .map(|(name, value)| {
            serde_json::Value::from(vec![name.clone(), value.replace('\0', "\u{fffd}")])
        })
        .collect::<Vec<_>>();
    serde_json::Value::from(list).to_string()
}

fn pairs(json: Option<&str>) -> Vec<(String, String)> {
    json.and_then(|json| serde_json::from_str(json).ok())
        .unwrap_or_default()
}
