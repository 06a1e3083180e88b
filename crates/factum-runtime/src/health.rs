//! The health endpoint: whether this process lives, is ready, and what it has counted.
//!
//! Off unless `FACTUM_HEALTH_LISTEN` is set. Whoever asks says the token. It reads no request's body, answers each
//! connection once, and serves few at a time: it stands in no one's way.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use factum_kafka::{BrokerProbe, KafkaSettings};
use factum_postgres::{Database, DatabaseSettings};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};
use subtle::ConstantTimeEq as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Shortest token.
pub(crate) const TOKEN_MIN_CHARS: usize = 16;
/// Connections at once; others wait to be accepted.
const CONNECTIONS_MAX: usize = 16;
/// How long a request's head may take.
const HEAD_LIMIT: Duration = Duration::from_secs(2);
/// How long a connection may take in all.
const CONNECTION_LIMIT: Duration = Duration::from_secs(5);
/// hyper's least.
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// The pause after a failed accept, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often database and brokers are asked for a sign of life, and how long each may take.
const ASK_EVERY: Duration = Duration::from_secs(2);
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// A sign of life that is older no longer counts.
const SIGN_LASTS: Duration = Duration::from_secs(10);

/// Where the health endpoint listens, and what it asks for: `FACTUM_HEALTH_LISTEN` and `FACTUM_HEALTH_TOKEN`.
///
/// ```
/// use factum_runtime::HealthSettings;
///
/// let settings = HealthSettings::new(([127, 0, 0, 1], 9400).into(), "a token of 16 characters or more".into());
/// assert!(!format!("{settings:?}").contains("16 characters"));
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct HealthSettings {
    /// The address; port 0 takes a free one, which the log names.
    pub listen: SocketAddr,
    /// What a request's `Authorization: Bearer …` must say: at least 16 plain ASCII characters. Never shown.
    pub token: SecretString,
}

impl HealthSettings {
    /// An endpoint at that address for requests with that token.
    #[must_use]
    pub fn new(listen: SocketAddr, token: SecretString) -> HealthSettings {
        HealthSettings { listen, token }
    }

    /// Whether the token can be a header's, and is not guessed soon.
    pub(crate) fn token_is_usable(token: &str) -> bool {
        token.len() >= TOKEN_MIN_CHARS && token.bytes().all(|byte| byte.is_ascii_graphic())
    }
}

impl fmt::Debug for HealthSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HealthSettings")
            .field("listen", &self.listen)
            .finish_non_exhaustive()
    }
}

/// Renders what the program's recorder has counted, as Prometheus reads it.
#[derive(Clone)]
pub(crate) struct MetricsText(pub(crate) Arc<dyn Fn() -> String + Send + Sync>);

impl fmt::Debug for MetricsText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MetricsText")
    }
}

/// When something was last heard of.
#[derive(Debug, Default)]
struct Sign(Mutex<Option<Instant>>);

impl Sign {
    fn heard(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn age(&self) -> Option<Duration> {
        let heard = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.map(|at| at.elapsed())
    }
}

/// The signs of life of what this process depends on. Those that give them don't know who asks.
#[derive(Debug, Default)]
pub(crate) struct Vitals {
    database: Sign,
    kafka: Sign,
    relay_sends: Sign,
    relay_waits: Sign,
}

impl Vitals {
    /// A relay holds slots, and the database has just answered it.
    pub(crate) fn relay_sends(&self) {
        self.relay_sends.heard();
    }

    /// A relay has no slot, because others hold them, and the database has just answered it.
    pub(crate) fn relay_waits(&self) {
        self.relay_waits.heard();
    }
}

/// Whether a part is ready, and a few words.
struct Readiness {
    ready: bool,
    state: String,
}

impl Readiness {
    fn of(sign: &Sign, ready: &str) -> Readiness {
        match sign.age() {
            Some(age) if age <= SIGN_LASTS => Readiness {
                ready: true,
                state: ready.to_owned(),
            },
            Some(age) => Readiness {
                ready: false,
                state: format!("no sign of life for {} s", age.as_secs()),
            },
            None => Readiness {
                ready: false,
                state: "no sign of life yet".to_owned(),
            },
        }
    }
}

/// What the endpoint tells of.
pub(crate) struct Health {
    pub(crate) settings: HealthSettings,
    pub(crate) vitals: Arc<Vitals>,
    pub(crate) has_relay: bool,
    /// Cancelled once the service ends.
    pub(crate) ending: CancellationToken,
    pub(crate) metrics: Option<MetricsText>,
}

impl Health {
    /// Serves, and asks database and brokers for signs of life, until it is dropped. The database is asked on a
    /// connection of its own: a pool whose connections are all lent is busy, not away.
    pub(crate) async fn run(
        self,
        listener: TcpListener,
        database: DatabaseSettings,
        kafka: KafkaSettings,
    ) {
        // The start checks have heard of both.
        self.vitals.database.heard();
        self.vitals.kafka.heard();
        let vitals = Arc::clone(&self.vitals);
        tokio::join!(
            Arc::new(self).serve(listener),
            ask_database(&vitals.database, database),
            ask_brokers(&vitals.kafka, &kafka),
        );
    }

