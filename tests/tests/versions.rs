//! Versions of an event, living together: 1,000 orders through every way of migrating, none lost, none doubled.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use factum::sqlx::Connection as _;
use factum::{Consumer, Event, Outbox, Problem, Retry, Service, ServiceError, TypeStats};
use factum_testing::eventually;
use factum_tests::{
    Entry, LIMIT, On, Recorder, Running, Scene, entry_on_topic, envelope, on_both_brokers,
    orders_on_topic,
};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use time::OffsetDateTime;

on_both_brokers!(
    listing_fault_06_a_consumer_of_v1_alone_takes_a_thousand_orders_once,
    a_consumer_of_v2_alone_takes_a_thousand_orders_once,
    a_rolling_migration_with_kills_takes_a_thousand_orders_once,
    a_renamed_group_takes_a_thousand_orders_once,
    listing_fault_07_one_id_for_both_versions_where_two_ids_double_every_order,
    both_versions_in_one_batch_act_once_whichever_comes_first,
    a_handler_of_the_old_version_wins_over_the_upcast,
    a_handler_publishes_both_versions_or_none,
    a_refused_upcast_is_a_dead_letter_and_the_partition_moves_on,
    the_old_versions_topic_is_read_and_asked_for,
);

const ORDERS: usize = 1_000;
const PARTITIONS: u32 = 4;
const V1: &str = "order.confirmed.v1";
const V2: &str = "order.confirmed.v2";

/// Publishes the orders of these numbers in one business transaction.
async fn publish<E: Entry>(scene: &Scene, numbers: std::ops::Range<usize>) {
    let now = OffsetDateTime::now_utc();
    let orders: Vec<_> = numbers
        .map(|number| E::entry(&format!("o{number}"), 1, "").occurred_at(now))
        .collect();
    let mut connection = scene.database.connect().await;
    let mut tx = connection.begin().await.unwrap();
    Outbox::new().publish_all(&mut tx, orders).await.unwrap();
    tx.commit().await.unwrap();
    connection.close().await.unwrap();
}

async fn await_count(scene: &Scene, consumer: &str, least: usize) {
    eventually(
        LIMIT,
        &format!("{least} effects of {consumer}"),
        async || scene.effects(consumer).await.len() >= least,
    )
    .await;
}

/// Waits until the group has read the topic to its end, so that whatever could still be doubled has been.
async fn await_end(scene: &Scene, group: &str, topic: &str) {
    let mut ends = std::collections::BTreeMap::new();
    for record in scene.broker.records(topic).await {
        ends.insert(record.partition, record.offset + 1);
    }
    eventually(
        LIMIT,
        &format!("{group} at the end of {topic}"),
        async || scene.broker.committed(group, topic).await == ends,
    )
    .await;
}

/// Every order took effect, and none twice.
async fn assert_each_once(scene: &Scene, consumer: &str) {
    let mut effects = scene.effects(consumer).await;
    assert_eq!(effects.len(), ORDERS, "{consumer}: lost or doubled");
    effects.sort();
    effects.dedup();
    assert_eq!(effects.len(), ORDERS, "{consumer}: some twice, some never");
    assert_eq!(scene.dead_letters(consumer).await, [""; 0]);
}

fn of_type(stats: &factum::ConsumerStats, event_type: &str) -> TypeStats {
    let all = stats.by_type();
    *all.iter()
        .find(|stats| stats.event_type == event_type)
        .unwrap_or_else(|| panic!("no {event_type} in {all:?}"))
}

