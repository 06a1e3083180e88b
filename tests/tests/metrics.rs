//! What `docs/metrics.md` lists is what a running service records, each name with its labels.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use factum::{Call, Calls, Consumer, Envelope, Handler, HandlerError, Relay, Retry, Service, Tx};
use factum_testing::eventually;
use factum_tests::provider::{Behaviour, Provider};
use factum_tests::{Entry as _, LIMIT, On, Running, Scene, entry_on_topic};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

entry_on_topic!(measured, "t.metrics");
use measured::Posted;

const CONSUMER: &str = "test-metrics";
const PAGE: &str = include_str!("../../docs/metrics.md");

/// Fails for the notes `flaky` and `bad` until it is mended, and calls for all others.
#[derive(Clone)]
struct Mendable(Arc<AtomicBool>);

impl Handler<Posted> for Mendable {
    async fn handle(&self, event: &Envelope<Posted>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        let broken = self.0.load(Ordering::SeqCst);
        match event.note() {
            "flaky" if broken => Err(std::io::Error::other("as the test wants it").into()),
            "bad" if broken => Err(HandlerError::permanent("as the test wants it")),
            "call" => {
                tx.call(Call::post("payments", "/v1/charges").json(&event.seq())?)
                    .await?;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// What was recorded: names with their labels, and values.
struct Recorded(BTreeMap<(String, BTreeMap<String, String>), f64>);

impl Recorded {
    /// Reads `name{label="value",…} 1` line by line. No label of ours holds what would have to be escaped.
    fn look(prometheus: &PrometheusHandle) -> Recorded {
        let page = prometheus.render();
        let lines = page
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        let read = |line: &str| {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let (name, labels) = series.split_once('{').expect("labels");
            let labels = labels.trim_end_matches('}').split(',').map(|label| {
                let (name, value) = label.split_once('=').expect("a label");
                (name.to_owned(), value.trim_matches('"').to_owned())
            });
            let value = value.parse().expect("a number");
            ((name.to_owned(), labels.collect()), value)
        };
        Recorded(lines.map(read).collect())
    }

    fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels = labels
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        self.0.get(&(name.to_owned(), labels)).copied()
    }

    /// Each name with the names of its labels.
    fn names(&self) -> BTreeSet<(String, String)> {
        let of = |labels: &BTreeMap<String, String>| {
            labels.keys().cloned().collect::<Vec<_>>().join(", ")
        };
        self.0
            .keys()
            .map(|(name, labels)| (name.clone(), of(labels)))
            .collect()
    }
}

/// The page's names with the names of their labels.
fn listed() -> BTreeSet<(String, String)> {
    PAGE.lines()
        .filter(|line| line.starts_with("| `factum_"))
        .map(|line| {
            let cells: Vec<&str> = line.split(" | ").collect();
            let name = cells[0].trim_start_matches("| ").trim_matches('`');
            (name.to_owned(), cells[2].to_owned())
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_of_the_page_is_recorded_with_its_labels_and_no_other() {
    let prometheus = PrometheusBuilder::new()
        .install_recorder()
        .expect("the only test of this program");
    let scene = Scene::new::<Posted>(On::Embedded, 1).await;
    scene
        .execute(
            "INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, topic, key, payload, occurred_at, \
                                 not_before, set_aside_at) \
             SELECT gen_random_uuid(), 'account.posted.v1', 'Account', 'x', 't.metrics', 'x', '{}', now(), \
                    not_before, set_aside_at \
             FROM (VALUES (now() + interval '1 hour', NULL), (NULL, now())) AS of (not_before, set_aside_at)",
        )
        .await;
    let provider = Provider::start(|_| Behaviour::Answer).await;
    let url = provider.url();
    let broken = Arc::new(AtomicBool::new(true));
    let retry = Retry::park()
        .first_delay(Duration::from_millis(20))
        .max_delay(Duration::from_millis(100))
        .attempts(1_000);
    let consumer = Consumer::named(CONSUMER)
        .handler::<Posted>(Mendable(broken.clone()))
        .retry(retry);
    let service = Running::start(
        Service::builder(scene.config(&[("FACTUM_CALL_PAYMENTS_URL", &url)]))
            .relay_with(Relay::new().attempts(1))
            .consumer(consumer)
            .calls(Calls::new().endpoint("payments")),
    );
    let events = [
        Posted::entry("a", 1, "flaky"),
        Posted::entry("a", 2, "behind"),
        Posted::entry("b", 1, "bad"),
        Posted::entry("c", 1, "call"),
    ];
    scene.produce(0, &events).await;

    let of_consumer = [("consumer", CONSUMER)];
    eventually(LIMIT, "the gauges of what is parked and dead", async || {
        let recorded = Recorded::look(&prometheus);
        let permanent = [("consumer", CONSUMER), ("reason", "permanent")];
        recorded.value("factum_parked_events", &of_consumer) == Some(2.0)
            && recorded.value("factum_parked_keys", &of_consumer) == Some(1.0)
            && recorded.value("factum_held_keys", &of_consumer) == Some(0.0)
            && recorded.value("factum_parked_oldest_seconds", &of_consumer) > Some(0.0)
            && recorded.value("factum_dead_letters_open", &permanent) == Some(1.0)
            && recorded.value("factum_dead_letters_total", &permanent) == Some(1.0)
            && recorded.value("factum_outbox_set_aside", &[("service", "test")]) == Some(1.0)
            && recorded.value("factum_outbox_unpublished", &[("service", "test")]) == Some(1.0)
            && recorded.value("factum_outbox_oldest_seconds", &[("service", "test")]) > Some(0.0)
    })
    .await;
    let recorded = Recorded::look(&prometheus);
    assert_eq!(
        recorded.value("factum_parked_total", &of_consumer),
        Some(2.0)
    );

    // One row that is sent, to a topic that nobody reads, and one that can't be.
    scene.broker.create_topic("t.metrics.sent", 1).await;
    scene
        .execute(
            "INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, topic, key, payload, occurred_at) \
             SELECT gen_random_uuid(), 't', 'Account', 'a', topic, 'a', '{}', now() \
             FROM unnest(ARRAY['t.metrics.sent', 't.metrics.missing']) AS topic",
        )
        .await;
    let of_service = [("service", "test")];
    eventually(LIMIT, "the relay's metrics", async || {
        let recorded = Recorded::look(&prometheus);
        recorded.value("factum_relay_slots", &of_service) == Some(64.0)
            && recorded.value("factum_relay_published_total", &of_service) == Some(1.0)
            && recorded.value("factum_relay_failed_total", &of_service) == Some(1.0)
            && recorded.value("factum_relay_set_aside_total", &of_service) == Some(1.0)
    })
    .await;

    broken.store(false, Ordering::SeqCst);
    scene
        .execute(
            "WITH run AS ( \
               INSERT INTO replay_run (consumer, created_by, good_until, state, started_at) \
               VALUES ('test-metrics', 'test', clock_timestamp() + interval '15 minutes', 'running', clock_timestamp()) \
               RETURNING id) \
             INSERT INTO replay_item (run_id, dead_letter_id, key, topic, partition, record_offset, state) \
             SELECT run.id, l.id, l.key, l.topic, l.partition, l.record_offset, 'ready' FROM run, dead_letter l",
        )
        .await;
    eventually(LIMIT, "everything is handled", async || {
        let recorded = Recorded::look(&prometheus);
        let outcome = |outcome| [("consumer", CONSUMER), ("outcome", outcome)];
        let call = |name, value| [("endpoint", "payments"), (name, value)];
        recorded.value("factum_retries_total", &outcome("handled")) == Some(2.0)
            && recorded.value("factum_retries_total", &outcome("failed")) >= Some(1.0)
            && recorded.value("factum_replayed_total", &outcome("handled")) == Some(1.0)
            && recorded.value("factum_calls_sent_total", &call("outcome", "answered")) == Some(1.0)
            && recorded.value("factum_calls", &call("state", "pending")) == Some(0.0)
            && recorded.value("factum_call_breaker_open", &[("endpoint", "payments")]) == Some(0.0)
            && recorded.value("factum_parked_events", &of_consumer) == Some(0.0)
            && recorded.value("factum_parked_oldest_seconds", &of_consumer) == Some(0.0)
    })
    .await;
    service.stop().await;
    assert_eq!(Recorded::look(&prometheus).names(), listed());
    assert!(
        prometheus.render().contains("# HELP factum_parked_total "),
        "each says what it means"
    );
}