    async fn serve(self: Arc<Self>, listener: TcpListener) {
        let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let mut connections = tokio::task::JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
                return;
            };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let health = Arc::clone(&self);
                    connections.spawn(async move {
                        health.converse(stream).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "the health endpoint could not accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn converse(self: Arc<Self>, stream: TcpStream) {
        let service = service_fn(move |request: Request<Incoming>| {
            let response = self.respond(&request);
            async move { Ok::<_, Infallible>(response) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_LIMIT)
            .keep_alive(false)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), service);
        // Whoever hangs up or is too slow gets no answer; that is nobody's trouble here.
        let _ = tokio::time::timeout(CONNECTION_LIMIT, connection).await;
    }

    fn respond<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        // First of all, so that a stranger doesn't even learn what is here.
        if !self.knows_token(request) {
            let mut refused = told(
                StatusCode::UNAUTHORIZED,
                &json!({"error": "write the header `Authorization: Bearer …` with FACTUM_HEALTH_TOKEN"}),
            );
            let challenge = hyper::header::HeaderValue::from_static("Bearer");
            refused.headers_mut().insert(WWW_AUTHENTICATE, challenge);
            return refused;
        }
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return told(
                StatusCode::METHOD_NOT_ALLOWED,
                &json!({"error": "only GET and HEAD are answered"}),
            );
        }
        match request.uri().path() {
            "/live" => told(StatusCode::OK, &json!({"live": true})),
            "/ready" => {
                let (ready, body) = self.readiness();
                let status = if ready {
                    StatusCode::OK
                } else {
                    StatusCode::SERVICE_UNAVAILABLE
                };
                told(status, &body)
            }
            "/metrics" => match &self.metrics {
                Some(MetricsText(render)) => {
                    answer(StatusCode::OK, "text/plain; version=0.0.4", render())
                }
                None => told(
                    StatusCode::NOT_FOUND,
                    &json!({"error": "this service gives no text of its metrics: see ServiceBuilder::metrics_text"}),
                ),
            },
            _ => told(
                StatusCode::NOT_FOUND,
                &json!({"error": "there are /live, /ready and /metrics"}),
            ),
        }
    }

    fn knows_token<B>(&self, request: &Request<B>) -> bool {
        let mut given = request.headers().get_all(AUTHORIZATION).iter();
        let (Some(header), None) = (given.next(), given.next()) else {
            return false;
        };
        let token = self.settings.token.expose_secret().as_bytes();
        match header.as_bytes().split_at_checked(b"Bearer ".len()) {
            // Takes as long for any wrong token of that length.
            Some((scheme, said)) => {
                scheme.eq_ignore_ascii_case(b"Bearer ") && bool::from(said.ct_eq(token))
            }
            None => false,
        }
    }

    fn readiness(&self) -> (bool, Value) {
        let vitals = &self.vitals;
        let ending = self.ending.is_cancelled();
        let service = Readiness {
            ready: !ending,
            state: if ending { "ends" } else { "runs" }.to_owned(),
        };
        let mut parts = vec![
            ("service", service),
            ("database", Readiness::of(&vitals.database, "answers")),
            ("kafka", Readiness::of(&vitals.kafka, "answers")),
        ];
        if self.has_relay {
            let waits = vitals.relay_waits.age() < vitals.relay_sends.age();
            let relay = match (vitals.relay_waits.age(), vitals.relay_sends.age()) {
                (Some(_), None) => Readiness::of(&vitals.relay_waits, "waits for slots"),
                (Some(_), Some(_)) if waits => {
                    Readiness::of(&vitals.relay_waits, "waits for slots")
                }
                _ => Readiness::of(&vitals.relay_sends, "holds slots"),
            };
            parts.push(("relay", relay));
        }
        let ready = parts.iter().all(|(_, part)| part.ready);
        let mut body = Map::from_iter([("ready".to_owned(), Value::Bool(ready))]);
        for (name, part) in parts {
            let told = json!({"ready": part.ready, "state": part.state});
            body.insert(name.to_owned(), told);
        }
        (ready, Value::Object(body))
    }
}

fn told(status: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    answer(status, "application/json", format!("{body}\n"))
}

fn answer(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let value = hyper::header::HeaderValue::from_static;
    headers.insert(CONTENT_TYPE, value(kind));
    headers.insert(CACHE_CONTROL, value("no-store"));
    response
}

async fn ask_database(sign: &Sign, settings: DatabaseSettings) {
    let settings = DatabaseSettings {
        max_connections: 1,
        acquire_timeout: ASK_LIMIT,
        ..settings
    };
    let mut db = None;
    loop {
        tokio::time::sleep(ASK_EVERY).await;
        let asked = tokio::time::timeout(ASK_LIMIT, async {
            if db.is_none() {
                db = Database::connect(&settings).await.ok();
            }
            match &db {
                Some(db) => db.ping().await.is_ok(),
                None => false,
            }
        });
        if asked.await.unwrap_or(false) {
            sign.heard();
        }
    }
}

async fn ask_brokers(sign: &Sign, settings: &KafkaSettings) {
    let probe = match BrokerProbe::new(settings) {
        Ok(probe) => probe,
        Err(error) => {
            tracing::error!(%error, "the health endpoint can't ask Kafka; it is told as away");
            return;
        }
    };
    loop {
        tokio::time::sleep(ASK_EVERY).await;
        if probe.ask(ASK_LIMIT).await.is_ok() {
            sign.heard();
        }
    }
}

#[cfg(test)]
mod tests;
