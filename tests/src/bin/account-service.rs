//! A consumer in a process of its own, for tests that kill it with SIGKILL.
//!
//! Its handler writes an effect. For an event whose note is `hold` it then waits for advisory lock
//! 42, inside its transaction: the test holds that lock and kills the process while it waits. An event whose note is
//! `refuse` fails for good.

use factum::{Config, Consumer, Envelope, Handler, HandlerError, Service, Tx};
use factum_tests::Entry as _;

factum_tests::entry_on_topic!(killed, "t.killed");

struct Accounts;

impl Handler<killed::Posted> for Accounts {
    async fn handle(
        &self,
        event: &Envelope<killed::Posted>,
        tx: &mut Tx<'_>,
    ) -> Result<(), HandlerError> {
        factum::sqlx::query(
            "INSERT INTO effect (consumer, event_id, account, seq) VALUES ('test-killed', $1, $2, $3)",
        )
        .bind(event.id().as_uuid())
        .bind(event.account())
        .bind(event.seq() as i64)
        .execute(tx.conn())
        .await?;
        if event.note() == "refuse" {
            return Err(HandlerError::permanent("it is to be refused"));
        }
        if event.note() == "hold" {
            factum::sqlx::query("SELECT pg_advisory_xact_lock(42)")
                .execute(tx.conn())
                .await?;
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
    Service::builder(Config::from_env()?)
        .consumer(Consumer::named("test-killed").handler::<killed::Posted>(Accounts))
        .run()
        .await?;
    Ok(())
}
