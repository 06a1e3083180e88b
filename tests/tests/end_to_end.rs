//! The whole path: published in a business transaction, relayed, consumed, published again.

use factum::sqlx::Connection as _;
use factum::{
    Consumer, Envelope, Event as _, Handler, HandlerError, Outbox, Service, TraceContext, Tx,
};
use factum_tests::{
    Entry, On, Recorder, Running, Scene, effects_of, entries, entry_on_topic, on_both_brokers,
};
use time::OffsetDateTime;

on_both_brokers!(
    from_a_business_transaction_to_the_second_consumer,
    a_rolled_back_business_transaction_publishes_nothing,
    a_failed_handler_publishes_nothing,
);

entry_on_topic!(first, "t.first");
entry_on_topic!(second, "t.second", "account.settled.v1", Settled);

/// Writes an effect and publishes a `second::Settled` for each `first::Posted`.
struct Settling(Recorder);

impl Handler<first::Posted> for Settling {
    async fn handle(
        &self,
        event: &Envelope<first::Posted>,
        tx: &mut Tx<'_>,
    ) -> Result<(), HandlerError> {
        // Published first, so that a failing handler has something to lose.
        let settled = second::Settled::entry(event.account(), event.seq(), "");
        tx.publish(settled.occurred_at(event.occurred_at())).await?;
        Handler::<first::Posted>::handle(&self.0, event, tx).await
    }
}

async fn from_a_business_transaction_to_the_second_consumer(on: On) {
    let scene = Scene::new::<first::Posted>(on, 3).await;
    scene.broker.create_topic(second::Settled::TOPIC, 2).await;
    let trace: TraceContext = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        .parse()
        .unwrap();
    let outbox = Outbox::new().with_trace(trace);

    // Events leave in the order of the outbox, several accounts interleaved.
    let mut connection = scene.database.connect().await;
    for seq in 1..=40 {
        let mut tx = connection.begin().await.unwrap();
        for account in ["a", "b", "c"] {
            let posted = first::Posted::entry(account, seq, "");
            outbox
                .publish(&mut tx, posted.occurred_at(OffsetDateTime::now_utc()))
                .await
                .unwrap();
        }
        tx.commit().await.unwrap();
    }
    connection.close().await.unwrap();

    let settling = Consumer::named("test-settling")
        .handler::<first::Posted>(Settling(Recorder::of("test-settling")));
    let reading = Consumer::named("test-reading")
        .batch_handler::<second::Settled>(Recorder::of("test-reading"));
    let running = Running::start(
        Service::builder(scene.config(&[]))
            .relay()
            .consumer(settling)
            .consumer(reading),
    );
    let mut all = Vec::new();
    for account in ["a", "b", "c"] {
        all.extend(effects_of(account, 40));
    }
    scene.await_effects("test-settling", &all).await;
    scene.await_effects("test-reading", &all).await;
    running.stop().await;

    for consumer in ["test-settling", "test-reading"] {
        let effects = scene.effects(consumer).await;
        for account in ["a", "b", "c"] {
            let of_account: Vec<String> = effects
                .iter()
                .filter(|e| e.starts_with(account))
                .cloned()
                .collect();
            assert_eq!(
                of_account,
                effects_of(account, 40),
                "{consumer} keeps the order per key"
            );
        }
    }
    assert_eq!(
        scene
            .count("SELECT count(*) FROM outbox WHERE published_at IS NULL")
            .await,
        0
    );
    for topic in [first::Posted::TOPIC, second::Settled::TOPIC] {
        for record in scene.broker.records(topic).await {
            let header = |name: &str| {
                String::from_utf8(record.header(name).expect("the header is there").to_vec())
                    .unwrap()
            };
            assert!(
                header("traceparent").contains("0af7651916cd43dd8448eb211c80319c"),
                "the trace goes on through relay, handler and relay (OBS-3)"
            );
            let body = String::from_utf8(record.value.clone().unwrap()).unwrap();
            assert!(body.contains(&header("event-id")) && body.contains(&header("event-type")));
        }
    }
}

entry_on_topic!(undone, "t.undone");
async fn a_rolled_back_business_transaction_publishes_nothing(on: On) {
    let scene = Scene::new::<undone::Posted>(on, 1).await;
    let mut connection = scene.database.connect().await;
    let outbox = Outbox::new();
    let now = OffsetDateTime::now_utc();
    let mut tx = connection.begin().await.unwrap();
    let undone: Vec<_> = entries::<undone::Posted>("a", 3)
        .into_iter()
        .map(|e| e.occurred_at(now))
        .collect();
    outbox.publish_all(&mut tx, undone).await.unwrap();
    tx.rollback().await.unwrap();
    outbox
        .publish(
            &mut connection,
            undone::Posted::entry("b", 1, "").occurred_at(now),
        )
        .await
        .unwrap();
    connection.close().await.unwrap();
    let consumer =
        Consumer::named("test-undone").handler::<undone::Posted>(Recorder::of("test-undone"));
    let running = Running::start(
        Service::builder(scene.config(&[]))
            .relay()
            .consumer(consumer),
    );
    scene
        .await_effects("test-undone", &effects_of("b", 1))
        .await;
    running.stop().await;
    assert_eq!(scene.broker.records(undone::Posted::TOPIC).await.len(), 1);
}

entry_on_topic!(failing, "t.first-failing");
async fn a_failed_handler_publishes_nothing(on: On) {
    struct Publishing(Recorder);
    impl Handler<failing::Posted> for Publishing {
        async fn handle(
            &self,
            event: &Envelope<failing::Posted>,
            tx: &mut Tx<'_>,
        ) -> Result<(), HandlerError> {
            let settled = second::Settled::entry(event.account(), event.seq(), "");
            tx.publish(settled.occurred_at(event.occurred_at())).await?;
            Handler::<failing::Posted>::handle(&self.0, event, tx).await
        }
    }
    let scene = Scene::new::<failing::Posted>(on, 1).await;
    let mut events = entries::<failing::Posted>("a", 3);
    events[1].note = "permanent".into();
    scene.produce(0, &events).await;
    let name = "test-first-failing";
    let consumer = Consumer::named(name).handler::<failing::Posted>(Publishing(Recorder::of(name)));
    let running = scene.start([consumer]);
    scene
        .await_committed(name, failing::Posted::TOPIC, 0, 3)
        .await;
    running.stop().await;
    assert_eq!(scene.effects(name).await, ["a:1", "a:3"]);
    assert_eq!(
        scene.count("SELECT count(*) FROM outbox").await,
        2,
        "the effect, whole or not at all"
    );
}
