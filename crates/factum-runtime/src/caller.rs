//! Sends the calls that handlers decided, outside any transaction, and has their responses handled.
//!
//! A call is claimed under a lease with a token, sent, and recorded: three steps, of which the first and the last are
//! committed on their own. Whoever dies in between leaves a call whose lease ends; it is then sent again, with the same
//! key and the same bytes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use factum_event::{EventId, TraceContext};
use factum_fault::Point;
use factum_postgres::{
    CallNext, CallOutcome, CallStore, CommitError, Database, DatabaseError, DueCall, ErrorKind,
    RollbackError, Session,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::answer::{Answer, Calls};
use crate::call::{CallWriter, Cause};
use crate::endpoint::{Endpoint, Outgoing, Reply, SendError};
use crate::handler::{CallError, CallLimits, Tx, Verdict, call_response};
use crate::metric;

/// Beyond a call's own time limit: so long its outcome may take to be recorded before somebody else sends it again.
const LEASE_MARGIN: Duration = Duration::from_secs(5);
/// How often the table is asked while nothing is due.
const POLL_LEAST: Duration = Duration::from_millis(50);
const POLL_MOST: Duration = Duration::from_millis(500);
/// How often unfinished calls are counted.
const COUNT_EVERY: Duration = Duration::from_secs(10);
/// The wait before the second attempt is half of this at least; it doubles up to a minute.
const FIRST_DELAY: Duration = Duration::from_millis(200);
const MAX_DELAY: Duration = Duration::from_secs(60);
/// After a failure of the database.
const OUTAGE_DELAY: Duration = Duration::from_millis(500);
/// Responses in one transaction at most, while their handlers succeed.
const ANSWERS: u32 = 50;
/// How often a response's handler is called before its call is set aside.
const ANSWER_ATTEMPTS: u32 = 8;

/// Why the calls of a service stopped for good.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CallerError {
    /// The handler of a response ended the framework's transaction by SQL of its own.
    #[error(
        "a handler of responses of {endpoints} typed {typed} in the transaction it was lent. The responses are handled \
         again. Take the statement out of the handler (a SAVEPOINT is fine), then start the service again"
    )]
    TransactionEnded {
        /// The endpoints of the batch: one of their handlers did it.
        endpoints: String,
        /// `COMMIT` or `ROLLBACK`.
        typed: &'static str,
    },
    /// A task panicked: a fault in Factum, not in a handler (whose panics are caught).
    #[error("a task of the caller ended by a panic; please report it")]
    Panicked,
}

/// What sends a service's calls.
pub(crate) struct Caller {
    pub(crate) db: Database,
    pub(crate) calls: Arc<Calls>,
    pub(crate) endpoints: Vec<Endpoint>,
    /// Names this process in a claim.
    pub(crate) owner: String,
}

impl Caller {
    /// Until `stop`; then what was sent is still recorded.
    pub(crate) async fn run(self, stop: CancellationToken) -> Result<(), CallerError> {
        let store = CallStore::new(
            self.db.clone(),
            self.calls.service().to_owned(),
            self.owner.clone(),
        );
        let mut tasks = JoinSet::new();
        for endpoint in self.endpoints {
            let sender = Sender {
                store: store.clone(),
                has_handler: self.calls.handler(&endpoint.name).is_some(),
                endpoint: endpoint.clone(),
                outcomes: Vec::new(),
            };
            let name = endpoint.name.clone();
            tasks.spawn(count(store.clone(), name.to_string(), stop.clone()));
            let stop = stop.clone();
            tasks.spawn(async move {
                sender.run(stop).await;
                Ok(())
            });
        }
        if !self.calls.handled().is_empty() {
            let answers = Answers {
                db: self.db,
                store,
                endpoints: self.calls.handled(),
                calls: self.calls,
                session: None,
                single: 0,
            };
            tasks.spawn(answers.run(stop.clone()));
        }
        // A task ends after `stop`, or for good reason; dropping the others rolls back what is open.
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap_or(Err(CallerError::Panicked))?;
        }
        Ok(())
    }
}

