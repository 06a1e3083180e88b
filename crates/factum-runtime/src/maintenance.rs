//! Keeps the dedup window's partitions ahead of time and drops those behind it (IDEM-2).

use std::time::Duration;

use factum_postgres::{Database, DatabaseError, Window, maintain};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

/// Partitions are daily and made a week ahead, so an hour is plenty.
const INTERVAL: Duration = Duration::from_secs(60 * 60);
/// After a failure. Short against the week of partitions that stand ready.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// One pass. Of several processes one does the work; the others find it done or being done, and
/// a lane that is faster than the leader waits, because a missing partition is not an event's fault.
pub(crate) async fn run_once(db: &Database, window: &Window) -> Result<(), DatabaseError> {
    let report = maintain(db, window, OffsetDateTime::now_utc()).await?;
    if !report.created.is_empty() || !report.dropped.is_empty() {
        tracing::info!(
            created = report.created.len(),
            dropped = report.dropped.len(),
            "moved the dedup window"
        );
    }
    Ok(())
}

/// A pass every hour until `shutdown`. A failure is logged and tried again a minute later.
///
/// `shutdown` cuts a pass short: the next one, in whatever process, finishes what it began.
pub(crate) async fn run(db: Database, window: Window, shutdown: CancellationToken) {
    let mut wait = INTERVAL;
    loop {
        let pass = async {
            tokio::time::sleep(wait).await;
            run_once(&db, &window).await
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            result = pass => match result {
                Ok(()) => wait = INTERVAL,
                Err(error) => {
                    tracing::error!(%error, "the dedup window was not moved; next try in a minute");
                    wait = RETRY_AFTER;
                }
            },
        }
    }
}
