//! SIGTERM and SIGINT: the first asks, the second ends the process at once.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Exit code of a process that a signal ended: 128 and the signal's number.
const EXIT_BASE: i32 = 128;

/// While it is set, SIGTERM and SIGINT end the process from within the signal handler, so that
/// neither a stuck handler nor a stuck runtime can hold it.
static NEXT_SIGNAL_ENDS: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
static WATCHERS: Mutex<Watchers> = Mutex::new(Watchers {
    installed: false,
    running: 0,
});

struct Watchers {
    installed: bool,
    running: usize,
}

/// Watches the process's signals for one service.
///
/// Once the last service of the process has ended, the next signal ends the process: what `main`
/// still does then is not drained for.
pub(crate) struct ShutdownSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl ShutdownSignals {
    pub(crate) fn watch() -> io::Result<ShutdownSignals> {
        let mut watchers = WATCHERS.lock().unwrap_or_else(PoisonError::into_inner);
        if watchers.running == 0 {
            NEXT_SIGNAL_ENDS.store(false, Ordering::SeqCst);
        }
        if !watchers.installed {
            for number in [SIGTERM, SIGINT] {
                // In this order: a signal that finds the flag set ends the process, any other sets it.
                let flag = Arc::clone(&NEXT_SIGNAL_ENDS);
                flag::register_conditional_shutdown(number, EXIT_BASE + number, flag)?;
                flag::register(number, Arc::clone(&NEXT_SIGNAL_ENDS))?;
            }
            watchers.installed = true;
        }
        let signals = ShutdownSignals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        };
        watchers.running += 1;
        Ok(signals)
    }

    /// Waits for the first signal.
    pub(crate) async fn first(&mut self) {
        let name = tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        };
        tracing::info!(
            signal = name,
            "stopping; a second signal ends the process at once"
        );
    }
}

impl Drop for ShutdownSignals {
    fn drop(&mut self) {
        let mut watchers = WATCHERS.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.running -= 1;
        if watchers.running == 0 {
            NEXT_SIGNAL_ENDS.store(true, Ordering::SeqCst);
        }
    }
}
