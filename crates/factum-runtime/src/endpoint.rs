//! Another system that calls go to: its settings, its limits, and one call to it.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use factum_postgres::CallResponse;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Request, Response, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use secrecy::{ExposeSecret, SecretString};
use url::Url;

use crate::breaker::{Admission, Breaker};
use crate::metric;

/// Of a good response's body so much is kept, as much as a call's own body may have.
const BODY_BYTES: usize = crate::call::MAX_BODY_BYTES;
/// Of any other response's.
const OTHER_BODY_BYTES: usize = 64 * 1024;
const MAX_HEADERS: usize = 50;
const HEADER_VALUE_BYTES: usize = 1024;
/// What a response's `Retry-After` may ask for at most.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(15 * 60);
/// An idle connection is closed after this; most servers close theirs later.
const IDLE_LIMIT: Duration = Duration::from_secs(20);

/// How to reach an endpoint, and its limits: what `FACTUM_CALL_<NAME>_…` says.
#[derive(Clone)]
#[non_exhaustive]
pub struct EndpointSettings {
    /// Scheme, host, port and a path that every call's path is put behind. `https`, but on this machine and in
    /// development.
    pub url: Url,
    /// The value of the header `Authorization`; never shown by `Debug`.
    pub authorization: Option<SecretString>,
    /// How long a connection may take.
    pub connect_timeout: Duration,
    /// How long a call may take in all, the connection included.
    pub timeout: Duration,
    /// So many calls at a time, from each process.
    pub concurrency: u32,
    /// How long the other system remembers a key.
    pub key_lifetime: Duration,
}

impl EndpointSettings {
    /// 2 s to connect, 10 s in all, 16 at a time, keys remembered for a day.
    #[must_use]
    pub fn new(url: Url) -> EndpointSettings {
        EndpointSettings {
            url,
            authorization: None,
            connect_timeout: Duration::from_secs(2),
            timeout: Duration::from_secs(10),
            concurrency: 16,
            key_lifetime: Duration::from_secs(24 * 60 * 60),
        }
    }

    /// How long after its first attempt a call is sent: the lifetime without a margin, which is one attempt's time and
    /// a 24th for clocks that differ and for a process that stands still.
    pub(crate) fn usable_lifetime(&self) -> Duration {
        self.key_lifetime
            .saturating_sub(self.timeout)
            .saturating_sub(self.key_lifetime / 24)
    }
}

impl fmt::Debug for EndpointSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointSettings")
            .field("host", &self.url.host_str())
            .field("authorization", &self.authorization.is_some())
            .field("connect_timeout", &self.connect_timeout)
            .field("timeout", &self.timeout)
            .field("concurrency", &self.concurrency)
            .field("key_lifetime", &self.key_lifetime)
            .finish_non_exhaustive()
    }
}

/// One request to an endpoint.
pub(crate) struct Outgoing<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) headers: &'a [(String, Vec<u8>)],
    pub(crate) body: Vec<u8>,
    pub(crate) idempotency_key: &'a str,
    pub(crate) traceparent: Option<&'a str>,
}

/// Why there is no whole response. Whether the other system acted is then unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// No connection.
    #[error("no connection to the endpoint")]
    Connect,
    /// No whole response within the time limit.
    #[error("no response within the time limit")]
    TimedOut,
    /// The connection was lost.
    #[error("the connection was lost before the response was whole")]
    Lost,
    /// The request can't be sent as it is: the endpoint's URL or secret isn't of the form of one.
    #[error("the request can't be written; look at the endpoint's URL and authorization")]
    Request,
}

/// An endpoint at work. Clones share the limits.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) name: Arc<str>,
    pub(crate) settings: Arc<EndpointSettings>,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    breaker: Arc<Mutex<Breaker>>,
}

/// The system's certificates can't be read.
#[derive(Debug, thiserror::Error)]
#[error("the system's certificate authorities can't be read: {0}")]
pub(crate) struct NoAuthorities(std::io::Error);

