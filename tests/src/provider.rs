//! A payment provider for tests: a real HTTP server with an idempotency store of its own, and a book of what it charged.
//!
//! It does to its callers what providers do: it hangs, drops connections after it has charged, says 409 while the first
//! request is in progress, 422 for a known key with another body, 429 with `Retry-After`, 5xx before and after charging,
//! and it forgets keys, after which it would charge again.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// What the provider does with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Charges, unless the key is known, and answers 200.
    Answer,
    /// Says nothing, for ever, and charges nothing.
    Hang,
    /// Charges, then says nothing.
    ChargeAndHang,
    /// Charges, then drops the connection.
    ChargeAndDrop,
    /// Drops the connection, charging nothing.
    Drop,
    /// Charges, then answers 500.
    ChargeAndFail,
    /// Answers so, charging nothing; with a `Retry-After` of so many seconds.
    Say(u16, Option<u32>),
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The header `Idempotency-Key`.
    pub key: String,
    /// Method and path.
    pub line: String,
    /// The headers, by name in lower case.
    pub headers: HashMap<String, String>,
    /// The body.
    pub body: Vec<u8>,
    /// The how manieth request with that key: 1 or more.
    pub attempt: u32,
}

type Plan = dyn Fn(&Seen) -> Behaviour + Send + Sync;

/// The running provider; clones are the same one. It ends with the test's runtime.
#[derive(Clone)]
pub struct Provider {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

struct State {
    plan: Arc<Plan>,
    /// Key and body of what was charged, as long as the key is remembered.
    keys: HashMap<String, Vec<u8>>,
    book: Vec<Vec<u8>>,
    seen: Vec<Seen>,
    attempts: HashMap<String, u32>,
}

impl Provider {
    /// Starts one on a free port, which behaves as `plan` says.
    pub async fn start(plan: impl Fn(&Seen) -> Behaviour + Send + Sync + 'static) -> Provider {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let provider = Provider {
            address: listener.local_addr().expect("it is bound"),
            state: Arc::new(Mutex::new(State {
                plan: Arc::new(plan),
                keys: HashMap::new(),
                book: Vec::new(),
                seen: Vec::new(),
                attempts: HashMap::new(),
            })),
        };
        let serving = provider.clone();
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    continue;
                };
                let provider = serving.clone();
                tokio::spawn(async move {
                    let service = service_fn(move |request| {
                        let provider = provider.clone();
                        async move { provider.serve(request).await }
                    });
                    // A dropped connection is a part of the play.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        provider
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on it behaves so.
    pub fn behave(&self, plan: impl Fn(&Seen) -> Behaviour + Send + Sync + 'static) {
        self.state().plan = Arc::new(plan);
    }

    /// Forgets every key, as providers do after a day.
    pub fn forget_keys(&self) {
        self.state().keys.clear();
    }

    /// Takes a key as known, with that body.
    pub fn know(&self, key: &str, body: &[u8]) {
        self.state().keys.insert(key.to_owned(), body.to_vec());
    }

    /// The bodies that were charged, in order.
    pub fn book(&self) -> Vec<String> {
        let book = &self.state().book;
        book.iter()
            .map(|body| String::from_utf8_lossy(body).into_owned())
            .collect()
    }

    /// The requests, in the order in which they came.
    pub fn seen(&self) -> Vec<Seen> {
        self.state().seen.clone()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no poison")
    }

    async fn serve(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Dropped> {
        let (head, body) = request.into_parts();
        let Ok(body) = body.collect().await else {
            return Err(Dropped);
        };
        let body = body.to_bytes().to_vec();
        let headers: HashMap<String, String> = head
            .headers
            .iter()
            .map(|(name, value)| {
                (
                    name.to_string(),
                    String::from_utf8_lossy(value.as_bytes()).into_owned(),
                )
            })
            .collect();
        let key = headers.get("idempotency-key").cloned().unwrap_or_default();
        let behaviour = {
            let mut state = self.state();
            let attempt = state.attempts.entry(key.clone()).or_default();
            *attempt += 1;
            let seen = Seen {
                key: key.clone(),
                line: format!("{} {}", head.method, head.uri),
                headers,
                body: body.clone(),
                attempt: *attempt,
            };
            let plan = state.plan.clone();
            state.seen.push(seen.clone());
            plan(&seen)
        };
        match behaviour {
            Behaviour::Answer => Ok(self.charge(&key, body)),
            Behaviour::Hang => std::future::pending().await,
            Behaviour::ChargeAndHang => {
                self.charge(&key, body);
                std::future::pending().await
            }
            Behaviour::ChargeAndDrop => {
                self.charge(&key, body);
                Err(Dropped)
            }
            Behaviour::Drop => Err(Dropped),
            Behaviour::ChargeAndFail => {
                self.charge(&key, body);
                Ok(response(500, None, "{\"error\":\"failed\"}"))
            }
            Behaviour::Say(status, retry_after) => {
                Ok(response(status, retry_after, "{\"error\":\"said\"}"))
            }
        }
    }

    /// Once for a key: a known one gets the first answer again, and 422 with another body.
    fn charge(&self, key: &str, body: Vec<u8>) -> Response<Full<Bytes>> {
        let mut state = self.state();
        match state.keys.get(key) {
            Some(known) if *known != body => {
                return response(422, None, "{\"error\":\"other body\"}");
            }
            Some(_) => {}
            None => {
                state.keys.insert(key.to_owned(), body.clone());
                state.book.push(body);
            }
        }
        response(200, None, "{\"charge\":\"ch_1\"}")
    }
}

fn response(status: u16, retry_after: Option<u32>, body: &str) -> Response<Full<Bytes>> {
    let mut response = Response::builder()
        .status(status)
        .header("content-type", "application/json");
    if let Some(seconds) = retry_after {
        response = response.header("retry-after", seconds.to_string());
    }
    if (300..400).contains(&status) {
        response = response.header("location", "/elsewhere");
    }
    response
        .body(Full::new(Bytes::from(body.to_owned())))
        .expect("a response")
}

/// The connection is dropped without an answer.
#[derive(Debug)]
struct Dropped;

impl std::fmt::Display for Dropped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("dropped, as the test wants it")
    }
}

impl std::error::Error for Dropped {}
