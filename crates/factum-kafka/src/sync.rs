//! What the lanes wait with. `schedule.rs` has its own of each, under which every order of steps is
//! tried; `lanes.rs` is compiled once with these and, in tests, once more with those.

use std::sync::PoisonError;
pub(crate) use std::sync::atomic::{AtomicI64, Ordering};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

pub(crate) use tokio::sync::Notify;
pub(crate) use tokio::time::sleep;
pub(crate) use tokio_util::sync::CancellationToken;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing in this crate panics while it holds a lock; the data stays sound either way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Until when to wait.
#[derive(Debug, Clone)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    pub(crate) fn after(wait: Duration) -> Deadline {
        Deadline(Instant::now() + wait)
    }

    /// Waits for the signal, or without cause; nothing once the deadline has passed.
    pub(crate) fn wait<'a, T>(
        &self,
        signal: &Condvar,
        guard: MutexGuard<'a, T>,
    ) -> Option<MutexGuard<'a, T>> {
        let left = self
            .0
            .checked_duration_since(Instant::now())
            .filter(|left| !left.is_zero())?;
        let woken = signal.wait_timeout(guard, left);
        Some(woken.unwrap_or_else(PoisonError::into_inner).0)
    }
}
