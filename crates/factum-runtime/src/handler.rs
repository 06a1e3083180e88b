//! What a user implements, and how the lane calls it.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::time::Duration;

use factum_event::{AnyEnvelope, Envelope, Event, EventId, HandlerError, TraceContext};
use factum_postgres::{ErrorKind, Outbox, Publication, PublishError, classify, describe};
use futures::FutureExt;
use sqlx::PgConnection;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use crate::call::{Call, CallWriter, Cause, OutboundCallError};
use crate::direct_client::DirectError;

/// Handles one event of type `E` inside the consumer's transaction.
///
/// What it writes through `tx` commits together with the row that marks the event as processed
/// (IDEM-3), or not at all. It may be called more than once for one event (after a rollback), so
/// what it does outside `tx` must be harmless to repeat.
///
/// Any error is retried (`?` works on every error type); [`HandlerError::permanent`] sets the event
/// aside as a dead letter at once (RTRY-2), and so does `?` on a call or a publication that can't be written as it is. A panic and a handler that outlives the consumer's
/// [`handler_timeout`](crate::Consumer::handler_timeout) count as transient failures.
///
/// ```
/// # use factum_runtime::{Handler, Tx};
/// # use factum_event::{Envelope, Event, HandlerError};
/// struct Billing;
///
/// impl<E: Event> Handler<E> for Billing {
///     async fn handle(&self, event: &Envelope<E>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
///         sqlx::query("INSERT INTO invoice (id) VALUES ($1)")
///             .bind(event.id().as_uuid())
///             .execute(tx.conn())
///             .await?;
///         Ok(())
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler for `{E}`",
    label = "this type doesn't handle `{E}`",
    note = "write `impl Handler<{E}> for {Self}` with `async fn handle(&self, event: &Envelope<{E}>, tx: &mut Tx<'_>) -> Result<(), HandlerError>`"
)]
pub trait Handler<E: Event>: Send + Sync + 'static {
    /// Handles `event`; its writes go through `tx`.
    fn handle(
        &self,
        event: &Envelope<E>,
        tx: &mut Tx<'_>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// Handles several events of type `E` at once, for set-based SQL: the fast path.
///
/// `events` holds only events that this consumer hasn't processed, in the partition's order. An
/// error means that none of them counts as handled: the lane halves the slice until it has found the
/// event that fails, the others commit.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a batch handler for `{E}`",
    label = "this type doesn't handle slices of `{E}`",
    note = "write `impl BatchHandler<{E}> for {Self}` with `async fn handle(&self, events: &[Envelope<{E}>], tx: &mut Tx<'_>) -> Result<(), HandlerError>`"
)]
pub trait BatchHandler<E: Event>: Send + Sync + 'static {
    /// Handles `events`; the writes go through `tx`.
    fn handle(
        &self,
        events: &[Envelope<E>],
        tx: &mut Tx<'_>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// The consumer's transaction, lent to a handler.
///
/// It can be neither committed nor kept: the lane does that (invariant 1). A `SAVEPOINT`, or
/// `tx.conn().begin()`, is the handler's own affair. A typed `COMMIT` or `ROLLBACK` is noticed and
/// stops the consumer with a named error.
#[derive(Debug)]
pub struct Tx<'a> {
    conn: &'a mut PgConnection,
    outbox: Outbox,
    calls: CallWriter,
}

impl<'a> Tx<'a> {
    pub(crate) fn new(conn: &'a mut PgConnection, calls: CallWriter) -> Self {
        Tx {
            conn,
            outbox: Outbox::new(),
            calls,
        }
    }

    /// The connection that the transaction is open on.
    pub fn conn(&mut self) -> &mut PgConnection {
        self.conn
    }

