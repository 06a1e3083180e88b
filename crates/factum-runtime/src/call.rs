//! A call to another system as a handler decides it.

use std::fmt;
use std::sync::Arc;

use factum_event::__private::idempotency_key;
use factum_event::{Envelope, Event, EventId, StepError, TraceContext};
use factum_fault::Point;
use factum_postgres::{CallWritten, DatabaseError, NewCall, write_call};
use hyper::http::uri::PathAndQuery;
use hyper::http::{HeaderName, HeaderValue};
use serde::Serialize;
use sqlx::PgConnection;

use crate::answer::Calls;

/// The largest body of a call, in bytes: 1 MiB.
pub(crate) const MAX_BODY_BYTES: usize = 1024 * 1024;
const MAX_PATH_BYTES: usize = 4096;
const MAX_HEADERS: usize = 32;
const MAX_HEADER_BYTES: usize = 4096;
/// What the caller sets, or what belongs to the connection and not to the call.
const REFUSED_HEADERS: [&str; 14] = [
    "authorization",
    "connection",
    "content-length",
    "cookie",
    "expect",
    "host",
    "idempotency-key",
    "keep-alive",
    "proxy-authorization",
    "te",
    "traceparent",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// An HTTP call to another system, decided in a handler's transaction and sent after it has committed.
///
/// It is stored as it will be sent, byte for byte, and every attempt sends the same bytes with the same
/// `Idempotency-Key`: the event's id (IDEM-4), or the id and the [`step`](Call::step). The endpoint is a name; its
/// URL, its limits and its secret are configuration (`FACTUM_CALL_<NAME>_URL`, …), so that no event leads a call to
/// another host. See `docs/calls.md`.
///
/// Limits: a body of 1 MiB, 32 headers of 4 KiB each, a path of 4 KiB. Header values are stored in the table: no
/// secret belongs into them.
///
/// ```
/// # extern crate factum_runtime as factum;
/// # use factum_event::{Envelope, Event, HandlerError};
/// use factum::{Call, Handler, Tx};
///
/// #[derive(serde::Serialize)]
/// struct Charge { amount: String, currency: String }
///
/// struct Billing;
///
/// impl<E: Event> Handler<E> for Billing {
///     async fn handle(&self, event: &Envelope<E>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
///         let charge = Charge { amount: "10.50".into(), currency: "EUR".into() };
///         tx.call(Call::post("payments", "/v1/charges").json(&charge)?).await?;
///         Ok(())
///     }
/// }
/// ```
#[must_use = "a call does nothing until tx.call writes it"]
#[derive(Clone)]
pub struct Call {
    endpoint: String,
    method: &'static str,
    path: String,
    step: Option<String>,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    ordered: bool,
    quoted: bool,
}

impl Call {
    fn new(method: &'static str, endpoint: impl Into<String>, path: impl Into<String>) -> Call {
        Call {
            endpoint: endpoint.into(),
            method,
            path: path.into(),
            step: None,
            headers: Vec::new(),
            body: Vec::new(),
            ordered: false,
            quoted: false,
        }
    }

    /// A POST to `path` of the endpoint; the path begins with `/`.
    pub fn post(endpoint: impl Into<String>, path: impl Into<String>) -> Call {
        Call::new("POST", endpoint, path)
    }

    /// A PUT.
    pub fn put(endpoint: impl Into<String>, path: impl Into<String>) -> Call {
        Call::new("PUT", endpoint, path)
    }

    /// A PATCH.
    pub fn patch(endpoint: impl Into<String>, path: impl Into<String>) -> Call {
        Call::new("PATCH", endpoint, path)
    }

    /// A DELETE.
    pub fn delete(endpoint: impl Into<String>, path: impl Into<String>) -> Call {
        Call::new("DELETE", endpoint, path)
    }

    /// A GET.
    pub fn get(endpoint: impl Into<String>, path: impl Into<String>) -> Call {
        Call::new("GET", endpoint, path)
    }

    /// A body of JSON. It is written now, once; the attempts send these bytes.
    ///
    /// # Errors
    /// `body` can't be written as JSON.
    pub fn json(self, body: &impl Serialize) -> Result<Call, OutboundCallError> {
        // The error's text may quote a value.
        let bytes = serde_json::to_vec(body).map_err(|_| OutboundCallError::Json)?;
        Ok(self.body("application/json", bytes))
    }

    /// A body of another kind.
    pub fn body(mut self, content_type: &str, bytes: impl Into<Vec<u8>>) -> Call {
        self.body = bytes.into();
        self.header("content-type", content_type)
    }

    /// Another header. The caller sets `Idempotency-Key`, `Authorization` (from the endpoint's secret), `Host`,
    /// `Content-Length` and `traceparent` itself; these are refused when the call is written.
    pub fn header(mut self, name: &str, value: impl Into<Vec<u8>>) -> Call {
        self.headers.push((name.to_ascii_lowercase(), value.into()));
        self
    }

    /// Names this call among several of one event: 1 to 64 of `a-z 0-9 . _ -`. The key is then `<event id>/<step>`.
    pub fn step(mut self, step: impl Into<String>) -> Call {
        self.step = Some(step.into());
        self
    }

    /// Sends this call only when the earlier ordered calls of this consumer to this endpoint with the same aggregate id
    /// are finished: done, or resolved by a person. Without it calls leave as they can.
    pub fn order_by_key(mut self) -> Call {
        self.ordered = true;
        self
    }

    /// Writes the key in quotation marks, as the IETF's draft of `Idempotency-Key` has it. Most providers take it bare,
    /// which is the default.
    pub fn quoted_key(mut self) -> Call {
        self.quoted = true;
        self
    }

    /// What makes it impossible to send it as it is.
    fn check(&self) -> Result<(), OutboundCallError> {
        check_path(&self.path)?;
        if self.body.len() > MAX_BODY_BYTES {
            return Err(OutboundCallError::BodyTooLarge {
                bytes: self.body.len(),
            });
        }
        if self.headers.len() > MAX_HEADERS {
            return Err(OutboundCallError::TooManyHeaders);
        }
        for (name, value) in &self.headers {
            let legal = HeaderName::from_bytes(name.as_bytes()).is_ok()
                && HeaderValue::from_bytes(value).is_ok()
                && name.len() + value.len() <= MAX_HEADER_BYTES;
            if !legal || REFUSED_HEADERS.contains(&name.as_str()) {
                // A name that is no name may be a value in the wrong place.
                let name = HeaderName::from_bytes(name.as_bytes()).ok();
                return Err(OutboundCallError::Header {
                    name: name.map_or_else(|| "(no name)".to_owned(), |name| name.to_string()),
                });
            }
        }
        Ok(())
    }
}

/// A path that stays where it is sent to: on the endpoint's host, below its base.
pub(crate) fn check_path(path: &str) -> Result<(), OutboundCallError> {
    let plain = path.starts_with('/')
        && !path.starts_with("//")
        && path.len() <= MAX_PATH_BYTES
        && path.bytes().all(|byte| byte.is_ascii_graphic())
        && !path.contains(['\\', '#']);
    let steps_up = || {
        let steps = path.split('?').next().unwrap_or(path).to_ascii_lowercase();
        steps
            .split('/')
            .any(|part| matches!(part.replace("%2e", ".").as_str(), "." | ".."))
    };
    if plain && !steps_up() && path.parse::<PathAndQuery>().is_ok() {
        Ok(())
    } else {
        Err(OutboundCallError::Path)
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Call")
            .field("endpoint", &self.endpoint)
            .field("method", &self.method)
            .field("step", &self.step)
            .field("headers", &headers)
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// Why a call wasn't written. No text holds a value of the call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutboundCallError {
    /// The service doesn't declare the endpoint.
    #[error(
        "can't call `{endpoint}`: the service declares no such endpoint; add \
         `.calls(Calls::new().endpoint(CallEndpoint::named(\"{endpoint}\")))` to its builder and set its URL"
    )]
    Undeclared {
        /// The endpoint's name.
        endpoint: String,
    },
    /// The handler wrote a call of that step for this event already.
    #[error(
        "can't call `{endpoint}`: this event has a call {} already, and two calls need two keys; name each with \
         `.step(\"…\")`",
        if step.is_empty() { "without a step".to_owned() } else { format!("of step `{step}`") }
    )]
    StepTaken {
        /// The endpoint's name.
        endpoint: String,
        /// The step; empty for none.
        step: String,
    },
    /// A batch handler has several events, and one of them must give the key.
    #[error(
        "can't call: the batch has {events} events, and a key comes from one; write `tx.call_for(&envelope, …)`"
    )]
    WhichEvent {
        /// How many events the batch has.
        events: usize,
    },
    /// The envelope isn't one of those that this handler was given.
    #[error(
        "can't call: the envelope isn't one of those that this handler was given, so a repeat would not have its key"
    )]
    OtherEvent,
    /// The step's name can't be one.
    #[error("can't call: {0}")]
    Step(#[from] StepError),
    /// The body can't be written as JSON.
    #[error(
        "can't call: the body can't be written as JSON; look at maps whose keys are no text, and at non-finite floats"
    )]
    Json,
    /// The body is too large.
    #[error("can't call: the body has {bytes} bytes, the limit is {MAX_BODY_BYTES}")]
    BodyTooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The path can't be sent.
    #[error(
        "can't call: the path isn't one; begin with a single `/`, percent-encode what isn't plain ASCII, write no scheme, \
         no host, no `#`, no `..` and no line break, at most 4096 bytes"
    )]
    Path,
    /// There are too many headers.
    #[error("can't call: more than {MAX_HEADERS} headers")]
    TooManyHeaders,
    /// A header can't be sent, or isn't the call's to set.
    #[error(
        "can't call: the header {name} can't be set; it isn't legal, is longer than 4096 bytes, or is the caller's own \
         (Idempotency-Key, Authorization, Host, Content-Length, traceparent, …)"
    )]
    Header {
        /// The header's name.
        name: String,
    },
    /// The statement failed, and with it the consumer's transaction.
    #[error("can't call: {0}")]
    Database(#[from] DatabaseError),
}

