//! Which endpoints a service calls, and who takes their responses.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use factum_event::{EventId, HandlerError};
use factum_postgres::AnsweredCall;
use serde::de::DeserializeOwned;

use crate::handler::Tx;

const DEFAULT_HANDLER_TIMEOUT: Duration = Duration::from_secs(30);

/// The endpoints that a service calls through `tx.call`. The service that declares them also sends the calls.
///
/// ```
/// # use factum_event::HandlerError;
/// # use factum_runtime::{Answer, CallEndpoint, Calls, ResponseHandler, Tx};
/// struct Charged;
///
/// impl ResponseHandler for Charged {
///     async fn handle(&self, answer: &Answer, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
///         sqlx::query("UPDATE invoice SET charged = true WHERE id = $1")
///             .bind(answer.event_id().as_uuid())
///             .execute(tx.conn())
///             .await?;
///         Ok(())
///     }
/// }
///
/// let calls = Calls::new()
///     .endpoint(CallEndpoint::named("payments").on_response(Charged))
///     .endpoint("warehouse");
/// ```
#[must_use = "calls do nothing until a service has them"]
#[derive(Debug, Default)]
pub struct Calls {
    service: String,
    endpoints: BTreeMap<String, CallEndpoint>,
    /// Names that were given twice; the start check refuses them.
    doubled: Vec<String>,
    handler_timeout: Option<Duration>,
}

impl Calls {
    /// No endpoint yet.
    pub fn new() -> Calls {
        Calls::default()
    }

    /// Declares an endpoint, by name alone or with a handler of its responses. Its URL and limits are configuration:
    /// `FACTUM_CALL_<NAME>_URL`, ….
    pub fn endpoint(mut self, endpoint: impl Into<CallEndpoint>) -> Calls {
        let endpoint = endpoint.into();
        let name = endpoint.name.clone();
        if self.endpoints.insert(name.clone(), endpoint).is_some() {
            self.doubled.push(name);
        }
        self
    }

    /// The longest a response's handler may take; default 30 s.
    pub fn handler_timeout(mut self, timeout: Duration) -> Calls {
        self.handler_timeout = Some(timeout);
        self
    }

    pub(crate) fn of_service(mut self, service: &str) -> Calls {
        service.clone_into(&mut self.service);
        self
    }

    pub(crate) fn service(&self) -> &str {
        &self.service
    }

    pub(crate) fn time_limit(&self) -> Duration {
        self.handler_timeout.unwrap_or(DEFAULT_HANDLER_TIMEOUT)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.endpoints.keys().map(String::as_str)
    }

    pub(crate) fn doubled(&self) -> &[String] {
        &self.doubled
    }

    pub(crate) fn declares(&self, endpoint: &str) -> bool {
        self.endpoints.contains_key(endpoint)
    }

    pub(crate) fn quotes(&self, endpoint: &str) -> bool {
        self.endpoints.get(endpoint).is_some_and(|e| e.quoted)
    }

    pub(crate) fn handler(&self, endpoint: &str) -> Option<&Arc<dyn ErasedResponseHandler>> {
        self.endpoints.get(endpoint)?.handler.as_ref()
    }

    /// The endpoints whose responses have a handler.
    pub(crate) fn handled(&self) -> Vec<String> {
        let handled = self.endpoints.values().filter(|e| e.handler.is_some());
        handled.map(|e| e.name.clone()).collect()
    }
}

/// One endpoint of [`Calls`].
#[must_use = "an endpoint does nothing until Calls has it"]
pub struct CallEndpoint {
    name: String,
    quoted: bool,
    handler: Option<Arc<dyn ErasedResponseHandler>>,
}

impl CallEndpoint {
    /// An endpoint of that name, in lower-case kebab: `payments`, `card-payments`. The responses of its calls are
    /// recorded, and nothing else is done with them.
    pub fn named(name: impl Into<String>) -> CallEndpoint {
        CallEndpoint {
            name: name.into(),
            quoted: false,
            handler: None,
        }
    }

    /// Has responses with a status of 2xx handled, each in a transaction of its own, exactly once in its effect.
    pub fn on_response(mut self, handler: impl ResponseHandler) -> CallEndpoint {
        self.handler = Some(Arc::new(handler));
        self
    }