async fn count(
    store: CallStore,
    endpoint: String,
    stop: CancellationToken,
) -> Result<(), CallerError> {
    loop {
        match store.count(&endpoint).await {
            Ok(counts) => {
                for (state, count) in counts {
                    metrics::gauge!(metric::CALLS, "endpoint" => endpoint.clone(), "state" => state.as_str())
                        .set(count as f64);
                }
            }
            Err(error) => tracing::debug!(%error, endpoint, "calls could not be counted"),
        }
        if pause(COUNT_EVERY, &stop).await.is_err() {
            return Ok(());
        }
    }
}

/// Waits, unless the work is to end meanwhile.
async fn pause(delay: Duration, stop: &CancellationToken) -> Result<(), Stopped> {
    tokio::select! {
        () = stop.cancelled() => Err(Stopped),
        () = tokio::time::sleep(delay) => Ok(()),
    }
}

struct Stopped;

/// One endpoint's calls.
struct Sender {
    store: CallStore,
    endpoint: Endpoint,
    has_handler: bool,
    /// To be recorded.
    outcomes: Vec<CallOutcome>,
}

impl Sender {
    async fn run(mut self, stop: CancellationToken) {
        let mut sending: JoinSet<Option<CallOutcome>> = JoinSet::new();
        let mut idle = POLL_LEAST;
        let mut ask_at = Instant::now();
        loop {
            while let Some(sent) = sending.try_join_next() {
                self.outcomes.extend(sent.ok().flatten());
            }
            let mut recorded = true;
            if !self.outcomes.is_empty() {
                recorded = self.record().await;
            }
            let stopping = stop.is_cancelled();
            if stopping && sending.is_empty() {
                // What couldn't be recorded is sent again when its lease is over, with the same key.
                return;
            }
            let busy = u32::try_from(sending.len()).unwrap_or(u32::MAX);
            let free = self.endpoint.settings.concurrency.saturating_sub(busy);
            let wanted = self.endpoint.admitted(free);
            if !stopping && wanted > 0 && Instant::now() >= ask_at {
                let found = self.claim(wanted, &mut sending).await;
                idle = match found {
                    Ok(found) if found == wanted => POLL_LEAST,
                    Ok(found) if found > 0 => POLL_LEAST,
                    _ => (idle * 2).min(POLL_MOST),
                };
                ask_at = match found {
                    // There may be more.
                    Ok(found) if found == wanted => Instant::now(),
                    _ => Instant::now() + idle,
                };
            }
            let wait = if recorded { idle } else { OUTAGE_DELAY };
            tokio::select! {
                Some(sent) = sending.join_next() => self.outcomes.extend(sent.ok().flatten()),
                () = tokio::time::sleep(wait) => {}
                () = stop.cancelled(), if !stopping => {}
            }
        }
    }

    /// Claims calls and begins to send them; how many there were.
    async fn claim(
        &self,
        wanted: u32,
        sending: &mut JoinSet<Option<CallOutcome>>,
    ) -> Result<u32, DatabaseError> {
        let settings = &self.endpoint.settings;
        // What may pass between the claim and the first byte, as the key's lifetime counts from the claim.
        let slack = (settings.key_lifetime / 24).min(LEASE_MARGIN);
        let send_until = Instant::now() + slack;
        factum_fault::at(Point::CallClaimBefore);
        let claimed = self
            .store
            .claim(
                &self.endpoint.name,
                wanted,
                settings.timeout + slack + LEASE_MARGIN,
                settings.usable_lifetime(),
            )
            .await
            .inspect_err(|error| {
                tracing::warn!(%error, endpoint = %self.endpoint.name, "waits for the database; no call is sent");
            })?;
        let found = claimed.calls.len();
        if found > 0 {
            factum_fault::at(Point::CallClaimAfter);
        }
        if claimed.unknown > 0 {
            self.count_sent("unknown", claimed.unknown);
            tracing::error!(endpoint = %self.endpoint.name, calls = claimed.unknown,
                "keys have expired: nobody knows whether these calls took effect (factum calls list)");
        }
        for call in claimed.calls {
            let (endpoint, has_handler) = (self.endpoint.clone(), self.has_handler);
            sending.spawn(send(endpoint, call, send_until, has_handler));
        }
        Ok(u32::try_from(found).unwrap_or(u32::MAX))
    }

