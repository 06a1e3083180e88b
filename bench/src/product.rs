//! Factum's side: a service as its users write it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use factum::{
    BatchHandler, Config, Consumer, Envelope, Handler, HandlerError, Relay, Retry, Service, Tx,
};
use uuid::Uuid;

use crate::contender::{BATCH, CLAIM, Contend, Order, Side, Work, orders, watch};
use crate::effect::{self, Effect};
use crate::meter::Measured;
use crate::order::{OrderConfirmed, OrderPlaced};
use crate::parking::is_failing;

/// The service's name; its consumers' names begin with it.
const SERVICE: &str = "bench";

struct Orders;

impl Handler<OrderConfirmed> for Orders {
    async fn handle(
        &self,
        event: &Envelope<OrderConfirmed>,
        tx: &mut Tx<'_>,
    ) -> Result<(), HandlerError> {
        of(event).write(tx.conn()).await?;
        Ok(())
    }
}

impl BatchHandler<OrderConfirmed> for Orders {
    async fn handle(
        &self,
        events: &[Envelope<OrderConfirmed>],
        tx: &mut Tx<'_>,
    ) -> Result<(), HandlerError> {
        effect::write_all(tx.conn(), events.iter().map(of)).await?;
        Ok(())
    }
}

impl Handler<OrderPlaced> for Orders {
    async fn handle(
        &self,
        event: &Envelope<OrderPlaced>,
        tx: &mut Tx<'_>,
    ) -> Result<(), HandlerError> {
        let effect = Effect {
            event_id: event.id().as_uuid(),
            order_id: event.order_id,
            customer_id: event.customer_id,
            amount: event.total.amount().as_decimal(),
            currency: event.total.currency().code(),
            items: event.items.len(),
            occurred_at: event.occurred_at(),
        };
        effect.write(tx.conn()).await?;
        Ok(())
    }
}

/// How long a slow handler waits, and how many of them run at once.
pub(crate) const SLOW: Duration = Duration::from_millis(50);
pub(crate) const WORKERS: u32 = 32;

/// Waits for something else than the database.
struct Slow;

impl Handler<OrderConfirmed> for Slow {
    async fn handle(
        &self,
        event: &Envelope<OrderConfirmed>,
        tx: &mut Tx<'_>,
    ) -> Result<(), HandlerError> {
        tokio::time::sleep(SLOW).await;
        of(event).write(tx.conn()).await?;
        Ok(())
    }
}

/// Fails at the events of some keys, if it is to.
struct SomeFail {
    fails: bool,
    /// The keys of that kind that have come.
    seen: Arc<Mutex<HashSet<Uuid>>>,
}

impl Handler<OrderConfirmed> for SomeFail {
    async fn handle(
        &self,
        event: &Envelope<OrderConfirmed>,
        tx: &mut Tx<'_>,
    ) -> Result<(), HandlerError> {
        if is_failing(event.order_id) {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.insert(event.order_id);
            if self.fails {
                return Err(HandlerError::transient("its key is to be parked"));
            }
        }
        of(event).write(tx.conn()).await?;
        Ok(())
    }
}

fn of(event: &Envelope<OrderConfirmed>) -> Effect<'_> {
    Effect {
        event_id: event.id().as_uuid(),
        order_id: event.order_id,
        customer_id: event.customer_id,
        amount: event.total.amount().as_decimal(),
        currency: event.total.currency().code(),
        items: event.items.len(),
        occurred_at: event.occurred_at(),
    }
}

fn config(contend: &Contend) -> Result<Config> {
    let vars = [
        ("DATABASE_URL", contend.database_url()?),
        ("KAFKA_BROKERS", contend.brokers.clone()),
        ("FACTUM_SERVICE", SERVICE.to_owned()),
        ("FACTUM_PROFILE", "development".to_owned()),
    ];
    Ok(Config::from_vars(
        vars.map(|(name, value)| (name.to_owned(), value)),
    )?)
}

