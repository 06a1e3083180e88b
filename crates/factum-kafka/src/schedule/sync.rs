//! What the lanes wait with, under shuttle's scheduler: each use is a point where another thread may
//! go on. Time is no clock here but a thread that may come in anywhere, so no order is left out
//! for being unlikely.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use shuttle::future::block_on;
use shuttle::sync::atomic::AtomicBool;

pub(crate) use shuttle::sync::atomic::{AtomicI64, Ordering};

/// Shuttle's, with a guard that knows its mutex.
#[derive(Default)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    guard: shuttle::sync::MutexGuard<'a, T>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(shuttle::sync::Mutex::new(value))
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    let guard = mutex.0.lock().unwrap_or_else(PoisonError::into_inner);
    MutexGuard { mutex, guard }
}

/// Never: a feed whose wake-up was lost hangs for good, and shuttle calls it a deadlock.
pub(crate) async fn sleep(_: Duration) {
    std::future::pending::<()>().await;
}

/// Who waits, each with a wake-up of its own. Without shuttle's lock: to look in is no step.
#[derive(Default)]
struct Waiting(std::sync::Mutex<Vec<Arc<tokio::sync::Notify>>>);

impl Waiting {
    fn enter(&self, wake_up: &Arc<tokio::sync::Notify>) {
        self.all().push(wake_up.clone());
    }

    fn wake_all(&self) {
        for wake_up in self.all().drain(..) {
            wake_up.notify_one();
        }
    }

    fn all(&self) -> std::sync::MutexGuard<'_, Vec<Arc<tokio::sync::Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As in `std`; shuttle's own never times out.
#[derive(Default)]
pub(crate) struct Condvar {
    waiting: Waiting,
    point: Point,
}

impl Condvar {
    pub(crate) fn new() -> Condvar {
        Condvar::default()
    }

    pub(crate) fn notify_all(&self) {
        self.point.pass();
        self.waiting.wake_all();
    }
}

/// A time that comes when the test lets it.
#[derive(Clone, Default)]
pub(crate) struct Deadline(Arc<Time>);

#[derive(Default)]
struct Time {
    passed: AtomicBool,
    waiting: Waiting,
}

impl Deadline {
    /// One that has passed already.
    pub(crate) fn passed() -> Deadline {
        let deadline = Deadline::default();
        deadline.pass();
        deadline
    }

    pub(crate) fn pass(&self) {
        self.0.passed.store(true, Ordering::SeqCst);
        self.0.waiting.wake_all();
    }

    pub(crate) fn wait<'a, T>(
        &self,
        signal: &Condvar,
        guard: MutexGuard<'a, T>,
    ) -> Option<MutexGuard<'a, T>> {
        if self.0.passed.load(Ordering::SeqCst) {
            return None;
        }
        // The load was the last point: from there to the unlocking nothing comes between, as in a
        // condition variable.
        let wake_up = Arc::default();
        self.0.waiting.enter(&wake_up);
        signal.waiting.enter(&wake_up);
        let mutex = guard.mutex;
        drop(guard);
        block_on(wake_up.notified());
        Some(lock(mutex))
    }
}

/// tokio's, with a point before each use.
#[derive(Default)]
pub(crate) struct Notify {
    inner: tokio::sync::Notify,
    point: Point,
}

impl Notify {
    pub(crate) fn new() -> Notify {
        Notify::default()
    }

    pub(crate) fn notify_one(&self) {
        self.point.pass();
        self.inner.notify_one();
    }

    pub(crate) async fn notified(&self) {
        self.point.pass();
        self.inner.notified().await;
    }
}

/// tokio's, with a point before each use.
#[derive(Clone, Default)]
pub(crate) struct CancellationToken {
    inner: tokio_util::sync::CancellationToken,
    point: Arc<Point>,
}

impl CancellationToken {
    pub(crate) fn new() -> CancellationToken {
        CancellationToken::default()
    }

    pub(crate) fn cancel(&self) {
        self.point.pass();
        self.inner.cancel();
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.point.pass();
        self.inner.is_cancelled()
    }

    pub(crate) async fn cancelled(&self) {
        self.point.pass();
        self.inner.cancelled().await;
    }
}

/// Where another thread may go on.
#[derive(Default)]
pub(super) struct Point(AtomicBool);

impl Point {
    pub(super) fn pass(&self) {
        self.0.load(Ordering::SeqCst);
    }
}