/// What a transaction's calls follow from.
#[derive(Debug, Clone)]
pub(crate) struct Cause {
    pub(crate) event_id: EventId,
    pub(crate) event_type: String,
    pub(crate) aggregate_id: String,
    pub(crate) trace: Option<TraceContext>,
}

/// Writes the calls of one transaction.
pub(crate) struct CallWriter {
    consumer: String,
    calls: Option<Arc<Calls>>,
    /// The events that the running handler was given.
    causes: Vec<Cause>,
    /// What this transaction has written.
    written: Vec<(EventId, String)>,
    /// Whether the handler is a response's: then no step that the event has already can be meant.
    of_response: bool,
}

impl fmt::Debug for CallWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallWriter").finish_non_exhaustive()
    }
}

impl CallWriter {
    pub(crate) fn new(consumer: String, calls: Option<Arc<Calls>>) -> CallWriter {
        CallWriter {
            consumer,
            calls,
            causes: Vec::new(),
            written: Vec::new(),
            of_response: false,
        }
    }

    /// For the handler of a response.
    pub(crate) fn of_response(consumer: String, calls: Arc<Calls>) -> CallWriter {
        CallWriter {
            of_response: true,
            ..CallWriter::new(consumer, Some(calls))
        }
    }

    /// Whether anything can be called at all.
    pub(crate) fn is_armed(&self) -> bool {
        self.calls.is_some()
    }

