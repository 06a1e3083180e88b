//! A consumer of orders in a process of its own, for tests that migrate it and kill it with SIGKILL on the way.
//!
//! `ORDER_VERSION` says which code it is: `v1` knows the first version of the event alone, `v2` the second, which
//! supersedes it. Its handler writes an effect and is slow, so that a kill finds it at work.

use factum::{Config, Consumer, Envelope, Handler, HandlerError, Service, Tx};
use factum_tests::Entry;

factum_tests::orders_on_topic!(rolling, "t.versions.rolling");

const NAME: &str = "test-rolling";

struct Orders;

impl<E: Entry> Handler<E> for Orders {
    async fn handle(&self, event: &Envelope<E>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        factum::sqlx::query(
            "INSERT INTO effect (consumer, event_id, account, seq) \
             SELECT $1, $2, $3, $4 FROM pg_sleep(0.01)",
        )
        .bind(NAME)
        .bind(event.id().as_uuid())
        .bind(event.account())
        .bind(event.seq() as i64)
        .execute(tx.conn())
        .await?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> factum::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let consumer = Consumer::named(NAME).batch_limit(5);
    let consumer = match std::env::var("ORDER_VERSION").as_deref() {
        Ok("v1") => consumer.handler::<rolling::OrderConfirmedV1>(Orders),
        Ok("v2") => consumer.handler::<rolling::OrderConfirmed>(Orders),
        other => panic!("ORDER_VERSION is v1 or v2, not {other:?}"),
    };
    Service::builder(Config::from_env()?)
        .consumer(consumer)
        .run()
        .await?;
    Ok(())
}
