//! Every SQL statement of Factum: migrations, outbox, dedup, dead letters, leases, maintenance.
//!
//! `sqlx` shows in this crate's API in one form alone: `&mut PgConnection`, the caller's
//! connection or transaction. Everything else is plain data.
//!
//! - [`Database`]: connections, with their limits and time limits.
//! - [`migration`]: the tables, by a library call or as SQL for another tool.
//! - [`Outbox`]: publishing inside the caller's transaction.
//! - [`Session`]: the consumer's transaction: dedup, handlers, guard and COMMIT.
//! - [`RelayStore`]: what a relay asks the outbox for, under a lease; [`RelayListener`]: what wakes it up.
//! - [`write_call`] and [`CallStore`]: calls to other systems, and what a person does with them.
//! - [`record_readers`] and [`event_readers`]: which consumer takes which version of an event.
//! - [`dead_letter_groups`]: how many dead letters there are, exact.
//! - [`due_replays`]: plans and runs of replays, for the service that carries them out.
//! - [`dead_letter_list`], [`replay_plan`], [`status`] and [`doctor`]: what a person reads and decides; [`audit`]: who did it.
//! - [`maintain`], [`apply_retention`] and [`check_schema`]: partitions of the dedup window, what goes with time, and what
//!   is wrong with the tables.

pub mod audit;
mod bounded;
mod connection;
mod database;
mod dead_letter;
mod dead_letter_group;
pub mod dead_letter_list;
pub mod doctor;
mod error;
mod event_id;
mod instance;
mod maintenance;
pub mod migration;
mod outbound_call;
mod outbox;
mod parked_key;
mod parking;
mod partition;
mod raw_record;
mod reader;
mod relay;
mod relay_wake;
mod replay;
pub mod replay_plan;
mod retention;
mod schema;
mod session;
pub mod status;

pub use connection::Turn;
pub use database::{Database, DatabaseSettings};
pub use dead_letter::DeadLetter;
pub use dead_letter_group::{
    DeadLetterGroup, dead_letter_groups, fold_dead_letter_groups, open_dead_letters,
};
pub use error::{DatabaseError, ErrorKind, classify, describe};
pub use event_id::new_event_id;
pub use instance::{Instance, InstanceId, RunningConsumer, forget_instances};
pub use maintenance::{MaintenanceReport, Window, maintain};
pub use outbound_call::{
    AnsweredCall, CallNext, CallOutcome, CallRefusal, CallResponse, CallRow, CallState, CallStore,
    CallWritten, ClaimedCalls, DueCall, NewCall, find_call, resolve_call, retry_call,
    reveal_response, unfinished_calls, write_call,
};
pub use outbox::{MAX_PAYLOAD_BYTES, Outbox, Publication, PublishError};
pub use parked_key::{ParkedKey, SetAside, parked_keys, release_parked, set_aside_parked};
pub use parking::{
    DueKey, ParkedCounts, ParkedEvent, ParkedHead, ParkedRecord, Parking, due_keys, parked_counts,
};
pub use raw_record::{RawRecord, RecordPurpose};
pub use reader::{EventReader, Reading, ReadingConsumer, event_readers, record_readers};
pub use relay::{
    ClaimLimit, Lease, LeaseChange, Occasion, OutboxRow, RelayStore, RowRecord, SLOTS,
};
pub use relay_wake::{RelayListener, relay_wake_is_on, switch_relay_wake};
pub use replay::{
    DueReplay, FAILURES_IN_A_ROW, ReplayFailure, ReplayItem, ReplayOutcome, ReplayPlace,
    ReplayTask, StoredLetter, check_replay, drop_replay_item, due_replays, finish_replay,
    next_replay_item, stop_replay,
};
pub use retention::{Retention, RetentionReport, apply_retention, record_maintenance};
pub use schema::{SchemaProblem, check_schema};
pub use session::{CommitError, Dedup, DedupVerdict, RollbackError, Session, TransactionId};

/// The connection type of `sqlx` that [`Outbox::publish`] and [`Session::conn`] speak of.
pub use sqlx::PgConnection;
