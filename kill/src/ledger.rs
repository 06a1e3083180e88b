//! The service that comes to harm: it takes `Posted` events, writes two rows for each, and publishes a
//! `Booked` event, all in one transaction; its relay sends both kinds. It refuses entries of number 0, after
//! its first write.

use factum::sqlx::{self, PgConnection};
use factum::{
    Config, Consumer, EncodeError, Envelope, Event, Handler, HandlerError, Outbox, PublishError,
    Relay, Service, ServiceBuilder, Tx,
};
use factum_fault::Point;
use std::time::Duration;
use time::OffsetDateTime;
use uuid::Uuid;

/// Names the stage whose topics a service uses, a number from 1.
pub const STAGE: &str = "KILL_STAGE";
/// Names a service's consumer.
pub const CONSUMER: &str = "KILL_CONSUMER";

/// What a fault's passing is counted against: small batches, so that a short run has many.
const BATCH_LIMIT: usize = 4;
const CLAIM_LIMIT: u32 = 8;
/// How long a dead relay's lease, and a frozen consumer's transaction, keep the others waiting.
const LEASE: Duration = Duration::from_secs(2);
const HANDLER_TIMEOUT: Duration = Duration::from_secs(2);

/// The tables for the effects, and one row of each for every event. The checker reads them.
pub const TABLES: &str = "
    CREATE TABLE debit (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                        event_id uuid NOT NULL, account text NOT NULL, seq bigint NOT NULL);
    CREATE TABLE credit (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                         event_id uuid NOT NULL, account text NOT NULL, seq bigint NOT NULL);";

/// Writes the two rows, with a point between them.
struct Ledger;

impl Ledger {
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
                    $($number => consumer.handler::<$module::Posted>(Ledger),)*
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
        .handler_timeout(HANDLER_TIMEOUT);
    Ok(Service::builder(Config::from_env()?)
        .relay_with(Relay::new().claim_limit(CLAIM_LIMIT).lease(LEASE))
        .consumer(stage.consumer(consumer)))
}