orders_on_topic!(old, "t.versions.old");
async fn listing_fault_06_a_consumer_of_v1_alone_takes_a_thousand_orders_once(on: On) {
    use old::{OrderConfirmed, OrderConfirmedV1};
    let scene = Scene::new::<OrderConfirmed>(on, PARTITIONS).await;
    let name = "test-old";
    let consumer = Consumer::named(name).handler::<OrderConfirmedV1>(Recorder::of(name));
    let stats = consumer.stats();
    let relay = scene.start_relay();
    let running = scene.start([consumer]);
    publish::<OrderConfirmedV1>(&scene, 0..ORDERS / 2).await;
    publish::<OrderConfirmed>(&scene, ORDERS / 2..ORDERS).await;
    await_count(&scene, name, ORDERS).await;
    await_end(&scene, name, OrderConfirmed::TOPIC).await;
    running.stop().await;
    relay.stop().await;
    assert_each_once(&scene, name).await;
    assert_eq!(stats.unknown(), 500, "v2 is skipped, and counted");
    assert_eq!((stats.processed(), stats.duplicates()), (1_000, 0));
    assert_eq!(of_type(&stats, V1).taken, 1_000);
    let one_id_each = "SELECT count(*) FROM (SELECT event_id FROM outbox GROUP BY event_id \
                       HAVING count(*) <= 2 AND count(DISTINCT (key, occurred_at)) = 1) AS facts";
    assert_eq!(scene.count(one_id_each).await, 1_000);
    assert_eq!(scene.count("SELECT count(*) FROM outbox").await, 1_500);
}

orders_on_topic!(new, "t.versions.new");
async fn a_consumer_of_v2_alone_takes_a_thousand_orders_once(on: On) {
    use new::{OrderConfirmed, OrderConfirmedV1};
    let scene = Scene::new::<OrderConfirmed>(on, PARTITIONS).await;
    let (name, in_slices) = ("test-new", "test-new-slices");
    let consumer = Consumer::named(name).handler::<OrderConfirmed>(Recorder::of(name));
    let slices =
        Consumer::named(in_slices).batch_handler::<OrderConfirmed>(Recorder::of(in_slices));
    let stats = consumer.stats();
    let relay = scene.start_relay();
    let running = scene.start([consumer, slices]);
    publish::<OrderConfirmedV1>(&scene, 0..ORDERS / 2).await;
    publish::<OrderConfirmed>(&scene, ORDERS / 2..ORDERS).await;
    for name in [name, in_slices] {
        await_count(&scene, name, ORDERS).await;
        await_end(&scene, name, OrderConfirmed::TOPIC).await;
    }
    running.stop().await;
    relay.stop().await;
    for name in [name, in_slices] {
        assert_each_once(&scene, name).await;
    }
    assert_eq!(stats.unknown(), 0);
    let (v1, v2) = (of_type(&stats, V1), of_type(&stats, V2));
    assert!(v1.is_upcast() && !v2.is_upcast());
    // The newest version leaves first, so it is the one that takes effect; a repeat of the relay or the group
    // would only add duplicates.
    assert_eq!((v1.taken, v2.taken), (500, 500));
    assert!(v1.duplicates >= 500, "{v1:?}");
    assert!(v1.last_taken_at.is_some());

    // What the database knows of it, for `factum contract readers`.
    let known = "SELECT count(*) FROM event_reader WHERE consumer = 'test-new' AND taken_as = 'order.confirmed.v2' \
                 AND newest = 'order.confirmed.v2' AND topic = 't.versions.new' AND taken = 500 \
                 AND last_taken_at IS NOT NULL";
    assert_eq!(scene.count(known).await, 2, "v1 and v2");
}

orders_on_topic!(rolling, "t.versions.rolling");

/// `order-service`; killed with the test.
struct Process(Child);

impl Process {
    fn start(scene: &Scene, version: &str) -> Process {
        let child = Command::new(env!("CARGO_BIN_EXE_order-service"))
            .env("ORDER_VERSION", version)
            .env("DATABASE_URL", scene.database.url())
            .env("KAFKA_BROKERS", scene.broker.bootstrap())
            .env("KAFKA_SECURITY_PROTOCOL", "PLAINTEXT")
            .env("FACTUM_SERVICE", "test")
            .env("FACTUM_PROFILE", "development")
            // As the account service's, see there.
            .env("KAFKA_CONSUMER_SESSION_TIMEOUT_MS", "5000")
            .env("KAFKA_CONSUMER_HEARTBEAT_INTERVAL_MS", "300")
            .stdin(Stdio::null())
            .spawn()
            .expect("the service's binary starts");
        Process(child)
    }

