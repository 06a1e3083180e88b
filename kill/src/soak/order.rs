//! The services of the soak: a relay, or a consumer that writes two rows for each order. Some orders fail for a while
//! before they are taken, and so are parked with what follows them.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use factum::sqlx::{self, PgConnection};
use factum::{
    BatchHandler, Config, Consumer, Envelope, Event, HandlerError, Outbox, Relay, Retry, Service,
    ServiceBuilder, Tx, new_event_id,
};
use time::OffsetDateTime;
use uuid::Uuid;

/// Names what a process does: `relay` or `consumer`.
pub const ROLE: &str = "SOAK_ROLE";
/// The number that decides which orders fail.
pub const SEED: &str = "SOAK_SEED";
/// The consumer, whose name is also its group's.
pub const CONSUMER: &str = "soak-orders";

/// A relay that dies keeps its slots for so long; the default of 10 s would take all the time that a recovery may.
const LEASE: Duration = Duration::from_secs(5);
/// Short waits between many attempts: no order is given up.
const RETRY: Retry = Retry::park()
    .attempts(10_000)
    .first_delay(Duration::from_millis(100))
    .max_delay(Duration::from_secs(1));

/// Of so many accounts one has orders that fail.
const ONE_ACCOUNT_IN: u64 = 20;
/// Of so many orders of such an account one fails.
const ONE_ORDER_IN: u64 = 25;
/// The most failures of an order, in each process anew.
const FAILURES_MAX: u64 = 3;

/// The number of an order that the handler refuses.
const REFUSED: u64 = 0;

/// The business table, written together with the event, and the tables of the effects.
pub const TABLES: &str = "
    CREATE TABLE placed_order (event_id uuid PRIMARY KEY, account text NOT NULL, seq bigint NOT NULL);
    CREATE TABLE invoice (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                          event_id uuid NOT NULL, account text NOT NULL, seq bigint NOT NULL);
    CREATE TABLE shipment (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                           event_id uuid NOT NULL, account text NOT NULL, seq bigint NOT NULL);";

/// An order of an account.
#[derive(Debug, Clone, Event)]
#[event(
    kind = "account.ordered.v1",
    aggregate = "Account",
    topic = "soak.ordered",
    unlocked
)]
pub struct Ordered {
    /// Who ordered.
    #[event(aggregate_id)]
    pub account: String,
    /// Its place among the account's orders.
    #[event(range(min = 0, max = 9_007_199_254_740_991))]
    pub seq: u64,
}

/// Which orders fail, as a function that every process computes alike.
#[derive(Debug, Clone, Copy)]
pub struct Trouble {
    /// Other orders for another seed.
    pub seed: u64,
}

impl Trouble {
    /// Whether orders of the account fail at times.
    pub fn meets(self, account: &str) -> bool {
        self.draw(&("account", account))
            .is_multiple_of(ONE_ACCOUNT_IN)
    }

    /// How often a process fails at the order before it takes it.
    pub fn failures(self, account: &str, seq: u64) -> u64 {
        let drawn = self.draw(&("order", account, seq));
        if !self.meets(account) || !drawn.is_multiple_of(ONE_ORDER_IN) {
            return 0;
        }
        1 + drawn / ONE_ORDER_IN % FAILURES_MAX
    }

    fn draw(self, what: &impl std::hash::Hash) -> u64 {
        // Without keys of its own: the same in every process.
        let mut hasher = DefaultHasher::new();
        self.seed.hash(&mut hasher);
        what.hash(&mut hasher);
        hasher.finish()
    }
}

/// Writes an invoice and a shipment for each order.
struct Desk {
    trouble: Trouble,
    /// How often each order has failed here.
    failed: Mutex<HashMap<Uuid, u64>>,
}

impl Desk {
    /// Whether the order fails this time.
    fn fails(&self, event: &Envelope<Ordered>) -> bool {
        let failures = self.trouble.failures(&event.account, event.seq);
        if failures == 0 {
            return false;
        }
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = failed.entry(event.id().as_uuid()).or_default();
        *failed += 1;
        *failed <= failures
    }
}

