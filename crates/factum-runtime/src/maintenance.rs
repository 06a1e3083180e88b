//! Keeps the dedup window's partitions ahead of time and drops those behind it (IDEM-2), and folds the counts of dead
//! letters.

use std::time::Duration;

use factum_postgres::{
    Database, DatabaseError, Window, fold_dead_letter_groups, forget_instances, maintain,
};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

/// Partitions are daily and made a week ahead, so an hour is plenty.
const INTERVAL: Duration = Duration::from_secs(60 * 60);
/// After a failure. Short against the week of partitions that stand ready.
const RETRY_AFTER: Duration = Duration::from_secs(60);
/// Counts are exact without it; it keeps the list of deltas short.
const FOLD_EVERY: Duration = Duration::from_secs(10);

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

/// A pass every hour, and the folding, until `shutdown`. A failure is logged and tried again.
///
/// `shutdown` cuts a pass short: the next one, in whatever process, finishes what it began.
pub(crate) async fn run(db: Database, window: Window, shutdown: CancellationToken) {
    let both = async { tokio::join!(move_window(&db, &window), fold(&db)) };
    tokio::select! {
        () = shutdown.cancelled() => {}
        _ = both => unreachable!("neither ends"),
    }
}

async fn move_window(db: &Database, window: &Window) -> ! {
    let mut wait = INTERVAL;
    loop {
        tokio::time::sleep(wait).await;
        wait = match run_once(db, window).await {
            Ok(()) => INTERVAL,
            Err(error) => {
                tracing::error!(%error, "the dedup window was not moved; next try in a minute");
                RETRY_AFTER
            }
        };
        if let Err(error) = forget_instances(db).await {
            tracing::warn!(%error, "processes that ended long ago are still listed");
        }
    }
}

async fn fold(db: &Database) -> ! {
    loop {
        if let Err(error) = fold_dead_letter_groups(db).await {
            tracing::warn!(%error, "the counts of dead letters were not folded; they are exact all the same");
        }
        tokio::time::sleep(FOLD_EVERY).await;
    }
}