    /// SIGTERM, and its orderly end, as a deployment does it.
    fn stop(mut self) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).expect("a process id"));
        signal::kill(pid, Signal::SIGTERM).expect("it runs");
        assert!(self.0.wait().expect("it ends").success());
    }

    /// SIGKILL: no destructor, no last word.
    fn kill(mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have been killed before.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn a_rolling_migration_with_kills_takes_a_thousand_orders_once(on: On) {
    use rolling::{OrderConfirmed, OrderConfirmedV1};
    const CHUNK: usize = 100;
    let scene = Scene::new::<OrderConfirmed>(on, PARTITIONS).await;
    let name = "test-rolling";
    let relay = scene.start_relay();
    let mut published = 0;
    // Publishes the next chunk, and waits until some of it took effect and the rest is on its way.
    let mut go_on = async |both: bool| {
        await_count(&scene, name, published).await;
        let chunk = published..published + CHUNK;
        published += CHUNK;
        if both {
            publish::<OrderConfirmed>(&scene, chunk.clone()).await;
        } else {
            publish::<OrderConfirmedV1>(&scene, chunk.clone()).await;
        }
        await_count(&scene, name, chunk.start + 5).await;
    };
    const NEW_CODE: &str = "SELECT count(*) FROM event_reader WHERE newest = 'order.confirmed.v2'";

    let old = Process::start(&scene, "v1");
    let second_old = Process::start(&scene, "v1");
    go_on(false).await;
    go_on(false).await;
    // Code of both generations in one group.
    let new = Process::start(&scene, "v2");
    eventually(LIMIT, "what the new code takes", async || {
        scene.count(NEW_CODE).await > 0
    })
    .await;
    go_on(false).await;
    go_on(false).await;
    old.kill();
    go_on(false).await;
    // The producer is migrated before the last consumer is.
    go_on(true).await;
    go_on(true).await;
    second_old.stop();
    go_on(true).await;
    new.kill();
    let last = Process::start(&scene, "v2");
    go_on(true).await;
    go_on(true).await;
    await_count(&scene, name, ORDERS).await;
    await_end(&scene, name, OrderConfirmed::TOPIC).await;
    assert_each_once(&scene, name).await;
    last.kill();
    relay.stop().await;
    let generations = "SELECT count(*) FROM event_reader WHERE consumer = 'test-rolling' \
                       AND (event_type, taken_as, newest) IN \
                         (('order.confirmed.v1', 'order.confirmed.v1', 'order.confirmed.v1'), \
                          ('order.confirmed.v1', 'order.confirmed.v2', 'order.confirmed.v2'), \
                          ('order.confirmed.v2', 'order.confirmed.v2', 'order.confirmed.v2'))";
    assert_eq!(scene.count(generations).await, 3);
}

orders_on_topic!(renamed, "t.versions.renamed");
async fn a_renamed_group_takes_a_thousand_orders_once(on: On) {
    use renamed::{OrderConfirmed, OrderConfirmedV1};
    let scene = Scene::new::<OrderConfirmed>(on, PARTITIONS).await;
    let name = "test-renamed";
    let relay = scene.start_relay();
    let running =
        scene.start([Consumer::named(name).handler::<OrderConfirmedV1>(Recorder::of(name))]);
    publish::<OrderConfirmedV1>(&scene, 0..300).await;
    publish::<OrderConfirmed>(&scene, 300..600).await;
    // In the middle of the work.
    await_count(&scene, name, 100).await;
    running.stop().await;

    let group = "test-renamed-orders";
    let consumer = Consumer::named(name)
        .group(group)
        .handler::<OrderConfirmed>(Recorder::of(name));
    assert_eq!((consumer.name(), consumer.group_id()), (name, group));
    let stats = consumer.stats();
    let running = scene.start([consumer]);
    publish::<OrderConfirmed>(&scene, 600..ORDERS).await;
    await_count(&scene, name, ORDERS).await;
    await_end(&scene, group, OrderConfirmed::TOPIC).await;
    running.stop().await;
    relay.stop().await;
    assert_each_once(&scene, name).await;
    assert!(
        stats.duplicates() >= 100,
        "it began at the beginning: {} duplicates",
        stats.duplicates()
    );
    let known = "SELECT count(*) FROM event_reader \
                 WHERE consumer = 'test-renamed' AND consumer_group = 'test-renamed-orders'";
    assert_eq!(scene.count(known).await, 2);
}

// Today's practice: two types that know nothing of each other, published side by side, each with its own id.
entry_on_topic!(practice_v1, "t.versions.practice");
entry_on_topic!(practice_v2, "t.versions.practice", "account.posted.v2");
orders_on_topic!(linked, "t.versions.linked");
async fn listing_fault_07_one_id_for_both_versions_where_two_ids_double_every_order(on: On) {
    use linked::{OrderConfirmed, OrderConfirmedV1};
    let scene = Scene::new::<OrderConfirmed>(on, PARTITIONS).await;
    let topic = practice_v1::Posted::TOPIC;
    scene.broker.create_topic(topic, PARTITIONS).await;
    let (practice, linked) = ("test-practice", "test-linked");
    // A consumer on its way from v1 to v2 handles both.
    let relay = scene.start_relay();
    let running = scene.start([
        Consumer::named(practice)
            .handler::<practice_v1::Posted>(Recorder::of(practice))
            .handler::<practice_v2::Posted>(Recorder::of(practice)),
        Consumer::named(linked)
            .handler::<OrderConfirmedV1>(Recorder::of(linked))
            .handler::<OrderConfirmed>(Recorder::of(linked)),
    ]);
    publish::<practice_v2::Posted>(&scene, 0..ORDERS).await;
    publish::<practice_v1::Posted>(&scene, 0..ORDERS).await;
    publish::<OrderConfirmed>(&scene, 0..ORDERS).await;
    await_count(&scene, practice, 2 * ORDERS).await;
    await_count(&scene, linked, ORDERS).await;
    await_end(&scene, practice, topic).await;
    await_end(&scene, linked, OrderConfirmed::TOPIC).await;
    running.stop().await;
    relay.stop().await;
    let mut doubled = scene.effects(practice).await;
    assert_eq!(doubled.len(), 2 * ORDERS);
    doubled.sort();
    doubled.dedup();
    assert_eq!(
        doubled.len(),
        ORDERS,
        "with two ids every order takes effect twice"
    );
    assert_each_once(&scene, linked).await;
}

orders_on_topic!(batch, "t.versions.batch");
async fn both_versions_in_one_batch_act_once_whichever_comes_first(on: On) {
    use batch::{OrderConfirmed, OrderConfirmedV1};
    let scene = Scene::new::<OrderConfirmed>(on, 1).await;
    let name = "test-batch";
    let recorder = Recorder::of(name);
    let mut values = Vec::new();
    for (order, newest_first) in [("a", true), ("b", false)] {
        let v2 = envelope(OrderConfirmed::entry(order, 1, ""));
        let v1 = OrderConfirmedV1::try_from(v2.event())
            .unwrap()
            .occurred_at(v2.occurred_at())
            .with_id(v2.id());
        let mut both = [v2.encode().unwrap(), v1.encode().unwrap()];
        if !newest_first {
            both.reverse();
        }
        values.extend(both);
    }
    let values: Vec<Option<&[u8]>> = values.iter().map(|v| Some(v.as_slice())).collect();
    scene.produce_raw::<OrderConfirmed>(0, &values).await;
    let consumer = Consumer::named(name).handler::<OrderConfirmed>(recorder.clone());
    let stats = consumer.stats();
    let running = scene.start([consumer]);
    scene
        .await_committed(name, OrderConfirmed::TOPIC, 0, 4)
        .await;
    running.stop().await;
    assert_eq!(scene.effects(name).await, ["a:1", "b:1"]);
    assert_eq!((recorder.calls(), stats.duplicates()), (2, 2));
    let counted = |kind| {
        (
            of_type(&stats, kind).taken,
            of_type(&stats, kind).duplicates,
        )
    };
    assert_eq!((counted(V1), counted(V2)), ((1, 1), (1, 1)));
}

orders_on_topic!(explicit, "t.versions.explicit");
async fn a_handler_of_the_old_version_wins_over_the_upcast(on: On) {
    use explicit::{OrderConfirmed, OrderConfirmedV1};
    let scene = Scene::new::<OrderConfirmed>(on, 1).await;
    let (of_v1, of_v2) = (Recorder::of("test-explicit"), Recorder::of("test-explicit"));
    let consumer = Consumer::named("test-explicit")
        .handler::<OrderConfirmed>(of_v2.clone())
        .handler::<OrderConfirmedV1>(of_v1.clone());
    let stats = consumer.stats();
    let running = scene.start([consumer]);
    scene
        .produce(0, &[OrderConfirmedV1::entry("a", 1, "")])
        .await;
    scene.produce(0, &[OrderConfirmed::entry("b", 1, "")]).await;
    scene
        .await_committed("test-explicit", OrderConfirmed::TOPIC, 0, 2)
        .await;
    running.stop().await;
    assert_eq!((of_v1.calls(), of_v2.calls()), (1, 1));
    assert!(!of_type(&stats, V1).is_upcast());
    let newest = "SELECT count(*) FROM event_reader WHERE newest = 'order.confirmed.v2' AND taken_as = event_type";
    assert_eq!(
        scene.count(newest).await,
        2,
        "v1 itself, by code that knows v2"
    );
}

entry_on_topic!(caused, "t.versions.caused");
orders_on_topic!(derived, "t.versions.derived");

/// Confirms an order for each entry.
struct Confirming;

impl factum::Handler<caused::Posted> for Confirming {
    async fn handle(
        &self,
        event: &factum::Envelope<caused::Posted>,
        tx: &mut factum::Tx<'_>,
    ) -> Result<(), factum::HandlerError> {
        let mut order = derived::OrderConfirmed::entry(event.account(), event.seq(), "");
        if event.note() == "beyond v1" {
            order.amount = u64::from(u32::MAX) + 1;
        }
        tx.publish(order.occurred_at(event.occurred_at())).await?;
        Ok(())
    }
}

async fn a_handler_publishes_both_versions_or_none(on: On) {
    let scene = Scene::new::<caused::Posted>(on, 1).await;
    let name = "test-caused";
    let events = [
        caused::Posted::entry("a", 1, ""),
        caused::Posted::entry("b", 1, "beyond v1"),
        caused::Posted::entry("c", 1, ""),
    ];
    scene.produce(0, &events).await;
    let consumer = Consumer::named(name)
        .handler::<caused::Posted>(Confirming)
        .retry(Retry::pause_partition().attempts(1));
    let running = scene.start([consumer]);
    scene
        .await_committed(name, caused::Posted::TOPIC, 0, 3)
        .await;
    running.stop().await;
    assert_eq!(scene.dead_letters(name).await, ["permanent"]);
    let pairs = "SELECT count(*) FROM (SELECT FROM outbox GROUP BY event_id, key HAVING \
                 array_agg(event_type ORDER BY id) = '{order.confirmed.v2,order.confirmed.v1}') AS pairs";
    assert_eq!(scene.count(pairs).await, 2);
    assert_eq!(scene.count("SELECT count(*) FROM outbox").await, 4);
}

orders_on_topic!(strange, "t.versions.strange");
async fn a_refused_upcast_is_a_dead_letter_and_the_partition_moves_on(on: On) {
    use strange::{OrderConfirmed, OrderConfirmedV1};
    let scene = Scene::new::<OrderConfirmed>(on, 1).await;
    let name = "test-strange";
    scene
        .produce(
            0,
            &[
                OrderConfirmedV1::entry("a", 1, ""),
                OrderConfirmedV1::entry("a", 2, "strange"),
                OrderConfirmedV1::entry("a", 3, ""),
                OrderConfirmedV1::entry("a", 4, "permanent"),
            ],
        )
        .await;
    let consumer = Consumer::named(name).handler::<OrderConfirmed>(Recorder::of(name));
    let running = scene.start([consumer]);
    scene
        .await_committed(name, OrderConfirmed::TOPIC, 0, 4)
        .await;
    running.stop().await;
    assert_eq!(scene.effects(name).await, ["a:1", "a:3"]);
    assert_eq!(scene.dead_letters(name).await, ["upcast", "permanent"]);
    // Set aside as what was sent, not as what the handler got.
    let sent = "SELECT count(*) FROM dead_letter WHERE reason = 'permanent' AND event_type = 'order.confirmed.v1'";
    assert_eq!(scene.count(sent).await, 1);
    let clear = "SELECT count(*) FROM dead_letter WHERE path = '$.note' AND attempts = 1 \
                 AND error LIKE 'upcast at $.note: expected no strange one: this order.confirmed.v1 can''t be made \
into order.confirmed.v2;%' AND value LIKE '%order.confirmed.v1%'::bytea";
    assert_eq!(scene.count(clear).await, 1);
}

orders_on_topic!(apart, "t.versions.apart", "t.versions.apart-old");
async fn the_old_versions_topic_is_read_and_asked_for(on: On) {
    use apart::{OrderConfirmed, OrderConfirmedV1};
    let scene = Scene::new::<OrderConfirmed>(on, 1).await;
    let name = "test-apart";
    let consumer = || Consumer::named(name).handler::<OrderConfirmed>(Recorder::of(name));
    let problems = refused(Service::builder(scene.config(&[])).consumer(consumer())).await;
    let [problem] = &problems[..] else {
        panic!("{problems:#?}")
    };
    assert_eq!(problem.rule(), "CFG-4");
    assert!(problem.what().contains("t.versions.apart-old"), "{problem}");
    // Who publishes v2 writes to both topics.
    let publisher = Service::builder(scene.config(&[]))
        .relay()
        .publishes::<OrderConfirmed>();
    let problems = refused(publisher).await;
    let [problem] = &problems[..] else {
        panic!("{problems:#?}")
    };
    assert!(problem.what().contains("t.versions.apart-old"), "{problem}");
    assert!(problem.place().contains("publishes to it"), "{problem}");

    scene.broker.create_topic(OrderConfirmedV1::TOPIC, 1).await;
    let running = scene.start([consumer()]);
    let relay = scene.start_relay();
    publish::<OrderConfirmedV1>(&scene, 0..1).await;
    publish::<OrderConfirmed>(&scene, 1..2).await;
    await_count(&scene, name, 2).await;
    await_end(&scene, name, OrderConfirmedV1::TOPIC).await;
    await_end(&scene, name, OrderConfirmed::TOPIC).await;
    running.stop().await;
    relay.stop().await;
    let mut effects = scene.effects(name).await;
    effects.sort();
    assert_eq!(effects, ["o0:1", "o1:1"]);
    let topic_of = |records: &[_]| records.len();
    assert_eq!(
        topic_of(&scene.broker.records(OrderConfirmed::TOPIC).await),
        1
    );
    assert_eq!(
        topic_of(&scene.broker.records(OrderConfirmedV1::TOPIC).await),
        2
    );
}

orders_on_topic!(locked, "t.versions.locked");
#[tokio::test(flavor = "multi_thread")]
async fn what_a_consumer_says_of_itself_holds_up_no_event() {
    use locked::OrderConfirmed;
    let scene = Scene::new::<OrderConfirmed>(On::Embedded, 1).await;
    let name = "test-locked";
    let mut holder = scene.database.connect().await;
    let mut lock = holder.begin().await.unwrap();
    factum::sqlx::raw_sql("LOCK TABLE event_reader IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *lock)
        .await
        .unwrap();
    let running =
        scene.start([Consumer::named(name).handler::<OrderConfirmed>(Recorder::of(name))]);
    scene.produce(0, &[OrderConfirmed::entry("a", 1, "")]).await;
    await_count(&scene, name, 1).await;
    // Not at the end either: it ends within its deadline, without an error.
    running.stop().await;
    lock.rollback().await.unwrap();
    holder.close().await.unwrap();

    // And a table that is gone while it runs.
    let running =
        scene.start([Consumer::named(name).handler::<OrderConfirmed>(Recorder::of(name))]);
    eventually(LIMIT, "the first word", async || {
        scene.count("SELECT count(*) FROM event_reader").await > 0
    })
    .await;
    scene.execute("DROP TABLE event_reader").await;
    scene.produce(0, &[OrderConfirmed::entry("b", 1, "")]).await;
    await_count(&scene, name, 2).await;
    running.stop().await;
}

/// Starts, expects a refusal, and gives what the checks found.
async fn refused(service: factum::ServiceBuilder) -> Vec<Problem> {
    let started = service.run_until(std::future::pending());
    match tokio::time::timeout(LIMIT, started).await {
        Ok(Err(ServiceError::Start(problems))) => problems,
        other => panic!("expected a refused start, found {other:?}"),
    }
}

orders_on_topic!(checked, "t.versions.checked");

/// Supersedes v1 as v2 does, and knows nothing of v2.
#[derive(Debug, Clone, Event)]
#[event(
    kind = "order.confirmed.v3",
    aggregate = "Order",
    topic = "t.versions.checked",
    unlocked,
    supersedes = checked::OrderConfirmedV1
)]
struct OrderConfirmedV3 {
    #[event(aggregate_id)]
    order: String,
}