    /// The next handler's events.
    pub(crate) fn turn_to(&mut self, causes: Vec<Cause>) {
        self.causes = causes;
    }

    pub(crate) async fn call(
        &mut self,
        conn: &mut PgConnection,
        call: Call,
    ) -> Result<(), OutboundCallError> {
        self.declared(&call)?;
        let cause = match self.causes.as_slice() {
            [cause] => cause.clone(),
            causes => {
                return Err(OutboundCallError::WhichEvent {
                    events: causes.len(),
                });
            }
        };
        self.write(conn, cause, call).await
    }

    pub(crate) async fn call_for<E: Event>(
        &mut self,
        conn: &mut PgConnection,
        envelope: &Envelope<E>,
        call: Call,
    ) -> Result<(), OutboundCallError> {
        self.declared(&call)?;
        let cause = self
            .causes
            .iter()
            .find(|cause| cause.event_id == envelope.id());
        let cause = cause.cloned().ok_or(OutboundCallError::OtherEvent)?;
        self.write(conn, cause, call).await
    }

    fn declared(&self, call: &Call) -> Result<(), OutboundCallError> {
        let declared = self.calls.as_ref();
        if declared.is_some_and(|calls| calls.declares(&call.endpoint)) {
            Ok(())
        } else {
            Err(OutboundCallError::Undeclared {
                endpoint: call.endpoint.clone(),
            })
        }
    }