impl BatchHandler<Ordered> for Desk {
    async fn handle(
        &self,
        events: &[Envelope<Ordered>],
        tx: &mut Tx<'_>,
    ) -> Result<(), HandlerError> {
        let ids: Vec<Uuid> = events.iter().map(|event| event.id().as_uuid()).collect();
        let accounts: Vec<&str> = events.iter().map(|event| event.account.as_str()).collect();
        let seqs = events
            .iter()
            .map(|event| i64::try_from(event.seq))
            .collect::<Result<Vec<i64>, _>>()?;
        // The writes first: a failure must take them back.
        for sql in [
            "INSERT INTO invoice (event_id, account, seq)
             SELECT event_id, account, seq
               FROM unnest($1::uuid[], $2::text[], $3::bigint[]) WITH ORDINALITY AS o (event_id, account, seq, place)
              ORDER BY place",
            "INSERT INTO shipment (event_id, account, seq)
             SELECT event_id, account, seq
               FROM unnest($1::uuid[], $2::text[], $3::bigint[]) WITH ORDINALITY AS o (event_id, account, seq, place)
              ORDER BY place",
        ] {
            sqlx::query(sql)
                .bind(&ids)
                .bind(&accounts)
                .bind(&seqs)
                .execute(tx.conn())
                .await?;
        }
        if events.iter().any(|event| event.seq == REFUSED) {
            return Err(HandlerError::permanent("there is no order of number 0"));
        }
        if events.iter().any(|event| self.fails(event)) {
            return Err(HandlerError::transient("not yet"));
        }
        Ok(())
    }
}

/// The service, as the environment describes it.
///
/// # Errors
///
/// A variable is missing or wrong.
pub fn service() -> Result<ServiceBuilder> {
    let service = Service::builder(Config::from_env()?);
    let role = std::env::var(ROLE).with_context(|| format!("reading {ROLE}"))?;
    match role.as_str() {
        "relay" => Ok(service.relay_with(Relay::new().lease(LEASE))),
        "consumer" => {
            let seed = std::env::var(SEED).with_context(|| format!("reading {SEED}"))?;
            let desk = Desk {
                trouble: Trouble {
                    seed: seed.parse()?,
                },
                failed: Mutex::default(),
            };
            let consumer = Consumer::named(CONSUMER).retry(RETRY);
            Ok(service.consumer(consumer.batch_handler::<Ordered>(desk)))
        }
        _ => bail!("{ROLE} is relay or consumer"),
    }
}

/// Writes the orders and their events into the caller's transaction; gives the events' ids.
///
/// # Errors
///
/// The database refuses, or is away.
pub async fn place(conn: &mut PgConnection, orders: &[(String, u64)]) -> Result<Vec<Uuid>> {
    let now = OffsetDateTime::now_utc();
    let events: Vec<Envelope<Ordered>> = orders
        .iter()
        .map(|(account, seq)| {
            let ordered = Ordered {
                account: account.clone(),
                seq: *seq,
            };
            ordered.occurred_at(now).with_id(new_event_id())
        })
        .collect();
    let ids: Vec<Uuid> = events.iter().map(|event| event.id().as_uuid()).collect();
    let accounts: Vec<&str> = orders.iter().map(|(account, _)| account.as_str()).collect();
    let seqs = orders
        .iter()
        .map(|(_, seq)| i64::try_from(*seq))
        .collect::<Result<Vec<i64>, _>>()?;
    sqlx::query(
        "INSERT INTO placed_order (event_id, account, seq)
         SELECT * FROM unnest($1::uuid[], $2::text[], $3::bigint[])",
    )
    .bind(&ids)
    .bind(&accounts)
    .bind(&seqs)
    .execute(&mut *conn)
    .await?;
    Outbox::new().publish_all(conn, events).await?;
    Ok(ids)
}

/// A record that the handler refuses: its id and its value.
///
/// # Errors
///
/// It can't be encoded.
pub fn refused(account: &str) -> Result<(Uuid, Vec<u8>)> {
    let ordered = Ordered {
        account: account.to_owned(),
        seq: REFUSED,
    };
    let envelope = ordered
        .occurred_at(OffsetDateTime::now_utc())
        .with_id(new_event_id());
    Ok((envelope.id().as_uuid(), envelope.encode()?))
}

/// A value that is no event: its envelope lacks everything but the type.
pub const POISON: &[u8] = br#"{"eventType":"account.ordered.v1"}"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_orders_of_some_accounts_fail_and_always_the_same_ones() {
        let trouble = Trouble { seed: 7 };
        let accounts: Vec<String> = (0..1_000).map(|n| format!("account-{n}")).collect();
        let met = accounts.iter().filter(|a| trouble.meets(a)).count();
        assert!((20..100).contains(&met), "{met}");
        let failing = |account: &String| {
            let failing = (1..=100).filter(|seq| trouble.failures(account, *seq) > 0);
            failing.count()
        };
        let failures: usize = accounts.iter().map(failing).sum();
        assert!((met..met * 10).contains(&failures), "{failures}");
        let quiet = accounts.iter().filter(|a| !trouble.meets(a));
        assert!(quiet.into_iter().all(|account| failing(account) == 0));
        let most = accounts
            .iter()
            .flat_map(|a| (1..=100).map(|seq| trouble.failures(a, seq)));
        assert_eq!(most.max(), Some(FAILURES_MAX));
    }
}
