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
//! - [`dead_letter_list`], [`replay_plan`] and [`status`]: what a person reads and decides; [`audit`]: who did it.
//! - [`maintain`] and [`check_schema`]: partitions of the dedup window, and what is wrong with
//!   the tables.

pub mod audit;
mod bounded;
mod connection;
mod database;
mod dead_letter;
mod dead_letter_group;
pub mod dead_letter_list;
mod error;
mod event_id;
mod maintenance;
pub mod migration;
mod outbox;
mod partition;
mod reader;
mod relay;
pub mod replay_plan;
mod schema;
mod session;
pub mod status;

pub use database::{Database, DatabaseSettings};
pub use dead_letter::DeadLetter;
pub use dead_letter_group::{DeadLetterGroup, dead_letter_groups, fold_dead_letter_groups};
pub use error::{DatabaseError, ErrorKind, classify, describe};
pub use event_id::new_event_id;
pub use maintenance::{MaintenanceReport, Window, maintain};
pub use outbox::{MAX_PAYLOAD_BYTES, Outbox, Publication, PublishError};
pub use reader::{EventReader, Reading, event_readers, record_readers};
pub use relay::{Lease, Occasion, OutboxRow, RelayStore, SLOTS};
pub use schema::{SchemaProblem, check_schema};
pub use session::{CommitError, Dedup, DedupVerdict, RollbackError, Session, TransactionId};

/// The connection type of `sqlx` that [`Outbox::publish`] and [`Session::conn`] speak of.
pub use sqlx::PgConnection;
