//! Event-driven services on Kafka and PostgreSQL whose effects on the database happen exactly once.
//!
//! What a user names is here, at the root of this crate, and nowhere else.
//!
//! # A domain crate
//!
//! ```toml
//! factum = { version = "0.1", default-features = false }
//! ```
//!
//! It has the events and their parts, and no IO: [`Event`], [`Snapshot`], [`Envelope`],
//! [`EventId`], [`Money`], [`Amount`], [`Currency`], [`Personal`].
//!
//! # A service
//!
//! With the default feature `service` the rest joins in: [`Outbox`] to publish, [`Handler`] and
//! [`Consumer`] to consume, [`Config`] and [`Service`] to run.
//!
#![cfg_attr(feature = "service", doc = "```no_run")]
#![cfg_attr(not(feature = "service"), doc = "```ignore")]
//! use factum::sqlx::{self, PgPool};
//! use factum::time::OffsetDateTime;
//! use factum::uuid::Uuid;
//! use factum::{
//!     Config, Consumer, Envelope, Event, Handler, HandlerError, Money, Outbox, Retry, Service,
//!     Snapshot, Tx,
//! };
//!
//! #[derive(Debug, Event)]
//! #[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed")]
//! pub struct OrderConfirmed {
//!     #[event(aggregate_id)]
//!     pub order_id: Uuid,
//!     pub total: Money,
//!     pub items: Vec<OrderItem>,
//! }
//!
//! #[derive(Debug, Snapshot)]
//! pub struct OrderItem {
//!     pub article: String,
//!     pub count: u32,
//! }
//!
//! #[derive(Debug, Event)]
//! #[event(kind = "invoice.issued.v1", aggregate = "Invoice", topic = "invoices.issued")]
//! pub struct InvoiceIssued {
//!     #[event(aggregate_id)]
//!     pub invoice_id: Uuid,
//!     pub total: Money,
//! }
//!
//! // Publishing: the caller owns the transaction.
//! async fn confirm(pool: &PgPool, order: OrderConfirmed, at: OffsetDateTime) -> factum::Result {
//!     let mut tx = pool.begin().await?;
//!     sqlx::query("UPDATE orders SET confirmed_at = $1 WHERE id = $2")
//!         .bind(at)
//!         .bind(order.order_id)
//!         .execute(&mut *tx)
//!         .await?;
//!     Outbox::new().publish(&mut tx, order.occurred_at(at)).await?;
//!     tx.commit().await?;
//!     Ok(())
//! }
//!
//! // Consuming: Factum owns the transaction and lends it.
//! struct Billing;
//!
//! impl Handler<OrderConfirmed> for Billing {
//!     async fn handle(
//!         &self,
//!         event: &Envelope<OrderConfirmed>,
//!         tx: &mut Tx<'_>,
//!     ) -> Result<(), HandlerError> {
//!         if event.total.is_zero() {
//!             return Err(HandlerError::permanent("nothing to bill")); // dead letter
//!         }
//!         sqlx::query("INSERT INTO invoice (id, order_id) VALUES ($1, $2)")
//!             .bind(event.id().as_uuid())
//!             .bind(event.order_id)
//!             .execute(tx.conn())
//!             .await?; // any other error is retried
//!         let issued = InvoiceIssued {
//!             invoice_id: event.id().as_uuid(),
//!             total: event.total.clone(),
//!         };
//!         tx.publish(issued.occurred_at(event.occurred_at())).await?;
//!         Ok(())
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> factum::Result {
//!     let config = Config::from_env()?; // lists every problem at once
//!     Service::builder(config)
//!         .relay()
//!         .consumer(
//!             Consumer::named("billing-order-confirmed")
//!                 .handler::<OrderConfirmed>(Billing)
//!                 .retry(Retry::park()), // the default
//!         )
//!         .run() // until a signal; drains to a deadline
//!         .await?;
//!     Ok(())
//! }
//! ```
//!
//! A program installs its own `tracing` subscriber; Factum logs names, counts and places, never a
//! value of an event and never a secret.
//!
//! # The crates of others
//!
//! [`sqlx`], [`time`], [`uuid`] and [`bigdecimal`] are re-exported, because their types stand in
//! this crate's signatures: used from here, their versions always fit.

#[cfg(feature = "service")]
mod error;

#[cfg(feature = "service")]
pub use error::{Error, Result};
#[doc(inline)]
pub use factum_event::*;
pub use factum_macros::{Event, Snapshot};
#[cfg(feature = "service")]
#[doc(inline)]
pub use factum_runtime::{
    Answer, BatchHandler, Call, CallEndpoint, CallerError, Calls, CloudEventsSource,
    CloudEventsSourceError, Config, ConfigError, Consumer, ConsumerError, ConsumerStats, Database,
    DatabaseError, DatabaseSettings, DirectClient, DirectError, DirectResponse, EndpointSettings,
    ErrorKind, EventReader, ForeignIds, GapPolicy, GroupProtocol, Handler, HealthSettings,
    KafkaSettings, LaneError, MaintenanceReport, OutboundCallError, Outbox, Problem, Profile,
    Publication, PublishError, Relay, RelayError, RelayStats, RelayWake, ResponseHandler,
    SaslMechanism, Security, SendError, Service, ServiceBuilder, ServiceError, StartAt,
    TombstonePolicy, Tx, TypeStats, UnknownPolicy, Window, event_readers, maintain, migration,
    new_event_id,
};

pub use bigdecimal;
#[cfg(feature = "service")]
pub use sqlx;
pub use time;
pub use uuid;

/// What the derives name. Not part of the promise.
#[doc(hidden)]
pub mod __private {
    pub use factum_contract::gate::{Place, check};
    pub use factum_event::__private::*;
}

// The README's code is compiled, too.
#[cfg(all(doctest, feature = "service"))]
#[doc = include_str!("../../../README.md")]
struct Readme;

// And that of the page about versions.
#[cfg(all(doctest, feature = "service"))]
#[doc = include_str!("../../../docs/versions.md")]
struct Versions;

// And that of the page about retry topics.
#[cfg(all(doctest, feature = "service"))]
#[doc = include_str!("../../../docs/retry-topics.md")]
struct RetryTopics;

// And that of the page about calls.
#[cfg(all(doctest, feature = "service"))]
#[doc = include_str!("../../../docs/calls.md")]
struct CallsPage;

// And that of the page about failures.
#[cfg(all(doctest, feature = "service"))]
#[doc = include_str!("../../../docs/failures.md")]
struct Failures;
