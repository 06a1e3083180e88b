//! Did a run lose, double or reorder anything?
//!
//! The checker compares what went into a run (a [`History`], written by whoever drove it) with what
//! came out of it (the [`Facts`]: effect tables, dead letters, what is parked, calls, topics, committed
//! offsets). It shares no
//! code with what it checks, so that no fault can hide itself, and it writes nothing anywhere.
//!
//! [`read`] collects the facts, in an order that makes the verdict sound while the run goes on;
//! [`check`] is pure.
//!
//! ```
//! use factum_checker::{Facts, History, Phase, check};
//!
//! let history = History::parse(
//!     r#"{
//!         "consumer": "billing",
//!         "source": { "topic": "posted", "begin": {} },
//!         "effects": ["debit"],
//!         "input": [{ "id": "0197a3c0-0000-7000-8000-000000000001",
//!                     "key": "account-1", "seq": 1, "fate": "effect" }]
//!     }"#,
//! )?;
//! // Nothing has happened yet: fine while the run goes on, a loss when it has ended.
//! let facts = Facts::default();
//! assert!(check(&history, &facts, Phase::Running).is_empty());
//! assert_eq!(check(&history, &facts, Phase::Ended)[0].kind.as_str(), "lost");
//! # Ok::<(), factum_checker::HistoryError>(())
//! ```

mod check;
mod facts;
mod history;
mod read;

pub use check::{Anomaly, AnomalyKind, Phase, check};
pub use facts::{
    Body, BusinessRow, Call, CallState, DeadLetter, Effect, Facts, Label, Parked, Partition,
    Position, Record, Topic, Unsent,
};
pub use history::{Begin, Calls, Fate, History, HistoryError, Input, TopicRun};
pub use read::{ReadError, read};
