//! A service that charges for each event, in a process of its own, for a test that kills it at every step.
//!
//! Its handler decides the call and writes an effect; the response's handler writes another.

use factum::{
    Answer, Call, CallEndpoint, Calls, Config, Consumer, Envelope, Handler, HandlerError,
    ResponseHandler, Service, Tx,
};
use factum_tests::Entry as _;

factum_tests::entry_on_topic!(charged, "t.charged");

const NAME: &str = "test-charged";

struct Charging;

impl Handler<charged::Posted> for Charging {
    async fn handle(
        &self,
        event: &Envelope<charged::Posted>,
        tx: &mut Tx<'_>,
    ) -> Result<(), HandlerError> {
        let charge = serde_json::json!({"account": event.account(), "seq": event.seq()});
        tx.call(Call::post("payments", "/v1/charges").json(&charge)?)
            .await?;
        factum::sqlx::query(
            "INSERT INTO effect (consumer, event_id, account, seq) VALUES ($1, $2, $3, $4)",
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

struct Charged;

impl ResponseHandler for Charged {
    async fn handle(&self, answer: &Answer, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        factum::sqlx::query(
            "INSERT INTO effect (consumer, event_id, account, seq) VALUES ('answers', $1, $2, 0)",
        )
        .bind(answer.event_id().as_uuid())
        .bind(answer.aggregate_id())
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
    Service::builder(Config::from_env()?)
        .consumer(
            Consumer::named(NAME)
                .handler::<charged::Posted>(Charging)
                .batch_limit(100),
        )
        .calls(Calls::new().endpoint(CallEndpoint::named("payments").on_response(Charged)))
        .run()
        .await?;
    Ok(())
}
