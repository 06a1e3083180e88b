//! The service that comes to harm: it takes `Posted` events, writes two rows for each, and publishes a
//! `Booked` event, all in one transaction; its relay sends both kinds. It refuses entries of number 0, after
//! its first write. If it is told to, it fails at some entries once or twice before it takes them, each process
//! anew; and it refuses the entries of some accounts until it is mended.

use factum::sqlx::{self, PgConnection};
use factum::{
    Answer, Call, CallEndpoint, Calls, Config, Consumer, EncodeError, Envelope, Event, Handler,
    HandlerError, Outbox, PublishError, Relay, ResponseHandler, Retry, Service, ServiceBuilder, Tx,
};
use factum_fault::Point;
use serde_json::json;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use time::OffsetDateTime;
use uuid::Uuid;

/// Names the stage whose topics a service uses, a number from 1.
pub const STAGE: &str = "KILL_STAGE";
/// Names a service's consumer.
pub const CONSUMER: &str = "KILL_CONSUMER";
/// Set, the handler fails at some entries before it takes them.
pub const FAILING: &str = "KILL_FAILING";
/// Set, the handler takes the entries of [`UNMENDED`] accounts too.
pub const MENDED: &str = "KILL_MENDED";
/// The other system's endpoint, and the variable that says where it is: set, each entry is a call, too.
const PAYMENTS: &str = "payments";
const PAYMENTS_URL: &str = "FACTUM_CALL_PAYMENTS_URL";
/// How the names of the accounts begin that the handler refuses until it is mended.
pub const UNMENDED: &str = "unmended-";

/// What a fault's passing is counted against: small batches, so that a short run has many.
const BATCH_LIMIT: usize = 4;
const CLAIM_LIMIT: u32 = 8;
/// How long a dead relay's lease, and a frozen consumer's transaction, keep the others waiting.
const LEASE: Duration = Duration::from_secs(2);
const HANDLER_TIMEOUT: Duration = Duration::from_secs(2);

/// The tables for the effects, and one row of each for every event: the checker reads them. And a row for each answer
/// to a call.
pub const TABLES: &str = "
    CREATE TABLE charge (event_id uuid NOT NULL);
    CREATE TABLE debit (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                        event_id uuid NOT NULL, account text NOT NULL, seq bigint NOT NULL);
    CREATE TABLE credit (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                         event_id uuid NOT NULL, account text NOT NULL, seq bigint NOT NULL);";

/// Short waits between many attempts: no event is given up.
const RETRY: Retry = Retry::park()
    .attempts(10_000)
    .first_delay(Duration::from_millis(50))
    .max_delay(Duration::from_millis(200));

/// Writes the two rows, with a point between them.
struct Ledger {
    /// How often each entry has failed here; `None`: none fails.
    failed: Option<Mutex<HashMap<Uuid, u32>>>,
    is_mended: bool,
    /// Whether each entry is a call to the other system, too.
    calls: bool,
}

/// Writes a row for each answer.
struct Charged;

impl ResponseHandler for Charged {
    async fn handle(&self, answer: &Answer, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        sqlx::query("INSERT INTO charge (event_id) VALUES ($1)")
            .bind(answer.event_id().as_uuid())
            .execute(tx.conn())
            .await?;
        Ok(())
    }
}

impl Ledger {
    fn from_env() -> Ledger {
        let is_set = |name| std::env::var_os(name).is_some();
        Ledger {
            failed: is_set(FAILING).then(Mutex::default),
            is_mended: is_set(MENDED),
            calls: is_set(PAYMENTS_URL),
        }
    }

    /// Whether the entry fails this time.
    fn fails(&self, event_id: Uuid, seq: u64) -> bool {
        let failures = match seq % 6 {
            2 => 1,
            5 => 2,
            _ => 0,
        };
        let Some(failed) = self.failed.as_ref().filter(|_| failures > 0) else {
            return false;
        };
        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = failed.entry(event_id).or_default();
        *failed += 1;
        *failed <= failures
    }

    async fn book(
        &self,
        event_id: Uuid,
        account: &str,
        seq: u64,
        conn: &mut PgConnection,
    ) -> Result<(), HandlerError> {
        for sql in [
            "INSERT INTO debit (event_id, account, seq) VALUES ($1, $2, $3)",
            "INSERT INTO credit (event_id, account, seq) VALUES ($1, $2, $3)",
        ] {
            sqlx::query(sql)
                .bind(event_id)
                .bind(account)
                .bind(i64::try_from(seq)?)
                .execute(&mut *conn)
                .await?;
            if sql.contains("debit") {
                factum_fault::at(Point::HandleHalfway);
            }
            if seq == REFUSED {
                return Err(HandlerError::permanent("there is no entry of number 0"));
            }
            if account.starts_with(UNMENDED) && !self.is_mended {
                return Err(HandlerError::permanent("no entry of this account yet"));
            }
        }
        if self.fails(event_id, seq) {
            return Err(HandlerError::transient("not yet"));
        }
        Ok(())
    }
}