/// A consumer with its handler per event or per batch.
pub(crate) async fn consume(contend: &Contend) -> Result<Measured> {
    drop(orders());
    let consumer = Consumer::named(&contend.consumer).batch_limit(BATCH);
    let consumer = match contend.work {
        Work::Batch => consumer.batch_handler::<OrderConfirmed>(Orders),
        _ => consumer.handler::<OrderConfirmed>(Orders),
    };
    run_consumer(contend, consumer).await
}

/// A consumer whose handlers wait, several at once.
pub(crate) async fn consume_keyed(contend: &Contend) -> Result<Measured> {
    drop(orders());
    let consumer = Consumer::named(&contend.consumer)
        .handler::<OrderConfirmed>(Slow)
        .concurrency(WORKERS);
    run_consumer(contend, consumer).await
}

async fn run_consumer(contend: &Contend, consumer: Consumer) -> Result<Measured> {
    let stats = consumer.stats();
    let mut measured = None;
    Service::builder(config(contend)?)
        .consumer(consumer)
        .run_until(async {
            let done = || stats.processed() + stats.duplicates() + stats.dead_lettered();
            measured = Some(watch(contend, || stats.received(), done).await);
        })
        .await?;
    measured.context("the service ended by itself")?
}

/// A consumer with its handler per event, of which some keys are parked all the time (Factum's side), or which has
/// the same events and none fails. What is counted begins when each of those keys has come once.
pub(crate) async fn consume_beside_parked(contend: &Contend) -> Result<Measured> {
    drop(orders());
    let seen = Arc::new(Mutex::new(HashSet::new()));
    let handler = SomeFail {
        fails: contend.side == Side::Factum,
        seen: seen.clone(),
    };
    let consumer = Consumer::named(&contend.consumer)
        .batch_limit(BATCH)
        // With the delays that a user has; none is given up while we measure.
        .retry(Retry::park().attempts(1_000))
        .handler::<OrderConfirmed>(handler);
    let stats = consumer.stats();
    let mut measured = None;
    Service::builder(config(contend)?)
        .consumer(consumer)
        .run_until(async {
            let begun = || {
                let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                u64::from(seen.len() >= contend.failing_keys)
            };
            let done = || stats.processed() + stats.duplicates() + stats.dead_lettered();
            measured = Some(watch(contend, begun, done).await);
        })
        .await?;
    measured.context("the service ended by itself")?
}

/// A relay alone.
pub(crate) async fn relay(contend: &Contend) -> Result<Measured> {
    drop(orders());
    let relay = Relay::new().claim_limit(CLAIM as u32);
    let stats = relay.stats();
    let mut measured = None;
    Service::builder(config(contend)?)
        .relay_with(relay)
        .run_until(async {
            measured = Some(watch(contend, || stats.published(), || stats.published()).await);
        })
        .await?;
    measured.context("the service ended by itself")?
}

/// One relay of several, until the bench closes our input.
pub(crate) async fn share_relay(contend: &Contend) -> Result<Measured> {
    let mut orders = orders();
    let meter = contend.meter();
    let mut start = None;
    let mut measured = None;
    Service::builder(config(contend)?)
        .relay_with(Relay::new().claim_limit(CLAIM as u32))
        .run_until(async {
            while let Some(Order::Begin) = orders.recv().await {
                start = Some(meter.read());
            }
            measured = start.map(|start| meter.since(start?, contend.total));
        })
        .await?;
    measured.context("the bench ended before it began")?
}

/// Relay and consumer, until the bench closes our input.
pub(crate) async fn serve(contend: &Contend) -> Result<Measured> {
    let mut orders = orders();
    let meter = contend.meter();
    let mut start = None;
    let mut measured = None;
    Service::builder(config(contend)?)
        .relay()
        .consumer(Consumer::named(&contend.consumer).handler::<OrderPlaced>(Orders))
        .run_until(async {
            while let Some(Order::Begin) = orders.recv().await {
                start = Some(meter.read());
            }
            measured = start.map(|start| meter.since(start?, contend.total));
        })
        .await?;
    measured.context("the bench ended before it began")?
}
