//! A consumer in a process of its own whose handler fails: now and then at random, and at some accounts for a while.
//! For the proof that failures keep their order (`tests/order_proof.rs`), which kills it with SIGKILL on the way.
//!
//! What fails is a function of the seed, the event, how often this process has tried it, and the clock.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use factum::{Config, Consumer, Envelope, Handler, HandlerError, Retry, Service, Tx};
use factum_tests::Entry as _;
use factum_tests::trouble::Trouble;

factum_tests::entry_on_topic!(proof, "t.order-proof");

/// Short waits, so that a key goes on soon once its trouble is over, and so many attempts that none is given up.
const RETRY: Retry = Retry::park()
    .attempts(1_000_000)
    .first_delay(Duration::from_millis(100))
    .max_delay(Duration::from_secs(2));

struct Accounts {
    trouble: Trouble,
    consumer: String,
    /// How often each event was tried here.
    tries: Mutex<HashMap<(String, u64), u32>>,
}

impl Handler<proof::Posted> for Accounts {
    async fn handle(
        &self,
        event: &Envelope<proof::Posted>,
        tx: &mut Tx<'_>,
    ) -> Result<(), HandlerError> {
        // The effect first: a failure must take it back.
        factum::sqlx::query(
            "INSERT INTO effect (consumer, event_id, account, seq) VALUES ($1, $2, $3, $4)",
        )
        .bind(&self.consumer)
        .bind(event.id().as_uuid())
        .bind(event.account())
        .bind(event.seq() as i64)
        .execute(tx.conn())
        .await?;
        let nth = {
            let mut tries = self.tries.lock().unwrap_or_else(PoisonError::into_inner);
            let nth = tries
                .entry((event.account().to_owned(), event.seq()))
                .or_default();
            *nth += 1;
            *nth
        };
        if self
            .trouble
            .befalls(event.account(), event.seq(), nth, SystemTime::now())
        {
            return Err(HandlerError::transient("trouble"));
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> factum::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    let name = std::env::var("PROOF_CONSUMER").expect("the test names the consumer");
    let accounts = Accounts {
        trouble: Trouble::from_env().expect("the test describes the trouble"),
        consumer: name.clone(),
        tries: Mutex::default(),
    };
    let concurrency = std::env::var("PROOF_CONCURRENCY").expect("the test says how many at once");
    Service::builder(Config::from_env()?)
        .consumer(
            Consumer::named(name)
                .concurrency(concurrency.parse().expect("a number"))
                .batch_limit(50)
                .retry(RETRY)
                .handler::<proof::Posted>(accounts),
        )
        .run()
        .await?;
    Ok(())
}