impl Endpoint {
    pub(crate) fn new(name: &str, settings: EndpointSettings) -> Result<Endpoint, NoAuthorities> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(settings.connect_timeout));
        // The provider is named, so that it doesn't depend on what else a program has.
        let tls = hyper_rustls::HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(rustls::crypto::ring::default_provider())
            .map_err(NoAuthorities)?;
        // Which schemes are allowed is decided by the configuration.
        let connector = tls.https_or_http().enable_http1().wrap_connector(http);
        // No proxy of the environment, and no redirect is ever followed: the client knows neither.
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE_LIMIT)
            .pool_timer(TokioTimer::new())
            .build(connector);
        let breaker = Arc::new(Mutex::new(Breaker::new()));
        metrics::gauge!(metric::CALL_BREAKER_OPEN, "endpoint" => name.to_owned()).set(0.0);
        Ok(Endpoint {
            name: name.into(),
            settings: Arc::new(settings),
            client,
            breaker,
        })
    }

    /// How many of `wanted` calls may begin now.
    pub(crate) fn admitted(&self, wanted: u32) -> u32 {
        match self.breaker().admits(Instant::now()) {
            Admission::All => wanted,
            Admission::One => wanted.min(1),
            Admission::None => 0,
        }
    }

    /// Sends one request and reads its response, within the time limit.
    pub(crate) async fn send(&self, request: Outgoing<'_>) -> Result<Reply, SendError> {
        let now = Instant::now();
        {
            let mut breaker = self.breaker();
            if breaker.admits(now) == Admission::One {
                breaker.probe(now, self.settings.timeout);
            }
        }
        let sent = match self.request(request) {
            Ok(request) => {
                let exchange = pin!(self.exchange(request));
                match tokio::time::timeout(self.settings.timeout, exchange).await {
                    Ok(answered) => answered,
                    Err(_) => Err(SendError::TimedOut),
                }
            }
            Err(error) => Err(error),
        };
        let failed = sent
            .as_ref()
            .map_or(true, |reply| reply.response.status >= 500);
        let open = {
            let mut breaker = self.breaker();
            let before = breaker.is_open();
            breaker.report(Instant::now(), failed);
            let open = breaker.is_open();
            (open != before).then_some(open)
        };
        if let Some(open) = open {
            metrics::gauge!(metric::CALL_BREAKER_OPEN, "endpoint" => self.name.to_string())
                .set(f64::from(u8::from(open)));
            let state = if open { "open" } else { "closed" };
            tracing::warn!(endpoint = %self.name, "the circuit breaker is {state}");
        }
        sent
    }

    fn request(&self, outgoing: Outgoing<'_>) -> Result<Request<Full<Bytes>>, SendError> {
        let base = &self.settings.url;
        let path = format!("{}{}", base.path().trim_end_matches('/'), outgoing.path);
        let uri = Uri::builder()
            .scheme(base.scheme())
            .authority(base[url::Position::BeforeHost..url::Position::AfterPort].to_owned())
            .path_and_query(path)
            .build()
            .map_err(|_| SendError::Request)?;
        let mut request = Request::builder().method(outgoing.method).uri(uri);
        for (name, value) in outgoing.headers {
            request = request.header(name, value.as_slice());
        }
        request = request.header("idempotency-key", outgoing.idempotency_key);
        if let Some(trace) = outgoing.traceparent {
            request = request.header("traceparent", trace);
        }
        if let Some(secret) = &self.settings.authorization {
            let mut value =
                HeaderValue::from_str(secret.expose_secret()).map_err(|_| SendError::Request)?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        request
            .body(Full::new(Bytes::from(outgoing.body)))
            .map_err(|_| SendError::Request)
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Reply, SendError> {
        let response = self.client.request(request).await.map_err(|error| {
            if error.is_connect() {
                SendError::Connect
            } else {
                SendError::Lost
            }
        })?;
        let retry_after = retry_after(response.headers(), SystemTime::now());
        Ok(Reply {
            response: read(response).await?,
            retry_after,
        })
    }

    fn breaker(&self) -> std::sync::MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A response, and when it asks for the next attempt.
pub(crate) struct Reply {
    pub(crate) response: CallResponse,
    pub(crate) retry_after: Option<Duration>,
}

async fn read(response: Response<Incoming>) -> Result<CallResponse, SendError> {
    let (head, mut body) = response.into_parts();
    let limit = if head.status.is_success() {
        BODY_BYTES
    } else {
        OTHER_BODY_BYTES
    };
    let mut kept = Vec::new();
    let mut cut = false;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| SendError::Lost)?;
        let Some(data) = frame.data_ref() else {
            continue;
        };
        let room = limit - kept.len();
        kept.extend_from_slice(&data[..data.len().min(room)]);
        if data.len() > room {
            // The rest isn't waited for; the connection goes with it.
            cut = true;
            break;
        }
    }
    Ok(CallResponse {
        status: head.status.as_u16(),
        headers: kept_headers(&head.headers),
        body: kept,
        cut,
    })
}

