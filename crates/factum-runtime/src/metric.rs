//! The names of what is counted and measured, as `docs/metrics.md` lists them.
//!
//! They go to the recorder of the `metrics` crate that the program installs; without one they cost a look at an
//! atomic. Names end in `_total` for counters and in their unit for gauges.
#![allow(dead_code, reason = "each part takes its own")]

/// Counter by `consumer`: events that were parked, whether they failed or wait behind one that did.
pub(crate) const PARKED_TOTAL: &str = "factum_parked_total";
/// Gauge by `consumer`: events that are parked now, counted up to 100,000.
pub(crate) const PARKED_EVENTS: &str = "factum_parked_events";
/// Gauge by `consumer`: keys that are parked now, counted up to 10,000.
pub(crate) const PARKED_KEYS: &str = "factum_parked_keys";
/// Gauge by `consumer`: keys that wait for a person.
pub(crate) const HELD_KEYS: &str = "factum_held_keys";
/// Gauge by `consumer`: seconds since the longest parked key was parked; 0 with none.
pub(crate) const PARKED_OLDEST_SECONDS: &str = "factum_parked_oldest_seconds";
/// Counter by `consumer` and `outcome` (`handled`, `duplicate`, `failed`, `dead_letter`, `held`, `retry_topic`):
/// attempts after the first, and events sent to a retry topic.
pub(crate) const RETRIES_TOTAL: &str = "factum_retries_total";
/// Counter by `consumer` and `reason`: records set aside.
pub(crate) const DEAD_LETTERS_TOTAL: &str = "factum_dead_letters_total";
/// Gauge by `consumer` and `reason`: dead letters that are open.
pub(crate) const DEAD_LETTERS_OPEN: &str = "factum_dead_letters_open";
/// Counter by `consumer` and `outcome` (`handled`, `duplicate`, `failed`): replayed dead letters.
pub(crate) const REPLAYED_TOTAL: &str = "factum_replayed_total";
/// Gauge by `endpoint` and `state`: calls that are unfinished, counted up to 10,000.
pub(crate) const CALLS: &str = "factum_calls";
/// Counter by `endpoint` and `outcome` (`answered`, `retry`, `set_aside`, `unknown`): calls that were sent.
pub(crate) const CALLS_SENT_TOTAL: &str = "factum_calls_sent_total";
/// Gauge by `endpoint`: 1 while the circuit breaker is open.
pub(crate) const CALL_BREAKER_OPEN: &str = "factum_call_breaker_open";
