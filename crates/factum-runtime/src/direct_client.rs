//! A client for handlers that must have another system's response while they run.

use std::fmt;
use std::sync::Arc;

use factum_event::IdempotencyKey;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

use crate::call::check_path;
use crate::config::Config;
use crate::endpoint::{Endpoint, Outgoing, SendError};
use crate::service::ServiceError;

/// An HTTP client for one endpoint, with its limits: for a handler that can't go on without the response (CONS-X4).
///
/// **Prefer [`tx.call`](crate::Tx::call).** A direct call holds the lane and its database connection for as long as it
/// takes (listing fault 8): the endpoint's time limit, which is mandatory, is what frees them. It happens again when
/// the transaction is rolled back, with the same key, which only an event can make. Nothing is recorded, and nothing is
/// set aside.
///
/// The time limits, the number of calls at a time and the circuit breaker are the endpoint's, for each client of its
/// own; clones share them. No redirect is followed, no proxy of the environment is used.
///
/// ```no_run
/// # use factum_event::{Envelope, Event, HandlerError};
/// # use factum_runtime::{Config, DirectClient, Handler, Tx};
/// struct Billing { payments: DirectClient }
///
/// impl<E: Event> Handler<E> for Billing {
///     async fn handle(&self, event: &Envelope<E>, _: &mut Tx<'_>) -> Result<(), HandlerError> {
///         let key = event.idempotency_key();
///         let response = self.payments.post("/v1/charges", &key, b"{}".to_vec()).await?;
///         if response.status() == 422 {
///             return Err(HandlerError::permanent("the charge is refused"));
///         }
///         Ok(())
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config::from_env()?;
/// let payments = DirectClient::new(&config, "payments")?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct DirectClient {
    endpoint: Endpoint,
    permits: Arc<Semaphore>,
}

/// Why a direct call has no response.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectError {
    /// The circuit breaker is open: nothing was sent.
    #[error("the circuit breaker of `{endpoint}` is open; nothing was sent")]
    BreakerOpen {
        /// The endpoint's name.
        endpoint: String,
    },
    /// As many calls as are allowed at a time are under way: nothing was sent.
    #[error("`{endpoint}` has as many calls at a time as it may have; nothing was sent")]
    Full {
        /// The endpoint's name.
        endpoint: String,
    },
    /// The path can't be sent.
    #[error(
        "the path isn't one; begin with a single `/`, and percent-encode what isn't plain ASCII"
    )]
    Path,
    /// There is no whole response, so nobody knows whether the endpoint acted. The same key asks again.
    #[error("a call to `{endpoint}`: {error}")]
    Send {
        /// The endpoint's name.
        endpoint: String,
        /// Why.
        #[source]
        error: SendError,
    },
    /// A response that asks for the same call again: 409, 429 or 5xx.
    #[error("a call to `{endpoint}` got {status}, which asks for the same call again")]
    Again {
        /// The endpoint's name.
        endpoint: String,
        /// The status code.
        status: u16,
    },
}

impl DirectClient {
    /// A client of the endpoint that `FACTUM_CALL_<NAME>_URL` and its kin describe.
    ///
    /// # Errors
    /// [`ServiceError::Start`]: there are no settings of that name, or the system's certificate authorities can't be read.
    pub fn new(config: &Config, name: &str) -> Result<DirectClient, ServiceError> {
        let endpoint = config
            .endpoint(name)
            .map_err(|problem| ServiceError::Start(vec![problem]))?;
        let permits = usize::try_from(endpoint.settings.concurrency).unwrap_or(1);
        Ok(DirectClient {
            endpoint,
            permits: Arc::new(Semaphore::new(permits.max(1))),
        })
    }

    /// Posts a JSON body under `key`, and gives every response but those that ask for the same call again.
    ///
    /// # Errors
    /// See [`DirectError`]; each is worth a retry of the event.
    pub async fn post(
        &self,
        path: &str,
        key: &IdempotencyKey,
        body: Vec<u8>,
    ) -> Result<DirectResponse, DirectError> {
        let endpoint = || self.endpoint.name.to_string();
        check_path(path).map_err(|_| DirectError::Path)?;
        let Ok(_permit) = self.permits.try_acquire() else {
            return Err(DirectError::Full {
                endpoint: endpoint(),
            });
        };
        if self.endpoint.admitted(1) == 0 {
            return Err(DirectError::BreakerOpen {
                endpoint: endpoint(),
            });
        }
        let outgoing = Outgoing {
            method: "POST",
            path,
            headers: &[("content-type".to_owned(), b"application/json".to_vec())],
            body,
            idempotency_key: key.as_str(),
            traceparent: None,
        };
        let reply = self
            .endpoint
            .send(outgoing)
            .await
            .map_err(|error| DirectError::Send {
                endpoint: endpoint(),
                error,
            })?;
        match reply.response.status {
            status @ (409 | 429 | 500..) => Err(DirectError::Again {
                endpoint: endpoint(),
                status,
            }),
            status => Ok(DirectResponse {
                status,
                body: reply.response.body,
            }),
        }
    }
}

impl fmt::Debug for DirectClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectClient")
            .field("endpoint", &self.endpoint.name)
            .finish_non_exhaustive()
    }
}

/// The response of a direct call.
pub struct DirectResponse {
    status: u16,
    body: Vec<u8>,
}

impl DirectResponse {
    /// The status code; not 409, 429 or 5xx.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The body: up to 1 MiB of a 2xx, up to 64 KiB of any other.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The body, read as JSON.
    ///
    /// # Errors
    /// It isn't the JSON of a `T`. The error names the place and may quote a value: don't log it.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.body)
    }
}

impl fmt::Debug for DirectResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectResponse")
            .field("status", &self.status)
            .field("body_bytes", &self.body.len())
            .finish()
    }
}
