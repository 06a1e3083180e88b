//! Every SQL statement of Factum: migrations, outbox, dedup, dead letters, leases, maintenance.
//!
//! `sqlx` shows in this crate's API in one form alone: `&mut PgConnection`, the caller's
//! connection or transaction. Everything else is plain data.
//!
//! - [`Database`]: connections, with their limits and time limits.
//! - [`migration`]: the tables, by a library call or as SQL for another tool.
//! - [`Outbox`]: publishing inside the caller's transaction.
//! - [`Session`]: the consumer's transaction: dedup, handlers, guard and COMMIT.
//! - [`RelayStore`]: what a relay asks the outbox for, under a lease.
//! - [`record_readers`] and [`event_readers`]: which consumer takes which version of an event.
//! - [`maintain`] and [`check_schema`]: partitions of the dedup window, and what is wrong with
//!   the tables.

pub mod audit;
mod connection;
mod database;
mod dead_letter;
mod error;
mod event_id;
mod maintenance;
pub mod migration;
mod outbox;
mod parked_key;
mod parking;
mod partition;
mod reader;
mod relay;
mod schema;
mod session;

pub use database::{Database, DatabaseSettings};
pub use dead_letter::DeadLetter;
pub use error::{DatabaseError, ErrorKind, classify, describe};
pub use event_id::new_event_id;
pub use maintenance::{MaintenanceReport, Window, maintain};
pub use outbox::{MAX_PAYLOAD_BYTES, Outbox, Publication, PublishError};
pub use parked_key::{ParkedKey, SetAside, parked_keys, release_parked, set_aside_parked};
pub use parking::{
    DueKey, ParkedCounts, ParkedEvent, ParkedHead, ParkedRecord, Parking, due_keys, parked_counts,
};
pub use reader::{EventReader, Reading, event_readers, record_readers};
pub use relay::{Lease, Occasion, OutboxRow, RelayStore, SLOTS};
pub use schema::{SchemaProblem, check_schema};
pub use session::{CommitError, Dedup, DedupVerdict, RollbackError, Session, TransactionId};

/// The connection type of `sqlx` that [`Outbox::publish`] and [`Session::conn`] speak of.
pub use sqlx::PgConnection;
