//! Keeps the dedup window's partitions ahead of time and drops those behind it (IDEM-2), deletes what is older than its
//! retention, and folds the counts of dead letters.

use std::time::{Duration, Instant};

use factum_postgres::{
    Database, DatabaseError, Retention, RetentionReport, Window, apply_retention,
    fold_dead_letter_groups, forget_instances, maintain, record_maintenance,
};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

/// Partitions are daily and made a week ahead, so an hour is plenty.
const INTERVAL: Duration = Duration::from_secs(60 * 60);
/// After a failure. Short against the week of partitions that stand ready.
const RETRY_AFTER: Duration = Duration::from_secs(60);
/// Often, so that each time little is due.
const RETENTION_EVERY: Duration = Duration::from_secs(60);
/// Counts are exact without it; it keeps the list of deltas short.
const FOLD_EVERY: Duration = Duration::from_secs(10);

/// What a service keeps, and for how long.
pub(crate) struct Kept {
    pub(crate) service: String,
    pub(crate) window: Window,
    pub(crate) retention: Retention,
    /// By the settings' names, for `factum doctor`.
    pub(crate) settings: Vec<(&'static str, String)>,
}

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
    if !report.postponed.is_empty() {
        tracing::warn!(
            partitions = report.postponed.join(", "),
            "old partitions of the dedup window stay until a transaction ends that is open on the table; \
             `factum doctor` names its session"
        );
    }
    Ok(())
}

/// A pass every hour, the retention every minute, and the folding, until `shutdown`. A failure is logged and tried again.
///
/// `shutdown` cuts a pass short: the next one, in whatever process, finishes what it began.
pub(crate) async fn run(db: Database, kept: Kept, shutdown: CancellationToken) {
    let both = async { tokio::join!(go_with_time(&db, &kept), fold(&db)) };
    tokio::select! {
        () = shutdown.cancelled() => {}
        _ = both => unreachable!("neither ends"),
    }
}

/// One after the other, so that maintenance takes one connection however much there is to do.
async fn go_with_time(db: &Database, kept: &Kept) -> ! {
    // The start has made a pass.
    let mut window_due = Instant::now() + INTERVAL;
    loop {
        delete_what_is_over(db, kept).await;
        tokio::time::sleep(RETENTION_EVERY).await;
        if Instant::now() < window_due {
            continue;
        }
        let wait = match run_once(db, &kept.window).await {
            Ok(()) => INTERVAL,
            Err(error) => {
                tracing::error!(%error, "the dedup window was not moved; next try in a minute");
                RETRY_AFTER
            }
        };
        window_due = Instant::now() + wait;
        if let Err(error) = forget_instances(db).await {
            tracing::warn!(%error, "processes that ended long ago are still listed");
        }
    }
}

async fn delete_what_is_over(db: &Database, kept: &Kept) {
    if let Err(error) = record_maintenance(db, &kept.service, &kept.settings).await {
        tracing::warn!(%error, "`factum doctor` doesn't know for how long this service keeps what");
    }
    match apply_retention(db, &kept.retention).await {
        Ok(report) => told(&report),
        Err(error) => {
            tracing::warn!(%error, "what is older than its retention was not deleted; next try in a minute");
        }
    }
}

fn told(report: &RetentionReport) {
    let RetentionReport {
        leader: _,
        outbox,
        dead_letters,
        calls,
        replays,
        foreign_ids,
        audit,
        unfinished,
    } = *report;
    if outbox + dead_letters + calls + replays + foreign_ids + audit > 0 {
        tracing::debug!(
            outbox,
            dead_letters,
            calls,
            replays,
            foreign_ids,
            audit,
            unfinished,
            "deleted what was older than its retention"
        );
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
