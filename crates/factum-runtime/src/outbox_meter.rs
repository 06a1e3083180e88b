//! What a relay has done and what it has before it, as metrics.

use std::sync::Arc;
use std::time::Duration;

use factum_postgres::Database;
use factum_postgres::status::outbox_status;
use tokio_util::sync::CancellationToken;

use crate::metric;
use crate::relay::RelayStats;

/// How often the relay's own counts are told.
const COUNTS_EVERY: Duration = Duration::from_secs(1);
/// How often the outbox is looked at.
const OUTBOX_EVERY: Duration = Duration::from_secs(10);

/// Tells it until `shutdown`, and the counts once more then.
pub(crate) async fn run(
    db: Database,
    stats: Arc<RelayStats>,
    service: String,
    shutdown: CancellationToken,
) {
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = tell_counts_often(&stats, &service) => {}
        () = tell_outbox(&db, &service) => {}
    }
    tell_counts(&stats, &service);
}

async fn tell_counts_often(stats: &RelayStats, service: &str) {
    loop {
        tell_counts(stats, service);
        tokio::time::sleep(COUNTS_EVERY).await;
    }
}

fn tell_counts(stats: &RelayStats, service: &str) {
    for (name, count) in [
        (metric::RELAY_PUBLISHED_TOTAL, stats.published()),
        (metric::RELAY_FAILED_TOTAL, stats.failed()),
        (metric::RELAY_SET_ASIDE_TOTAL, stats.set_aside()),
        (
            metric::RELAY_PRODUCER_REBUILDS_TOTAL,
            stats.producer_rebuilds(),
        ),
    ] {
        metrics::counter!(name, "service" => service.to_owned()).absolute(count);
    }
}

async fn tell_outbox(db: &Database, service: &str) {
    let gauge = |name| metrics::gauge!(name, "service" => service.to_owned());
    loop {
        match outbox_status(db).await {
            Ok(Some(outbox)) => {
                let oldest = outbox.oldest.unwrap_or_default();
                // Counts end at some ten thousand, far below where a double loses one.
                gauge(metric::OUTBOX_UNPUBLISHED).set(outbox.unpublished as f64);
                gauge(metric::OUTBOX_OLDEST_SECONDS).set(oldest.as_secs_f64());
                gauge(metric::OUTBOX_SET_ASIDE).set(outbox.set_aside as f64);
            }
            Ok(None) => tracing::debug!("the look at the outbox took too long and was cut"),
            Err(error) => {
                tracing::debug!(%error, "the outbox was not looked at; its gauges are old");
            }
        }
        tokio::time::sleep(OUTBOX_EVERY).await;
    }
}