/// The headers that are kept: no cookie, and none that is no text.
fn kept_headers(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |(name, value): (&HeaderName, &HeaderValue)| {
        let mut value = value.to_str().ok()?.to_owned();
        value.truncate(value.floor_char_boundary(HEADER_VALUE_BYTES));
        Some((name.as_str().to_owned(), value))
    };
    headers
        .iter()
        .filter(|(name, _)| *name != hyper::header::SET_COOKIE)
        .filter_map(text)
        .take(MAX_HEADERS)
        .collect()
}

/// `Retry-After` as seconds or as a date; at most a quarter of an hour.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(text)
            .ok()?
            .duration_since(now)
            .unwrap_or_default(),
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_and_has_a_limit() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let cases = [
            ("3", Some(3)),
            (" 0 ", Some(0)),
            ("Sun, 06 Nov 1994 08:49:47 GMT", Some(10)),
            ("Sunday, 06-Nov-94 08:49:47 GMT", Some(10)),
            ("Sun, 06 Nov 1994 08:49:07 GMT", Some(0)),
            ("99999999", Some(900)),
            ("Sat, 06 Nov 2094 08:49:47 GMT", Some(900)),
            ("soon", None),
            ("-1", None),
        ];
        for (text, expected) in cases {
            assert_eq!(
                retry_after(&header(text), now),
                expected.map(Duration::from_secs),
                "{text}"
            );
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }

    #[test]
    fn a_path_is_put_behind_the_endpoint_s_own_and_leads_to_its_host() {
        let url = "https://pay.example:8443/base/".parse().unwrap();
        let mut settings = EndpointSettings::new(url);
        settings.authorization = Some("Bearer canary".to_owned().into());
        let endpoint = Endpoint::new("payments", settings).unwrap();
        let request = |path| {
            let outgoing = Outgoing {
                method: "POST",
                path,
                headers: &[],
                body: Vec::new(),
                idempotency_key: "k",
                traceparent: None,
            };
            endpoint.request(outgoing)
        };
        for (path, expected) in [
            ("/v1?a=1", "https://pay.example:8443/base/v1?a=1"),
            (
                "/@evil.example/",
                "https://pay.example:8443/base/@evil.example/",
            ),
        ] {
            let request = request(path).unwrap();
            assert_eq!(request.uri().to_string(), expected);
            assert!(!format!("{request:?}").contains("canary"));
        }
        assert!(!format!("{:?}", endpoint.settings).contains("canary"));
    }

    #[test]
    fn a_key_is_used_for_less_than_its_lifetime() {
        let settings = EndpointSettings::new("https://pay.example".parse().unwrap());
        let usable = settings.usable_lifetime();
        assert_eq!(usable, Duration::from_secs(23 * 60 * 60 - 10));
    }
}
