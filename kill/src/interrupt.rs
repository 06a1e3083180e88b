//! Ctrl-C, and what else asks a program to end.

use factum_testing::tool;
use tokio::signal::unix::{SignalKind, signal};

/// Waits for Ctrl-C, or what else asks a program to end. From then on nothing more is said: what is cut off
/// in the middle fails, and means nothing.
pub async fn interrupted() {
    let wait = |kind| async move {
        match signal(kind) {
            Ok(mut signal) => drop(signal.recv().await),
            // Without a handler the signal ends this program, and everything that watches it.
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = wait(SignalKind::interrupt()) => {}
        () = wait(SignalKind::terminate()) => {}
        () = wait(SignalKind::hangup()) => {}
    }
    tool::interrupt();
    std::panic::set_hook(Box::new(|_| {}));
}