    /// Writes every key in quotation marks, as the IETF's draft of `Idempotency-Key` has it.
    pub fn quoted_keys(mut self) -> CallEndpoint {
        self.quoted = true;
        self
    }
}

impl From<&str> for CallEndpoint {
    fn from(name: &str) -> CallEndpoint {
        CallEndpoint::named(name)
    }
}

impl fmt::Debug for CallEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallEndpoint")
            .field("name", &self.name)
            .field("on_response", &self.handler.is_some())
            .finish_non_exhaustive()
    }
}

/// Takes the response of a call, in a transaction of its own.
///
/// What it writes through `tx` commits together with the mark that the response was handled, or not at all. It may
/// publish, and it may call again: the next call needs a [`step`](crate::Call::step), because its key comes from the
/// same event. Any error is tried again, eight times in all; [`HandlerError::permanent`] sets the call aside at once. A
/// call that was set aside so keeps its response, and `factum calls retry` has the handler called again: nothing is sent.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler of responses",
    label = "this type doesn't handle responses",
    note = "write `impl ResponseHandler for {Self}` with `async fn handle(&self, answer: &Answer, tx: &mut Tx<'_>) -> Result<(), HandlerError>`"
)]
pub trait ResponseHandler: Send + Sync + 'static {
    /// Handles `answer`; its writes go through `tx`.
    fn handle(
        &self,
        answer: &Answer,
        tx: &mut Tx<'_>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

pub(crate) type ResponseFuture<'a> =
    Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send + 'a>>;

pub(crate) trait ErasedResponseHandler: Send + Sync {
    fn handle_answer<'a>(&'a self, answer: &'a Answer, tx: &'a mut Tx<'_>) -> ResponseFuture<'a>;
}

impl<H: ResponseHandler> ErasedResponseHandler for H {
    fn handle_answer<'a>(&'a self, answer: &'a Answer, tx: &'a mut Tx<'_>) -> ResponseFuture<'a> {
        Box::pin(self.handle(answer, tx))
    }
}

/// The response of a call, and which call it was.
pub struct Answer(AnsweredCall);

impl Answer {
    pub(crate) fn new(call: AnsweredCall) -> Answer {
        Answer(call)
    }

    pub(crate) fn call(&self) -> &AnsweredCall {
        &self.0
    }

    /// The endpoint's name.
    pub fn endpoint(&self) -> &str {
        &self.0.endpoint
    }

    /// The event that the call follows from.
    pub fn event_id(&self) -> EventId {
        self.0.event_id
    }

    /// The event's type.
    pub fn event_type(&self) -> &str {
        &self.0.event_type
    }

    /// The id of the event's aggregate.
    pub fn aggregate_id(&self) -> &str {
        &self.0.aggregate_id
    }

    /// The call's step; empty if it has none.
    pub fn step(&self) -> &str {
        &self.0.step
    }

    /// The status code, 200 to 299.
    pub fn status(&self) -> u16 {
        self.0.response.status
    }

    /// A header of the response, by name in lower case; the first of several.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.0.response.headers.iter();
        headers
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// The body, byte for byte, up to 1 MiB.
    pub fn body(&self) -> &[u8] {
        &self.0.response.body
    }

    /// Whether the body went on beyond 1 MiB.
    pub fn is_cut(&self) -> bool {
        self.0.response.cut
    }

    /// The body, read as JSON.
    ///
    /// # Errors
    /// It isn't the JSON of a `T`, or it was cut. No retry mends that, so the error is a permanent one. It names the
    /// place and no value.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, HandlerError> {
        if self.is_cut() {
            return Err(HandlerError::permanent(
                "the response's body is larger than 1 MiB and was cut",
            ));
        }
        serde_json::from_slice(self.body()).map_err(|error| {
            HandlerError::permanent(format!(
                "the response's body isn't the expected JSON (line {}, column {})",
                error.line(),
                error.column()
            ))
        })
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer")
            .field("endpoint", &self.endpoint())
            .field("event_id", &self.event_id())
            .field("step", &self.step())
            .field("status", &self.status())
            .field("body_bytes", &self.body().len())
            .finish_non_exhaustive()
    }
}