    /// Publishes an event: an outbox row in this transaction (OBX-1). It continues the trace of the
    /// event that is being handled.
    ///
    /// # Errors
    /// The event can't be written (see [`PublishError`]), or the database refused the row.
    pub async fn publish<E: Event>(
        &mut self,
        publication: impl Into<Publication<E>>,
    ) -> Result<EventId, PublishError> {
        self.outbox.publish(self.conn, publication).await
    }

    /// Decides a call to another system: a row in this transaction, which the service's caller sends after the COMMIT,
    /// again and again with the same key and the same bytes, until it has a response (IDEM-4). The key is this event's
    /// id, or the id and the call's [`step`](Call::step).
    ///
    /// Should the event be handled a second time outside of what dedup remembers, the call of the first time stands, and
    /// nothing is sent twice.
    ///
    /// # Errors
    /// [`OutboundCallError`]: the endpoint isn't declared, the event has a call of that step already, a batch handler
    /// has several events (see [`call_for`](Tx::call_for)), the call can't be sent as it is, or the database refused it.
    pub async fn call(&mut self, call: Call) -> Result<(), OutboundCallError> {
        self.calls.call(self.conn, call).await
    }

    /// As [`call`](Tx::call), for one event of a batch handler's.
    ///
    /// # Errors
    /// As [`call`](Tx::call); [`OutboundCallError::OtherEvent`] when the handler wasn't given that event.
    pub async fn call_for<E: Event>(
        &mut self,
        envelope: &Envelope<E>,
        call: Call,
    ) -> Result<(), OutboundCallError> {
        self.calls.call_for(self.conn, envelope, call).await
    }

    /// What follows is the doing of a handler that was given these: publications continue the first one's trace,
    /// calls have their keys.
    pub(crate) fn turn_to(&mut self, causes: Vec<Cause>) {
        self.continue_trace(causes.first().and_then(|cause| cause.trace));
        self.calls.turn_to(causes);
    }

    fn turn_to_deliveries(&mut self, deliveries: &[Delivery]) {
        // A batch has no single parent: it continues the first event's trace.
        self.continue_trace(deliveries.first().and_then(|delivery| delivery.trace));
        if self.calls.is_armed() {
            self.calls
                .turn_to(deliveries.iter().map(Delivery::cause).collect());
        }
    }

    fn continue_trace(&mut self, trace: Option<TraceContext>) {
        self.outbox = match trace {
            Some(trace) => Outbox::new().with_trace(trace),
            None => Outbox::new(),
        };
    }
}

/// An event on its way to a handler.
pub(crate) struct Delivery {
    pub(crate) envelope: AnyEnvelope,
    pub(crate) trace: Option<TraceContext>,
}

impl Delivery {
    fn cause(&self) -> Cause {
        Cause {
            event_id: self.envelope.id(),
            event_type: self.envelope.event_type().to_owned(),
            aggregate_id: self.envelope.aggregate_id().to_owned(),
            trace: self.trace,
        }
    }
}

/// Bounds of one call.
#[derive(Clone)]
pub(crate) struct CallLimits {
    pub(crate) timeout: Duration,
    pub(crate) abort: CancellationToken,
}

/// How a call ended badly.
#[derive(Debug)]
pub(crate) enum CallError {
    Failed(HandlerError),
    TimedOut,
    Panicked,
    /// The drain deadline passed: the lane gives the transaction up.
    Aborted,
}

/// What a handler's error comes to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// PostgreSQL broke the transaction off: no failure of the handler.
    Conflict,
    Failed {
        /// No retry can mend it.
        permanent: bool,
        /// Fit for a dead letter: no value of the payload, unless the handler's author wrote one.
        description: String,
    },
}

impl Verdict {
    pub(crate) fn of(error: &HandlerError) -> Verdict {
        let source = error.source();
        if source.and_then(|s| classify(s)) == Some(ErrorKind::Conflict) {
            return Verdict::Conflict;
        }
        if let Some(description) = source.and_then(|s| describe(s)) {
            return Verdict::Failed {
                permanent: error.is_permanent(),
                description,
            };
        }
        // What `?` made of one of Factum's own errors. If the author gave a text, it is the author's word that counts.
        match source
            .and_then(|s| own(s))
            .filter(|_| !error.is_described())
        {
            Some((permanent, description)) => Verdict::Failed {
                permanent: permanent || error.is_permanent(),
                description,
            },
            None => Verdict::Failed {
                permanent: error.is_permanent(),
                description: error.describe(),
            },
        }
    }
}