/// An event type names one topic, and cells that run side by side need topics of their own: so the
/// same two events exist once for each stage.
macro_rules! stages {
    ($($number:literal $module:ident $posted:tt $booked:tt;)*) => {
        $(mod $module {
            use factum::Event;
            use uuid::Uuid;

            #[derive(Debug, Clone, Event)]
            #[event(kind = "account.posted.v1", aggregate = "Account", topic = $posted, unlocked)]
            pub(super) struct Posted {
                #[event(aggregate_id)]
                pub(super) account: String,
                #[event(range(min = 0, max = 9_007_199_254_740_991))]
                pub(super) seq: u64,
            }

            #[derive(Debug, Clone, Event)]
            #[event(kind = "account.booked.v1", aggregate = "Account", topic = $booked, unlocked)]
            pub(super) struct Booked {
                #[event(aggregate_id)]
                pub(super) account: String,
                #[event(range(min = 0, max = 9_007_199_254_740_991))]
                pub(super) seq: u64,
                pub(super) cause: Uuid,
            }
        }

        impl Handler<$module::Posted> for Ledger {
            async fn handle(
                &self,
                event: &Envelope<$module::Posted>,
                tx: &mut Tx<'_>,
            ) -> Result<(), HandlerError> {
                let cause = event.id().as_uuid();
                self.book(cause, &event.account, event.seq, tx.conn()).await?;
                let booked = $module::Booked {
                    account: event.account.clone(),
                    seq: event.seq,
                    cause,
                };
                tx.publish(booked.occurred_at(event.occurred_at())).await?;
                if self.calls {
                    let charge = json!({ "account": event.account, "seq": event.seq });
                    tx.call(Call::post(PAYMENTS, "/v1/charges").json(&charge)?).await?;
                }
                Ok(())
            }
        })*

        /// A pair of topics, and the events on them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Stage(u32);

        impl Stage {
            /// How many there are.
            pub const COUNT: u32 = [$($number),*].len() as u32;

            /// The stage of that number, from 1.
            pub fn new(number: u32) -> Option<Stage> {
                (1..=Stage::COUNT).contains(&number).then_some(Stage(number))
            }

            /// Its number.
            pub fn number(self) -> u32 {
                self.0
            }

            /// The topics of `Posted` and of `Booked`.
            pub fn topics(self) -> [&'static str; 2] {
                match self.0 {
                    $($number => [$module::Posted::TOPIC, $module::Booked::TOPIC],)*
                    _ => unreachable!("`new` gives no other"),
                }
            }

            /// An event that the handler refuses: its id and its value.
            ///
            /// # Errors
            ///
            /// It can't be encoded.
            pub fn refused(self, account: &str) -> Result<(Uuid, Vec<u8>), EncodeError> {
                let now = OffsetDateTime::now_utc();
                match self.0 {
                    $($number => {
                        let posted = $module::Posted { account: account.to_owned(), seq: REFUSED };
                        let envelope = posted.occurred_at(now).with_id(factum::new_event_id());
                        Ok((envelope.id().as_uuid(), envelope.encode()?))
                    })*
                    _ => unreachable!("`new` gives no other"),
                }
            }

            fn consumer(self, consumer: Consumer) -> Consumer {
                match self.0 {
                    $($number => consumer.handler::<$module::Posted>(Ledger::from_env()),)*
                    _ => unreachable!("`new` gives no other"),
                }
            }

            /// Publishes entries, each an account and its place in it; gives the events' ids.
            ///
            /// # Errors
            ///
            /// The database refuses.
            pub async fn publish(
                self,
                conn: &mut PgConnection,
                entries: &[(String, u64)],
            ) -> Result<Vec<Uuid>, PublishError> {
                let now = OffsetDateTime::now_utc();
                let ids = match self.0 {
                    $($number => {
                        let events: Vec<_> = entries
                            .iter()
                            .map(|(account, seq)| {
                                let posted = $module::Posted { account: account.clone(), seq: *seq };
                                posted.occurred_at(now)
                            })
                            .collect();
                        Outbox::new().publish_all(conn, events).await?
                    })*
                    _ => unreachable!("`new` gives no other"),
                };
                Ok(ids.into_iter().map(|id| id.as_uuid()).collect())
            }
        }
    };
}

stages! {
    1 one "kill-one.posted" "kill-one.booked";
    2 two "kill-two.posted" "kill-two.booked";
    3 three "kill-three.posted" "kill-three.booked";
    4 four "kill-four.posted" "kill-four.booked";
    5 five "kill-five.posted" "kill-five.booked";
    6 six "kill-six.posted" "kill-six.booked";
    7 seven "kill-seven.posted" "kill-seven.booked";
    8 eight "kill-eight.posted" "kill-eight.booked";
}

/// The number of an entry that the handler refuses.
const REFUSED: u64 = 0;

/// A value that is no event of any stage: its envelope lacks everything but the type.
pub const POISON: &[u8] = br#"{"eventType":"account.posted.v1"}"#;

/// The service, as the environment describes it.
///
/// # Errors
///
/// A variable is missing or wrong.
pub fn service() -> anyhow::Result<ServiceBuilder> {
    let number = std::env::var(STAGE)?.parse()?;
    let stage = Stage::new(number).ok_or_else(|| anyhow::anyhow!("there is no such stage"))?;
    let consumer = Consumer::named(std::env::var(CONSUMER)?)
        .batch_limit(BATCH_LIMIT)
        .retry(RETRY)
        .handler_timeout(HANDLER_TIMEOUT);
    let service = Service::builder(Config::from_env()?)
        .relay_with(Relay::new().claim_limit(CLAIM_LIMIT).lease(LEASE))
        .consumer(stage.consumer(consumer));
    Ok(match std::env::var_os(PAYMENTS_URL) {
        None => service,
        Some(_) => {
            service.calls(Calls::new().endpoint(CallEndpoint::named(PAYMENTS).on_response(Charged)))
        }
    })
}
