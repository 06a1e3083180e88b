//! Says in the database that this process lives, every five seconds.

use std::sync::Arc;
use std::time::Duration;

use factum_postgres::{Database, Instance, InstanceId, RunningConsumer};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::consumer::Consumer;
use crate::stats::ConsumerStats;

const INTERVAL: Duration = Duration::from_secs(5);
/// How long the goodbye may take: the service is stopping.
const LEAVE_LIMIT: Duration = Duration::from_secs(1);

/// What one process says of itself. It has a task and, now and then, a connection of its own: its failure or slowness
/// holds nothing up, and is logged.
pub(crate) struct Heartbeat {
    id: InstanceId,
    service: String,
    build: String,
    host: String,
    consumers: Vec<(String, Arc<ConsumerStats>)>,
    db: Database,
}

impl Heartbeat {
    pub(crate) fn new(
        id: InstanceId,
        config: &Config,
        consumers: &[Consumer],
        db: Database,
    ) -> Heartbeat {
        Heartbeat {
            id,
            service: config.service.clone(),
            build: config.build.clone(),
            host: host(),
            consumers: consumers
                .iter()
                .map(|consumer| (consumer.name().to_owned(), consumer.stats()))
                .collect(),
            db,
        }
    }

    /// At once, then at every interval; its row goes at the end.
    pub(crate) async fn run(self, stop: CancellationToken) {
        loop {
            let turn = async {
                self.beat().await;
                tokio::time::sleep(INTERVAL).await;
            };
            tokio::select! {
                () = stop.cancelled() => break,
                () = turn => {}
            }
        }
        let gone = self.instance(&[]);
        // Best effort: without it the process counts as living for twenty seconds more.
        let _ = tokio::time::timeout(LEAVE_LIMIT, gone.leave(&self.db)).await;
    }

    async fn beat(&self) {
        let consumers: Vec<RunningConsumer> = self
            .consumers
            .iter()
            .map(|(name, stats)| RunningConsumer {
                name: name.clone(),
                lanes: stats.lanes(),
                processed: stats.processed(),
            })
            .collect();
        if let Err(error) = self.instance(&consumers).beat(&self.db).await {
            tracing::warn!(%error, "could not say that this process lives; nothing else is affected");
        }
    }

    fn instance<'a>(&'a self, consumers: &'a [RunningConsumer]) -> Instance<'a> {
        Instance {
            id: self.id,
            service: &self.service,
            build: &self.build,
            host: &self.host,
            process_id: std::process::id(),
            consumers,
        }
    }
}

/// The machine's name for a person to read; empty where nobody says it.
fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .or_else(|_| std::env::var("HOSTNAME"))
        .map(|name| name.trim().to_owned())
        .unwrap_or_default()
}