    /// Records the outcomes that are there; `false` if the database is away.
    async fn record(&mut self) -> bool {
        factum_fault::at(Point::CallRecordBefore);
        let recorded = match self.store.record(&self.outcomes).await {
            Ok(recorded) => recorded,
            Err(error) => {
                tracing::warn!(%error, endpoint = %self.endpoint.name, "responses wait to be recorded");
                return false;
            }
        };
        factum_fault::at(Point::CallRecordAfter);
        for outcome in self.outcomes.drain(..) {
            if !recorded.contains(&outcome.id) {
                tracing::warn!(call = outcome.id, endpoint = %self.endpoint.name,
                    "the call was claimed by somebody else meanwhile, whose outcome counts");
                continue;
            }
            let name = match outcome.next {
                CallNext::Retry(_) => "retry",
                CallNext::Answered | CallNext::Done => "answered",
                CallNext::SetAside => "set_aside",
            };
            metrics::counter!(metric::CALLS_SENT_TOTAL, "endpoint" => self.endpoint.name.to_string(), "outcome" => name)
                .increment(1);
            if outcome.next == CallNext::SetAside {
                tracing::error!(call = outcome.id, endpoint = %self.endpoint.name,
                    error = outcome.error, "a call is set aside: a person must look (factum calls show)");
            }
        }
        true
    }

    fn count_sent(&self, outcome: &'static str, count: u64) {
        metrics::counter!(metric::CALLS_SENT_TOTAL, "endpoint" => self.endpoint.name.to_string(), "outcome" => outcome)
            .increment(count);
    }
}

/// One attempt. `None` when it came too late to be sent: the lease ends, and somebody claims it anew.
async fn send(
    endpoint: Endpoint,
    call: DueCall,
    send_until: Instant,
    has_handler: bool,
) -> Option<CallOutcome> {
    factum_fault::at(Point::CallSendBefore);
    // A process that stood still may wake up when others have the call, or when its key is forgotten.
    if Instant::now() >= send_until {
        tracing::warn!(call = call.id, endpoint = %endpoint.name, "claimed too long ago; it is not sent");
        return None;
    }
    let sent = endpoint
        .send(Outgoing {
            method: &call.method,
            path: &call.path,
            headers: &call.headers,
            body: call.body,
            idempotency_key: &call.idempotency_key,
            traceparent: call.traceparent.as_deref(),
        })
        .await;
    factum_fault::at(Point::CallSendAfter);
    let (next, error) = next(&sent, call.attempt, has_handler, fastrand::f64());
    if let Some(error) = &error {
        tracing::info!(call = call.id, endpoint = %endpoint.name, event_id = %call.event_id, attempt = call.attempt,
            error, ?next, "a call got no good response");
    }
    Some(CallOutcome {
        id: call.id,
        token: call.token,
        next,
        response: sent.ok().map(|reply| reply.response),
        error,
    })
}

/// What becomes of a call. Pure; `chance` is of 0 to 1.
///
/// | response | next |
/// |---|---|
/// | 2xx | answered, or done without a handler |
/// | none, cut off, 5xx, 409, 429 | the same key and bytes again |
/// | 3xx, 422, every other 4xx | set aside for a person |
fn next(
    sent: &Result<Reply, SendError>,
    attempt: u32,
    has_handler: bool,
    chance: f64,
) -> (CallNext, Option<String>) {
    let doublings = attempt.saturating_sub(1).min(16);
    let delay = (FIRST_DELAY * 2u32.pow(doublings)).min(MAX_DELAY);
    let delay = delay.mul_f64(0.5 + chance / 2.0);
    let reply = match sent {
        Ok(reply) => reply,
        Err(error @ SendError::Request) => return (CallNext::SetAside, Some(error.to_string())),
        Err(error) => return (CallNext::Retry(delay), Some(error.to_string())),
    };
    let status = reply.response.status;
    let asked = reply.retry_after.unwrap_or_default().max(delay);
    match status {
        200..300 if has_handler => (CallNext::Answered, None),
        200..300 => (CallNext::Done, None),
        409 => (
            CallNext::Retry(asked),
            Some("409: the endpoint says that the same key is in progress".into()),
        ),
        429 => (
            CallNext::Retry(asked),
            Some("429: too many requests".into()),
        ),
        500.. => (
            CallNext::Retry(asked),
            Some(format!("{status}: the endpoint failed")),
        ),
        422 => (
            CallNext::SetAside,
            Some("422: the endpoint can't take it, or knows the key with another body".into()),
        ),
        300..400 => (
            CallNext::SetAside,
            Some(format!("{status}: a redirect, which is not followed")),
        ),
        _ => (
            CallNext::SetAside,
            Some(format!("{status}: the endpoint refuses it")),
        ),
    }
}