/// The first of Factum's own errors in a chain: whether no retry can mend it, and its text, which holds no value. Those
/// of the database are [`describe`]'s.
fn own(error: &(dyn std::error::Error + 'static)) -> Option<(bool, String)> {
    let mut link = Some(error);
    while let Some(error) = link {
        if let Some(error) = error.downcast_ref::<OutboundCallError>() {
            let permanent = !matches!(error, OutboundCallError::Database(_));
            return Some((permanent, error.to_string()));
        }
        if let Some(error) = error.downcast_ref::<PublishError>() {
            let permanent = !matches!(error, PublishError::Database(_));
            return Some((permanent, error.to_string()));
        }
        if let Some(error) = error.downcast_ref::<DirectError>() {
            return Some((matches!(error, DirectError::Path), error.to_string()));
        }
        link = error.source();
    }
    None
}

/// `events[from..to]` of a run were not handled, because of `error`; those before `from` were.
#[derive(Debug)]
pub(crate) struct RunError {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) error: CallError,
}

pub(crate) type RunFuture<'a> = Pin<Box<dyn Future<Output = Result<(), RunError>> + Send + 'a>>;

/// A handler without its event type. A run is a row of consecutive events of that type.
pub(crate) trait ErasedHandler: Send + Sync {
    fn run<'a>(
        &'a self,
        events: Vec<Delivery>,
        tx: &'a mut Tx<'_>,
        limits: &'a CallLimits,
    ) -> RunFuture<'a>;
}

pub(crate) struct PerEvent<H, E>(pub(crate) H, pub(crate) std::marker::PhantomData<fn() -> E>);
pub(crate) struct PerBatch<H, E>(pub(crate) H, pub(crate) std::marker::PhantomData<fn() -> E>);

/// The registry decodes by event type and a consumer has one handler per type, so a run can hold
/// nothing else than its handler's events.
const OTHER_TYPE: &str = "a handler was given an event of another type";

impl<E: Event, H: Handler<E>> ErasedHandler for PerEvent<H, E> {
    fn run<'a>(
        &'a self,
        events: Vec<Delivery>,
        tx: &'a mut Tx<'_>,
        limits: &'a CallLimits,
    ) -> RunFuture<'a> {
        Box::pin(async move {
            let mut aborted = pin!(limits.abort.cancelled());
            let mut late = pin!(tokio::time::sleep(limits.timeout));
            for (index, delivery) in events.into_iter().enumerate() {
                tx.turn_to_deliveries(std::slice::from_ref(&delivery));
                let envelope = delivery.envelope.downcast_ref::<E>().expect(OTHER_TYPE);
                // A limit beyond what the clock can hold is none, as at first.
                if let Some(limit) = Instant::now().checked_add(limits.timeout) {
                    late.as_mut().reset(limit);
                }
                call(aborted.as_mut(), late.as_mut(), || {
                    self.0.handle(envelope, tx)
                })
                .await
                .map_err(|error| RunError {
                    from: index,
                    to: index + 1,
                    error,
                })?;
            }
            Ok(())
        })
    }
}

impl<E: Event, H: BatchHandler<E>> ErasedHandler for PerBatch<H, E> {
    fn run<'a>(
        &'a self,
        events: Vec<Delivery>,
        tx: &'a mut Tx<'_>,
        limits: &'a CallLimits,
    ) -> RunFuture<'a> {
        Box::pin(async move {
            tx.turn_to_deliveries(&events);
            let envelopes: Vec<Envelope<E>> = events
                .into_iter()
                .map(|d| d.envelope.downcast::<E>().expect(OTHER_TYPE))
                .collect();
            let aborted = pin!(limits.abort.cancelled());
            let late = pin!(tokio::time::sleep(limits.timeout));
            call(aborted, late, || self.0.handle(&envelopes, tx))
                .await
                .map_err(|error| RunError {
                    from: 0,
                    to: envelopes.len(),
                    error,
                })
        })
    }
}

