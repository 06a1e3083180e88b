//! A consumer that retries through topics, and a relay, in a process of its own, for a test that kills it with
//! SIGKILL. Its handler writes an effect, and fails while the table `broken` has a row.

use std::time::Duration;

use factum::{Config, Consumer, Envelope, Handler, HandlerError, Retry, Service, Tx};
use factum_tests::Entry as _;

factum_tests::entry_on_topic!(killed, "t.retry.killed");

struct Accounts;

impl Handler<killed::Posted> for Accounts {
    async fn handle(
        &self,
        event: &Envelope<killed::Posted>,
        tx: &mut Tx<'_>,
    ) -> Result<(), HandlerError> {
        factum::sqlx::query(
            "INSERT INTO effect (consumer, event_id, account, seq) VALUES ('test-retry-killed', $1, $2, $3)",
        )
        .bind(event.id().as_uuid())
        .bind(event.account())
        .bind(event.seq() as i64)
        .execute(tx.conn())
        .await?;
        let broken: bool = factum::sqlx::query_scalar("SELECT EXISTS (SELECT FROM broken)")
            .fetch_one(tx.conn())
            .await?;
        if broken {
            return Err(HandlerError::transient("what it needs is broken"));
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> factum::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let consumer = Consumer::named("test-retry-killed")
        .handler::<killed::Posted>(Accounts)
        .retry(Retry::topics([
            Duration::from_millis(100),
            Duration::from_millis(200),
        ]));
    Service::builder(Config::from_env()?)
        .relay()
        .consumer(consumer)
        .run()
        .await?;
    Ok(())
}