/// Has responses handled, in transactions of their own.
struct Answers {
    db: Database,
    store: CallStore,
    calls: Arc<Calls>,
    endpoints: Vec<String>,
    session: Option<Session>,
    /// So many responses are handled one by one, after one of several failed.
    single: u32,
}

/// How one transaction ended badly. Nothing of it is committed.
enum AnswerFailure {
    /// This call's handler failed, or that of one of several.
    Handler {
        calls: Vec<(i64, u32)>,
        permanent: bool,
        error: String,
    },
    /// Not a handler's fault.
    Outage(String),
    Stopped(CallerError),
}

impl Answers {
    async fn run(mut self, stop: CancellationToken) -> Result<(), CallerError> {
        let mut idle = POLL_LEAST;
        while !stop.is_cancelled() {
            let limit = if self.single > 0 { 1 } else { ANSWERS };
            let wait = match self.attempt(limit).await {
                Ok(0) => {
                    self.single = 0;
                    idle = (idle * 2).min(POLL_MOST);
                    idle
                }
                Ok(handled) => {
                    self.single = self.single.saturating_sub(handled);
                    idle = POLL_LEAST;
                    continue;
                }
                Err(AnswerFailure::Handler {
                    calls,
                    permanent,
                    error,
                }) => {
                    if let [(id, failures)] = calls[..] {
                        self.single = self.single.saturating_sub(1);
                        self.failed(id, failures + 1, permanent, &error).await
                    } else {
                        // One of them: each is tried alone.
                        self.single = ANSWERS;
                        continue;
                    }
                }
                Err(AnswerFailure::Outage(reason)) => {
                    tracing::warn!(reason, "responses wait for the database");
                    OUTAGE_DELAY
                }
                Err(AnswerFailure::Stopped(error)) => return Err(error),
            };
            if pause(wait, &stop).await.is_err() {
                break;
            }
        }
        if let Some(session) = self.session.take() {
            session.close().await;
        }
        Ok(())
    }

    /// Writes down that a handler failed; gives how long to wait.
    async fn failed(&mut self, id: i64, failures: u32, permanent: bool, error: &str) -> Duration {
        let after = (!permanent && failures < ANSWER_ATTEMPTS).then(|| {
            let delay = (FIRST_DELAY * 2u32.pow(failures.min(16))).min(MAX_DELAY);
            delay.mul_f64(0.5 + fastrand::f64() / 2.0)
        });
        let text = format!("the response's handler failed: {error}");
        tracing::warn!(
            call = id,
            failures,
            error,
            set_aside = after.is_none(),
            "a response's handler failed"
        );
        match self.store.answer_failed(id, after, &text).await {
            Ok(()) => Duration::ZERO,
            Err(error) => {
                tracing::warn!(%error, call = id, "the failure could not be recorded");
                OUTAGE_DELAY
            }
        }
    }

