//! The other system that calls go to: a small HTTP server that carries each idempotency key out once, and keeps a
//! book of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The longest request: head and body.
const REQUEST_BYTES_MAX: usize = 64 * 1024;
/// What ends a request's head.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// The server; it ends when it is dropped.
#[derive(Debug)]
pub struct Provider {
    url: String,
    book: Arc<Mutex<BTreeMap<String, Charge>>>,
    task: JoinHandle<()>,
}

/// What was carried out under one key.
#[derive(Debug)]
struct Charge {
    body: Vec<u8>,
    times: u32,
}

/// A request, as far as it matters here.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    key: String,
    body: Vec<u8>,
}

impl Provider {
    /// Listens on a free port of this machine.
    ///
    /// # Errors
    ///
    /// There is none.
    pub async fn start() -> Result<Provider> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let book = Arc::new(Mutex::new(BTreeMap::new()));
        let kept = book.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let book = kept.clone();
                tokio::spawn(async move {
                    // A caller that is killed on the way ends its connection: no matter of ours.
                    let _ = answer(stream, &book).await;
                });
            }
        });
        Ok(Provider { url, book, task })
    }

    /// Where it listens.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// How often each key was carried out: once, or once for each body that came under it.
    pub fn book(&self) -> BTreeMap<String, u32> {
        let book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        book.iter()
            .map(|(key, charge)| (key.clone(), charge.times))
            .collect()
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(mut stream: TcpStream, book: &Mutex<BTreeMap<String, Charge>>) -> Result<()> {
    let request = read(&mut stream).await?;
    {
        let mut book = book.lock().unwrap_or_else(PoisonError::into_inner);
        match book.get_mut(&request.key) {
            None => {
                let body = request.body;
                book.insert(request.key, Charge { body, times: 1 });
            }
            // Other bytes under the same key would be another charge.
            Some(charge) if charge.body != request.body => charge.times += 1,
            Some(_) => {}
        }
    }
    let body = r#"{"charged":true}"#;
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await?;
    Ok(())
}

/// Reads one request to the end of its body.
async fn read(stream: &mut TcpStream) -> Result<Request> {
    let mut bytes = Vec::new();
    loop {
        if let Some(request) = parse(&bytes)? {
            return Ok(request);
        }
        if bytes.len() > REQUEST_BYTES_MAX {
            bail!("a request is too long");
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            bail!("a request ended too early");
        }
    }
}

/// The request, once all of it is there.
fn parse(bytes: &[u8]) -> Result<Option<Request>> {
    let Some(end) = bytes.windows(HEAD_END.len()).position(|w| w == HEAD_END) else {
        return Ok(None);
    };
    let head = std::str::from_utf8(&bytes[..end]).context("a request's head is no text")?;
    let header = |wanted: &str| {
        head.lines().skip(1).find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case(wanted).then(|| value.trim())
        })
    };
    let length: usize = header("content-length")
        .unwrap_or("0")
        .parse()
        .context("a request's length is no number")?;
    let body = &bytes[end + HEAD_END.len()..];
    if body.len() < length {
        return Ok(None);
    }
    Ok(Some(Request {
        key: header("idempotency-key")
            .context("a request has no key")?
            .to_owned(),
        body: body[..length].to_vec(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn post(provider: &Provider, key: &str, body: &str) -> String {
        let address = provider.url().trim_start_matches("http://").to_owned();
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        let request = format!(
            "POST /v1/charges HTTP/1.1\r\nHost: here\r\nIdempotency-Key: {key}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream
            .write_all(request.as_bytes())
            .await
            .expect("it reads");
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .await
            .expect("it answers");
        answer
    }

    #[tokio::test]
    async fn a_key_is_carried_out_once_for_each_body() {
        let provider = Provider::start().await.expect("a free port");
        for _ in 0..3 {
            let answer = post(&provider, "a", "ten").await;
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        }
        post(&provider, "b", "ten").await;
        let once = BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 1)]);
        assert_eq!(provider.book(), once);
        post(&provider, "b", "eleven").await;
        assert_eq!(provider.book()["b"], 2);
    }

    #[test]
    fn a_request_is_read_when_all_of_it_is_there() {
        let whole = b"POST / HTTP/1.1\r\nidempotency-key: k\r\ncontent-length: 3\r\n\r\nabc";
        for end in 0..whole.len() {
            assert!(matches!(parse(&whole[..end]), Ok(None)), "{end}");
        }
        let request = Request {
            key: "k".to_owned(),
            body: b"abc".to_vec(),
        };
        assert_eq!(parse(whole).expect("it is sound"), Some(request));
        parse(b"POST / HTTP/1.1\r\n\r\n").expect_err("there is no key");
    }
}