impl From<checked::OrderConfirmedV1> for OrderConfirmedV3 {
    fn from(v1: checked::OrderConfirmedV1) -> Self {
        OrderConfirmedV3 { order: v1.order }
    }
}

impl From<&OrderConfirmedV3> for checked::OrderConfirmedV1 {
    fn from(fork: &OrderConfirmedV3) -> Self {
        checked::OrderConfirmedV1::entry(&fork.order, 1, "")
    }
}

struct Idle;

impl factum::Handler<OrderConfirmedV3> for Idle {
    async fn handle(
        &self,
        _: &factum::Envelope<OrderConfirmedV3>,
        _: &mut factum::Tx<'_>,
    ) -> Result<(), factum::HandlerError> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_and_ambiguous_versions_are_checked_at_start() {
    let scene = Scene::new::<checked::OrderConfirmed>(On::Embedded, 1).await;
    let of = |name| {
        Consumer::named(name)
            .handler::<checked::OrderConfirmed>(Recorder::of("test-checked"))
            .retry(Retry::pause_partition().first_delay(Duration::from_millis(20)))
    };
    let service = Service::builder(scene.config(&[]))
        .consumer(of("test-a").handler::<OrderConfirmedV3>(Idle))
        .consumer(of("test-b").group("Test_B"))
        .consumer(of("test-c").group("other-c"))
        .consumer(of("test-d").group("test-e"))
        .consumer(of("test-e"))
        .consumer(of("test-f").group("test-g"));
    let problems = refused(service).await;
    let told: Vec<(&str, &str, &str)> = problems
        .iter()
        .map(|problem| (problem.rule(), problem.place(), problem.what()))
        .collect();
    assert_eq!(
        told,
        [
            (
                "CONS-1",
                "consumer `test-b`",
                "its Kafka group is set apart, and the name is not lower-case kebab"
            ),
            (
                "CONS-1",
                "consumer `test-c`",
                "its Kafka group is set apart, and the name does not begin with its service's, `test-`"
            ),
            (
                "CONS-1",
                "consumers `test-d`, `test-e`",
                "they share the Kafka group `test-e`, so each would get a part of the records alone"
            ),
            (
                "EVT-3",
                "consumer `test-a`",
                "its handlers of `order.confirmed.v2` and `order.confirmed.v3` would both take \
                 `order.confirmed.v1`, which both supersede"
            ),
        ]
    );
    // The problem's mend works: a handler of v1 itself.
    let both = of("test-a")
        .handler::<OrderConfirmedV3>(Idle)
        .handler::<checked::OrderConfirmedV1>(Recorder::of("test-checked"));
    let running = Running::start(Service::builder(scene.config(&[])).consumer(both));
    scene
        .produce(0, &[checked::OrderConfirmedV1::entry("a", 1, "")])
        .await;
    await_count(&scene, "test-checked", 1).await;
    running.stop().await;
}