    /// One transaction over up to `limit` responses; how many were handled.
    async fn attempt(&mut self, limit: u32) -> Result<u32, AnswerFailure> {
        let begun = async {
            if self.session.is_none() {
                self.session = Some(Session::open(&self.db).await?);
            }
            let session = self.session.as_mut().expect("it was filled just now");
            session.begin().await?;
            let due = session
                .lock_answered_calls(self.calls.service(), &self.endpoints, limit)
                .await?;
            if due.is_empty() {
                session.rollback().await?;
                return Ok(None);
            }
            let xid = session.transaction_id().await?;
            Ok::<_, DatabaseError>(Some((due, xid)))
        }
        .await;
        let (due, xid) = match begun {
            Ok(Some(begun)) => begun,
            Ok(None) => return Ok(0),
            Err(error) => return Err(self.outage(error.to_string())),
        };
        let places: Vec<(i64, u32)> = due.iter().map(|call| (call.id, call.failures)).collect();
        let mut names: Vec<String> = due.iter().map(|call| call.endpoint.clone()).collect();
        names.sort_unstable();
        names.dedup();
        let endpoints = names.join(", ");
        let ids: Vec<i64> = places.iter().map(|place| place.0).collect();
        let Some(session) = self.session.as_mut() else {
            return Err(AnswerFailure::Outage("the session is gone".into()));
        };

        factum_fault::at(Point::CallAnswerBefore);
        for (place, call) in due.into_iter().enumerate() {
            let answer = Answer::new(call);
            let Some(handler) = self.calls.handler(answer.endpoint()) else {
                continue; // Only endpoints with a handler were asked for.
            };
            let writer =
                CallWriter::of_response(answer.call().consumer.clone(), self.calls.clone());
            let mut tx = Tx::new(session.conn(), writer);
            tx.turn_to(vec![cause(&answer)]);
            let limits = CallLimits {
                timeout: self.calls.time_limit(),
                abort: CancellationToken::new(),
            };
            let handled = call_response(&limits, || handler.handle_answer(&answer, &mut tx)).await;
            if let Err(error) = handled {
                let failed = vec![places[place]];
                return Err(self
                    .handler_failed(xid, error, failed, &places, endpoints)
                    .await);
            }
        }
        if let Err(error) = session.finish_answered_calls(&ids).await {
            if error.kind() == ErrorKind::Other {
                // A handler swallowed an SQL error, or typed something: the guard says which.
                tracing::debug!(%error, "calls could not be marked as done");
            } else {
                return Err(self.outage(error.to_string()));
            }
        }
        factum_fault::at(Point::CallAnswerAfter);
        match session.commit(xid).await {
            Ok(()) => Ok(u32::try_from(ids.len()).unwrap_or(u32::MAX)),
            Err(CommitError::SwallowedError) => Err(AnswerFailure::Handler {
                calls: places,
                permanent: false,
                error: CommitError::SwallowedError.to_string(),
            }),
            Err(CommitError::TransactionEnded { committed }) => {
                Err(self.ended(committed, endpoints))
            }
            Err(CommitError::Database(error)) if error.kind() == ErrorKind::Other => {
                self.discard();
                Err(AnswerFailure::Handler {
                    calls: places,
                    permanent: false,
                    error: error.to_string(),
                })
            }
            // Unknown, too: whether the call is done is in the table.
            Err(error) => Err(self.outage(error.to_string())),
        }
    }

    async fn handler_failed(
        &mut self,
        xid: factum_postgres::TransactionId,
        error: CallError,
        failed: Vec<(i64, u32)>,
        batch: &[(i64, u32)],
        endpoints: String,
    ) -> AnswerFailure {
        let interrupted = !matches!(error, CallError::Failed(_));
        let Some(session) = self.session.as_mut() else {
            return AnswerFailure::Outage("the session is gone".into());
        };
        if interrupted {
            // Dropped in the middle of a statement: nobody knows what the connection still sends.
            session.sever();
        }
        match session.rollback_after_failure("", xid, &[]).await {
            Ok(()) => {}
            Err(RollbackError::TransactionEnded { committed }) => {
                return self.ended(committed, endpoints);
            }
            Err(error) => {
                self.discard();
                if !interrupted {
                    return AnswerFailure::Outage(error.to_string());
                }
            }
        }
        let (permanent, error) = match error {
            CallError::Aborted => return AnswerFailure::Outage("the service stops".into()),
            CallError::TimedOut => (false, "it took longer than its time limit".to_owned()),
            CallError::Panicked => (false, "it panicked".to_owned()),
            CallError::Failed(error) => match Verdict::of(&error) {
                Verdict::Conflict => {
                    return AnswerFailure::Outage("a conflict with another transaction".into());
                }
                Verdict::Failed {
                    permanent,
                    description,
                } => (permanent, description),
            },
        };
        // Whoever failed in a batch is known; but what ran before it is rolled back, too, so all run alone once.
        let calls = if batch.len() > 1 {
            batch.to_vec()
        } else {
            failed
        };
        AnswerFailure::Handler {
            calls,
            permanent,
            error,
        }
    }