    async fn write(
        &mut self,
        conn: &mut PgConnection,
        cause: Cause,
        call: Call,
    ) -> Result<(), OutboundCallError> {
        call.check()?;
        let key = idempotency_key(cause.event_id, call.step.as_deref())?;
        let step = call.step.clone().unwrap_or_default();
        let calls = self.calls.as_ref();
        let service = calls.map_or("", |calls| calls.service());
        let quoted = calls.is_some_and(|calls| calls.quotes(&call.endpoint));
        let span = cause
            .trace
            .and_then(|trace| trace.child(fastrand::u64(1..).to_be_bytes()));
        factum_fault::at(Point::CallWriteBefore);
        let written = write_call(
            conn,
            &NewCall {
                service,
                consumer: &self.consumer,
                event_id: cause.event_id,
                event_type: &cause.event_type,
                step: &step,
                endpoint: &call.endpoint,
                method: call.method,
                path: &call.path,
                headers: &call.headers,
                body: &call.body,
                idempotency_key: &if call.quoted || quoted {
                    key.quoted()
                } else {
                    key.to_string()
                },
                traceparent: span.map(|span| span.to_string()).as_deref(),
                aggregate_id: &cause.aggregate_id,
                ordered: call.ordered,
            },
        )
        .await?;
        factum_fault::at(Point::CallWriteAfter);
        let place = (cause.event_id, step);
        match written {
            CallWritten::Now(_) => {
                self.written.push(place);
                Ok(())
            }
            CallWritten::Before(_) if self.of_response || self.written.contains(&place) => {
                Err(OutboundCallError::StepTaken {
                    endpoint: call.endpoint,
                    step: place.1,
                })
            }
            // An earlier handling of this event decided it, outside of what dedup remembers: that call stands, with its
            // bytes, and isn't sent a second time.
            CallWritten::Before(id) => {
                tracing::warn!(consumer = %self.consumer, call = id, event_id = %cause.event_id,
                    "the event has this call already; it stays as it was");
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_nowhere_else() {
        for path in [
            "/",
            "/v1/charges",
            "/v1/charges?a=1&b=%20",
            "/@evil",
            "/v1/a@b",
            "/..a",
            "/a..b",
        ] {
            assert!(check_path(path).is_ok(), "{path}");
        }
        for path in [
            "",
            "v1",
            "@evil.example",
            "//evil.example/x",
            "https://evil.example/",
            "/a\r\nHost: evil",
            "/a b",
            "/a\tb",
            "/ä",
            "/\\evil.example",
            "/a#b",
            "/../admin",
            "/v1/%2e%2E/admin",
            "/v1/.%2e",
            "/v1/./x",
            &format!("/{}", "a".repeat(4096)),
        ] {
            assert!(
                matches!(check_path(path), Err(OutboundCallError::Path)),
                "{path:?}"
            );
        }
    }

    #[test]
    fn headers_that_are_not_the_call_s_to_set_are_refused() {
        for name in [
            "Idempotency-Key",
            "host",
            "Content-Length",
            "AUTHORIZATION",
            "Transfer-Encoding",
            "bad name",
            "a\r\nb",
        ] {
            let call = Call::post("payments", "/").header(name, "x");
            assert!(
                matches!(call.check(), Err(OutboundCallError::Header { .. })),
                "{name}"
            );
        }
        let call = Call::post("payments", "/").header("x-a", "line\r\nbreak");
        assert!(matches!(
            call.check(),
            Err(OutboundCallError::Header { .. })
        ));
        let call = Call::post("payments", "/").header("x-a", "plain");
        assert!(call.check().is_ok());
        let many = (0..=MAX_HEADERS).fold(Call::get("payments", "/"), |call, n| {
            call.header(&format!("x-{n}"), "1")
        });
        assert!(matches!(
            many.check(),
            Err(OutboundCallError::TooManyHeaders)
        ));
    }

    #[test]
    fn a_body_has_a_limit() {
        let call = |bytes| Call::put("payments", "/").body("text/plain", vec![b'a'; bytes]);
        assert!(call(MAX_BODY_BYTES).check().is_ok());
        assert!(matches!(
            call(MAX_BODY_BYTES + 1).check(),
            Err(OutboundCallError::BodyTooLarge { bytes }) if bytes == MAX_BODY_BYTES + 1
        ));
    }

    #[test]
    fn case_57_debug_shows_no_value_of_a_call() {
        let call = Call::post("payments", "/cards/canary")
            .header("x-a", "canary")
            .body("text/plain", "canary");
        assert!(!format!("{call:?}").contains("canary"));
    }
}