/// One call of a response's handler, as [`call`].
pub(crate) async fn call_response<F>(
    limits: &CallLimits,
    start: impl FnOnce() -> F,
) -> Result<(), CallError>
where
    F: Future<Output = Result<(), HandlerError>> + Send,
{
    let aborted = pin!(limits.abort.cancelled());
    let late = pin!(tokio::time::sleep(limits.timeout));
    call(aborted, late, start).await
}

/// One call of a user's handler: its panic caught, bounded by `late`, given up once `aborted`.
///
/// The bounds are lent, because making and dropping a timer and a waiter for each of many short calls costs
/// more than the call itself. Whoever gets an error makes no other call with them.
async fn call<F>(
    mut aborted: Pin<&mut WaitForCancellationFuture<'_>>,
    mut late: Pin<&mut Sleep>,
    start: impl FnOnce() -> F,
) -> Result<(), CallError>
where
    F: Future<Output = Result<(), HandlerError>> + Send,
{
    let guarded = AssertUnwindSafe(async { start().await }).catch_unwind();
    tokio::select! {
        biased;
        () = &mut aborted => Err(CallError::Aborted),
        ended = guarded => match ended {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(CallError::Failed(error)),
            Err(_panic) => Err(CallError::Panicked),
        },
        () = &mut late => Err(CallError::TimedOut),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("billing failed for jane@example.com")]
    struct Wrapped(#[source] OutboundCallError);

    fn undeclared() -> OutboundCallError {
        OutboundCallError::Undeclared {
            endpoint: "paymnts".to_owned(),
        }
    }

    fn failed(error: impl Into<HandlerError>) -> (bool, String) {
        match Verdict::of(&error.into()) {
            Verdict::Failed {
                permanent,
                description,
            } => (permanent, description),
            Verdict::Conflict => panic!("it is a conflict"),
        }
    }

    #[test]
    fn an_error_of_factum_s_own_keeps_its_text_and_is_permanent_where_no_retry_helps() {
        let calls = [
            undeclared(),
            OutboundCallError::Path,
            OutboundCallError::Json,
            OutboundCallError::StepTaken {
                endpoint: "payments".to_owned(),
                step: String::new(),
            },
        ];
        for error in calls {
            let text = error.to_string();
            assert_eq!(failed(error), (true, text));
        }
        let text = PublishError::AlreadyPublished.to_string();
        assert_eq!(failed(PublishError::AlreadyPublished), (true, text));
        let full = DirectError::Full {
            endpoint: "payments".to_owned(),
        };
        let text = full.to_string();
        assert_eq!(failed(full), (false, text));
        assert!(failed(DirectError::Path).0);
    }

    #[test]
    fn case_58_what_wraps_an_error_of_factum_s_own_is_not_quoted() {
        let (permanent, text) = failed(Wrapped(undeclared()));
        assert!(permanent && text.contains("`paymnts`"), "{text}");
        assert!(!text.contains("jane"), "{text}");
    }

    #[test]
    fn the_author_s_own_word_about_an_error_counts() {
        let error = HandlerError::transient("the endpoint comes later").with_source(undeclared());
        assert_eq!(
            failed(error),
            (false, "the endpoint comes later".to_owned())
        );
    }

    #[test]
    fn an_outage_of_the_database_while_a_call_is_written_stays_transient() {
        let error = sqlx::Error::PoolTimedOut;
        assert_eq!(
            failed(error),
            (false, "no connection came free in time".to_owned())
        );
    }
}