    fn ended(&mut self, committed: bool, endpoints: String) -> AnswerFailure {
        self.discard();
        AnswerFailure::Stopped(CallerError::TransactionEnded {
            endpoints,
            typed: if committed { "COMMIT" } else { "ROLLBACK" },
        })
    }

    fn outage(&mut self, reason: String) -> AnswerFailure {
        self.discard();
        AnswerFailure::Outage(reason)
    }

    fn discard(&mut self) {
        if let Some(session) = self.session.take() {
            session.discard();
        }
    }
}

fn cause(answer: &Answer) -> Cause {
    let call = answer.call();
    let event_id: EventId = call.event_id;
    Cause {
        event_id,
        event_type: call.event_type.clone(),
        aggregate_id: call.aggregate_id.clone(),
        trace: call
            .traceparent
            .as_deref()
            .and_then(|trace| TraceContext::parse(trace).ok()),
    }
}

#[cfg(test)]
mod tests {
    use factum_postgres::CallResponse;

    use super::*;

    fn reply(status: u16, retry_after: Option<u64>) -> Result<Reply, SendError> {
        Ok(Reply {
            response: CallResponse {
                status,
                headers: Vec::new(),
                body: Vec::new(),
                cut: false,
            },
            retry_after: retry_after.map(Duration::from_secs),
        })
    }

    #[test]
    fn case_13_what_becomes_of_a_call_by_its_response() {
        for status in [200, 201, 204, 299] {
            assert_eq!(
                next(&reply(status, None), 1, true, 0.0).0,
                CallNext::Answered
            );
            assert_eq!(next(&reply(status, None), 1, false, 0.0).0, CallNext::Done);
        }
        for status in [409, 429, 500, 502, 503, 599] {
            let (next, error) = next(&reply(status, None), 1, true, 0.0);
            assert_eq!(
                next,
                CallNext::Retry(Duration::from_millis(100)),
                "{status}"
            );
            assert!(error.is_some());
        }
        for status in [301, 302, 307, 400, 401, 402, 403, 404, 408, 410, 422, 451] {
            let (next, error) = next(&reply(status, None), 1, true, 0.0);
            assert_eq!(next, CallNext::SetAside, "{status}");
            assert!(error.is_some_and(|error| error.starts_with(&status.to_string())));
        }
        for error in [SendError::Connect, SendError::Lost, SendError::TimedOut] {
            assert!(matches!(
                next(&Err(error), 1, true, 0.0).0,
                CallNext::Retry(_)
            ));
        }
        assert_eq!(
            next(&Err(SendError::Request), 1, true, 0.0).0,
            CallNext::SetAside
        );
    }

    #[test]
    fn the_wait_doubles_up_to_a_minute_and_heeds_retry_after() {
        let wait = |attempt, chance| match next(&Err(SendError::Lost), attempt, true, chance).0 {
            CallNext::Retry(delay) => delay.as_millis(),
            other => panic!("{other:?}"),
        };
        assert_eq!([wait(1, 0.0), wait(1, 1.0)], [100, 200]);
        assert_eq!([wait(3, 0.0), wait(3, 1.0)], [400, 800]);
        assert_eq!([wait(20, 1.0), wait(u32::MAX, 1.0)], [60_000, 60_000]);
        for status in [409, 429, 503] {
            let asked = next(&reply(status, Some(7)), 1, true, 1.0).0;
            assert_eq!(asked, CallNext::Retry(Duration::from_secs(7)), "{status}");
            let longer = next(&reply(status, Some(0)), 3, true, 1.0).0;
            assert_eq!(longer, CallNext::Retry(Duration::from_millis(800)));
        }
    }
}
