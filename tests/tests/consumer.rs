//! The consumer on real PostgreSQL, on the embedded broker and on Apache Kafka: every promise of
//! the consumer's transaction, each public case and listing fault by its number.

use std::time::Duration;

use factum::{
    Consumer, Envelope, Event, ForeignIds, LaneError, Retry, ServiceError, TombstonePolicy,
};
use factum_testing::eventually;
use factum_tests::{
    Entry, LIMIT, On, Recorder, Scene, effects_of, entries, entry_on_topic, envelope,
    on_both_brokers,
};

on_both_brokers!(
    an_event_takes_effect_once_and_its_offset_follows,
    listing_fault_01_a_duplicate_has_no_second_effect,
    listing_fault_04_two_consumers_of_one_database_both_handle,
    listing_fault_05_a_malformed_record_is_set_aside_and_the_partition_moves_on,
    listing_fault_09_amounts_arrive_exact,
    listing_fault_10_nul_and_surrogates_never_reach_the_transaction,
    case_04_a_duplicate_lets_the_next_event_through,
    case_05_duplicates_inside_and_before_a_batch_of_500,
    case_26_one_event_at_two_offsets,
    case_29_a_rebalance_keeps_what_was_finished,
    case_33_a_failing_first_record_commits_no_offset,
    case_34_long_work_is_not_thrown_out_of_the_group,
    case_43_invalid_json_then_good,
    case_43_an_outage_of_the_database_sets_nothing_aside,
    case_55_tombstones_follow_the_policy,
    poison_without_headers_says_its_type,
    a_failure_in_a_batch_costs_only_the_failing_event,
    a_batch_handler_is_narrowed_down_to_the_failing_event,
    a_transient_failure_is_retried_in_order,
    attempts_end_in_a_dead_letter,
    a_panic_and_a_hang_are_failures_of_one_event,
    a_conflict_runs_again_uncounted,
    a_swallowed_sql_error_loses_no_event,
    an_inner_savepoint_is_the_handlers_own_affair,
    a_typed_commit_stops_the_consumer_and_loses_nothing,
    a_typed_commit_without_a_failure_stops_the_consumer_and_loses_nothing,
    a_typed_rollback_stops_the_consumer_and_loses_nothing,
    unknown_types_are_skipped_and_counted,
    an_event_outside_the_window_is_set_aside,
    foreign_ids_are_handled_once_by_policy_and_refused_without,
    stopping_drains_the_running_handler,
);

const QUICK: Retry = quick();

const fn quick() -> Retry {
    Retry::pause_partition()
        .attempts(3)
        .first_delay(Duration::from_millis(20))
        .max_delay(Duration::from_millis(100))
}

fn consumer<E: Entry>(name: &'static str) -> (Consumer, Recorder) {
    let recorder = Recorder::of(name);
    (
        Consumer::named(name)
            .handler::<E>(recorder.clone())
            .retry(QUICK),
        recorder,
    )
}

entry_on_topic!(once, "t.once");
async fn an_event_takes_effect_once_and_its_offset_follows(on: On) {
    let scene = Scene::new::<once::Posted>(on, 2).await;
    let name = "test-once";
    let (consumer, _) = consumer::<once::Posted>(name);
    let stats = consumer.stats();
    let running = scene.start([consumer]);
    scene.produce(0, &entries::<once::Posted>("a", 20)).await;
    scene.produce(1, &entries::<once::Posted>("b", 5)).await;
    let mut all = effects_of("a", 20);
    all.extend(effects_of("b", 5));
    scene.await_effects(name, &all).await;
    scene
        .await_committed(name, once::Posted::TOPIC, 0, 20)
        .await;
    scene.await_committed(name, once::Posted::TOPIC, 1, 5).await;
    assert_eq!(stats.processed(), 25);
    running.stop().await;
    let of_a: Vec<String> = scene
        .effects(name)
        .await
        .into_iter()
        .filter(|e| e.starts_with('a'))
        .collect();
    assert_eq!(of_a, effects_of("a", 20), "order per key is kept");
}

entry_on_topic!(fault_01, "t.fault-01");
async fn listing_fault_01_a_duplicate_has_no_second_effect(on: On) {
    let scene = Scene::new::<fault_01::Posted>(on, 1).await;
    let name = "test-fault-01";
    let (consumer, recorder) = consumer::<fault_01::Posted>(name);
    let stats = consumer.stats();
    let value = envelope(fault_01::Posted::entry("a", 1, ""))
        .encode()
        .unwrap();
    let value = Some(value.as_slice());
    // Apart, so that each comes in a batch of its own; and together.
    scene.produce_raw::<fault_01::Posted>(0, &[value]).await;
    let running = scene.start([consumer]);
    scene.await_effects(name, &effects_of("a", 1)).await;
    scene
        .produce_raw::<fault_01::Posted>(0, &[value, value])
        .await;
    scene
        .await_committed(name, fault_01::Posted::TOPIC, 0, 3)
        .await;
    running.stop().await;
    assert_eq!(scene.effects(name).await, effects_of("a", 1));
    assert_eq!((recorder.calls(), stats.duplicates()), (1, 2));
}

entry_on_topic!(fault_04, "t.fault-04");
async fn listing_fault_04_two_consumers_of_one_database_both_handle(on: On) {
    // Also public case 6: one event, two consumers, one database.
    let scene = Scene::new::<fault_04::Posted>(on, 1).await;
    let (first, _) = consumer::<fault_04::Posted>("test-fault-04-first");
    let (second, _) = consumer::<fault_04::Posted>("test-fault-04-second");
    scene.produce(0, &entries::<fault_04::Posted>("a", 3)).await;
    let running = scene.start([first, second]);
    scene
        .await_effects("test-fault-04-first", &effects_of("a", 3))
        .await;
    scene
        .await_effects("test-fault-04-second", &effects_of("a", 3))
        .await;
    running.stop().await;
}

entry_on_topic!(fault_05, "t.fault-05");
async fn listing_fault_05_a_malformed_record_is_set_aside_and_the_partition_moves_on(on: On) {
    let scene = Scene::new::<fault_05::Posted>(on, 1).await;
    let name = "test-fault-05";
    let (consumer, _) = consumer::<fault_05::Posted>(name);
    let running = scene.start([consumer]);
    let missing = br#"{"eventId":"01935c3e-7c1a-7000-8000-000000000001","eventType":"account.posted.v1","occurredAt":"2026-06-01T12:00:00Z","aggregateType":"Account","aggregateId":"a","account":"a","note":""}"#;
    scene
        .produce_raw::<fault_05::Posted>(0, &[Some(b"{not json"), Some(b"[]"), Some(missing)])
        .await;
    scene.produce(0, &entries::<fault_05::Posted>("a", 2)).await;
    scene.await_effects(name, &effects_of("a", 2)).await;
    scene
        .await_committed(name, fault_05::Posted::TOPIC, 0, 5)
        .await;
    running.stop().await;
    assert_eq!(
        scene.dead_letters(name).await,
        ["malformed_json", "not_object", "missing_field"]
    );
    let original = scene
        .count("SELECT count(*) FROM dead_letter WHERE value = '{not json'::bytea AND record_offset = 0")
        .await;
    assert_eq!(original, 1, "the original bytes are kept");
}

mod fault_09 {
    use factum::{Amount, Event};

    #[derive(Debug, Clone, PartialEq, Event)]
    #[event(
        kind = "account.posted.v1",
        aggregate = "Account",
        topic = "t.fault-09",
        unlocked
    )]
    pub(crate) struct Posted {
        #[event(aggregate_id)]
        pub(crate) account: String,
        pub(crate) amount: Amount,
    }
}

struct Summing;

impl factum::Handler<fault_09::Posted> for Summing {
    async fn handle(
        &self,
        event: &Envelope<fault_09::Posted>,
        tx: &mut factum::Tx<'_>,
    ) -> Result<(), factum::HandlerError> {
        factum::sqlx::query("INSERT INTO amounts VALUES ($1)")
            .bind(event.amount.as_decimal())
            .execute(tx.conn())
            .await?;
        Ok(())
    }
}

async fn listing_fault_09_amounts_arrive_exact(on: On) {
    let scene = Scene::new::<fault_09::Posted>(on, 1).await;
    scene
        .execute("CREATE TABLE amounts (amount numeric NOT NULL)")
        .await;
    let name = "test-fault-09";
    let value = |amount: &str| {
        format!(
            r#"{{"eventId":"{}","eventType":"account.posted.v1","occurredAt":"2026-06-01T12:00:00Z","aggregateType":"Account","aggregateId":"a","account":"a","amount":{amount}}}"#,
            factum::new_event_id()
        )
    };
    let amounts = [
        "90071992547409.93",
        "0.1000000000000000055511151231257827",
        "1e400",
    ];
    let values: Vec<String> = amounts.iter().map(|a| value(a)).collect();
    let values: Vec<Option<&[u8]>> = values.iter().map(|v| Some(v.as_bytes())).collect();
    scene.produce_raw::<fault_09::Posted>(0, &values).await;
    let running = scene.start([Consumer::named(name)
        .handler::<fault_09::Posted>(Summing)
        .retry(QUICK)]);
    scene
        .await_committed(name, fault_09::Posted::TOPIC, 0, 3)
        .await;
    running.stop().await;
    let exact = scene
        .count(
            "SELECT count(*) FROM amounts
             WHERE amount IN (90071992547409.93, 0.1000000000000000055511151231257827)",
        )
        .await;
    assert_eq!(exact, 2);
    assert_eq!(scene.count("SELECT count(*) FROM amounts").await, 2);
    assert_eq!(scene.dead_letters(name).await, ["invalid_field"]);
}

entry_on_topic!(fault_10, "t.fault-10");
async fn listing_fault_10_nul_and_surrogates_never_reach_the_transaction(on: On) {
    // Also public case 50: two bad records in a batch of 500 cost the other 498 nothing.
    let scene = Scene::new::<fault_10::Posted>(on, 1).await;
    let name = "test-fault-10";
    let raw = |note: &str| {
        format!(
            r#"{{"eventId":"{}","eventType":"account.posted.v1","occurredAt":"2026-06-01T12:00:00Z","aggregateType":"Account","aggregateId":"a","account":"a","seq":1,"note":"{note}"}}"#,
            factum::new_event_id()
        )
    };
    let (nul, surrogate) = (raw(r"x\u0000y"), raw(r"\ud800"));
    scene
        .produce(0, &entries::<fault_10::Posted>("a", 200))
        .await;
    scene
        .produce_raw::<fault_10::Posted>(0, &[Some(nul.as_bytes())])
        .await;
    scene
        .produce(0, &entries::<fault_10::Posted>("b", 200))
        .await;
    scene
        .produce_raw::<fault_10::Posted>(0, &[Some(surrogate.as_bytes())])
        .await;
    scene
        .produce(0, &entries::<fault_10::Posted>("c", 98))
        .await;
    let (consumer, recorder) = consumer::<fault_10::Posted>(name);
    let running = scene.start([consumer]);
    scene
        .await_committed(name, fault_10::Posted::TOPIC, 0, 500)
        .await;
    running.stop().await;
    assert_eq!(scene.effects(name).await.len(), 498);
    assert_eq!(recorder.calls(), 498, "no transaction was broken off");
    assert_eq!(scene.dead_letters(name).await, ["nul", "malformed_json"]);
}

entry_on_topic!(case_04, "t.case-04");
async fn case_04_a_duplicate_lets_the_next_event_through(on: On) {
    let scene = Scene::new::<case_04::Posted>(on, 1).await;
    let name = "test-case-04";
    let a = envelope(case_04::Posted::entry("a", 1, ""))
        .encode()
        .unwrap();
    let b = envelope(case_04::Posted::entry("b", 1, ""))
        .encode()
        .unwrap();
    scene
        .produce_raw::<case_04::Posted>(0, &[Some(&a), Some(&a), Some(&b)])
        .await;
    let (consumer, _) = consumer::<case_04::Posted>(name);
    let running = scene.start([consumer]);
    scene
        .await_effects(name, &["a:1".into(), "b:1".into()])
        .await;
    scene
        .await_committed(name, case_04::Posted::TOPIC, 0, 3)
        .await;
    running.stop().await;
}

entry_on_topic!(case_05, "t.case-05");
async fn case_05_duplicates_inside_and_before_a_batch_of_500(on: On) {
    let scene = Scene::new::<case_05::Posted>(on, 1).await;
    let name = "test-case-05";
    let values: Vec<Vec<u8>> = entries::<case_05::Posted>("a", 497)
        .into_iter()
        .map(|e| envelope(e).encode().unwrap())
        .collect();
    let refs = |range: std::ops::Range<usize>| -> Vec<Option<&[u8]>> {
        values[range].iter().map(|v| Some(v.as_slice())).collect()
    };
    // Five are seen before…
    scene.produce_raw::<case_05::Posted>(0, &refs(0..5)).await;
    let (first, _) = consumer::<case_05::Posted>(name);
    let running = scene.start([first]);
    scene
        .await_committed(name, case_05::Posted::TOPIC, 0, 5)
        .await;
    running.stop().await;
    // …and three come twice within the 500.
    scene.produce_raw::<case_05::Posted>(0, &refs(0..497)).await;
    scene
        .produce_raw::<case_05::Posted>(0, &refs(100..103))
        .await;
    let (second, _) = consumer::<case_05::Posted>(name);
    let stats = second.stats();
    let running = scene.start([second]);
    scene
        .await_committed(name, case_05::Posted::TOPIC, 0, 505)
        .await;
    running.stop().await;
    assert_eq!(scene.effects(name).await, effects_of("a", 497));
    assert_eq!((stats.processed(), stats.duplicates()), (492, 8));
}

entry_on_topic!(case_26, "t.case-26");
async fn case_26_one_event_at_two_offsets(on: On) {
    let scene = Scene::new::<case_26::Posted>(on, 1).await;
    let name = "test-case-26";
    let value = envelope(case_26::Posted::entry("a", 1, ""))
        .encode()
        .unwrap();
    let other = envelope(case_26::Posted::entry("a", 2, ""))
        .encode()
        .unwrap();
    // A leader change made the idempotent producer write its batch again.
    scene
        .produce_raw::<case_26::Posted>(
            0,
            &[Some(&value), Some(&other), Some(&value), Some(&other)],
        )
        .await;
    let (consumer, _) = consumer::<case_26::Posted>(name);
    let running = scene.start([consumer]);
    scene
        .await_committed(name, case_26::Posted::TOPIC, 0, 4)
        .await;
    running.stop().await;
    assert_eq!(scene.effects(name).await, effects_of("a", 2));
}

entry_on_topic!(case_29, "t.case-29");
async fn case_29_a_rebalance_keeps_what_was_finished(on: On) {
    let scene = Scene::new::<case_29::Posted>(on, 2).await;
    let name = "test-case-29";
    let (first, recorder) = consumer::<case_29::Posted>(name);
    let first = scene.start([first]);
    // Both partitions have a transaction open when a second instance joins.
    for partition in 0..2 {
        let account = ["a", "b"][partition as usize];
        scene
            .produce(partition, &[case_29::Posted::entry(account, 1, "gate")])
            .await;
    }
    recorder.gate_reached(2).await;
    let (second, second_recorder) = consumer::<case_29::Posted>(name);
    let second = scene.start([second]);
    // The revocation waits for the running handler: it finishes, and nothing is redone.
    recorder.open_gate(2);
    scene
        .await_effects(name, &["a:1".into(), "b:1".into()])
        .await;
    for (partition, account) in [(0, "a"), (1, "b")] {
        scene
            .produce(partition, &[case_29::Posted::entry(account, 2, "")])
            .await;
    }
    scene
        .await_effects(
            name,
            &["a:1".into(), "a:2".into(), "b:1".into(), "b:2".into()],
        )
        .await;
    scene
        .await_committed(name, case_29::Posted::TOPIC, 0, 2)
        .await;
    scene
        .await_committed(name, case_29::Posted::TOPIC, 1, 2)
        .await;
    first.stop().await;
    second.stop().await;
    assert_eq!(
        recorder.calls() + second_recorder.calls(),
        4,
        "no handler ran twice"
    );
}

entry_on_topic!(case_33, "t.case-33");
async fn case_33_a_failing_first_record_commits_no_offset(on: On) {
    let scene = Scene::new::<case_33::Posted>(on, 1).await;
    let name = "test-case-33";
    let recorder = Recorder::of(name);
    let consumer = Consumer::named(name)
        .handler::<case_33::Posted>(recorder.clone())
        .retry(quick().attempts(1000));
    scene
        .produce(
            0,
            &[
                case_33::Posted::entry("a", 1, "always"),
                case_33::Posted::entry("a", 2, ""),
            ],
        )
        .await;
    let running = scene.start([consumer]);
    eventually(LIMIT, "twenty attempts", async || recorder.calls() > 20).await;
    running.stop().await;
    let committed = scene.broker.committed(name, case_33::Posted::TOPIC).await;
    assert_eq!(committed.get(&0), None, "the first record is unfinished");
    assert!(
        scene.effects(name).await.is_empty(),
        "order is kept while it is retried"
    );
}

entry_on_topic!(case_34, "t.case-34");
async fn case_34_long_work_is_not_thrown_out_of_the_group(on: On) {
    let scene = Scene::new::<case_34::Posted>(on, 1).await;
    let name = "test-case-34";
    let recorder = Recorder::of(name);
    let consumer = Consumer::named(name)
        .handler::<case_34::Posted>(recorder.clone())
        .handler_timeout(Duration::from_secs(5))
        .retry(QUICK);
    let slow: Vec<_> = (1..=8)
        .map(|seq| case_34::Posted::entry("a", seq, "slow"))
        .collect();
    scene.produce(0, &slow).await;
    // Eight seconds of work in one batch, and at most six between two polls.
    let running = scene.start_with(
        &[("KAFKA_CONSUMER_MAX_POLL_INTERVAL_MS", "6000")],
        [consumer],
    );
    scene.await_effects(name, &effects_of("a", 8)).await;
    scene
        .produce(0, &[case_34::Posted::entry("a", 9, "")])
        .await;
    scene.await_effects(name, &effects_of("a", 9)).await;
    running.stop().await;
    assert_eq!(
        recorder.calls(),
        9,
        "exactly one effect each, by one call each"
    );
}

entry_on_topic!(case_43, "t.case-43");
async fn case_43_invalid_json_then_good(on: On) {
    let scene = Scene::new::<case_43::Posted>(on, 1).await;
    let name = "test-case-43";
    scene.produce_raw::<case_43::Posted>(0, &[Some(b"{")]).await;
    scene.produce(0, &entries::<case_43::Posted>("a", 1)).await;
    let (consumer, recorder) = consumer::<case_43::Posted>(name);
    let stats = consumer.stats();
    let running = scene.start([consumer]);
    scene.await_effects(name, &effects_of("a", 1)).await;
    running.stop().await;
    assert_eq!(scene.dead_letters(name).await, ["malformed_json"]);
    assert_eq!(
        (stats.retries(), recorder.calls()),
        (0, 1),
        "a permanent error isn't retried"
    );
}

entry_on_topic!(case_43_outage, "t.case-43-outage");
async fn case_43_an_outage_of_the_database_sets_nothing_aside(on: On) {
    let scene = Scene::new::<case_43_outage::Posted>(on, 1).await;
    let name = "test-case-43-outage";
    let (consumer, recorder) = consumer::<case_43_outage::Posted>(name);
    let stats = consumer.stats();
    let running = scene.start([consumer]);
    // The outage begins while a handler is at work.
    scene
        .produce(0, &[case_43_outage::Posted::entry("a", 1, "gate")])
        .await;
    recorder.gate_reached(1).await;
    scene.database.shut_out().await;
    recorder.open_gate(1);
    scene
        .produce(
            0,
            &(2..=50)
                .map(|n| case_43_outage::Posted::entry("a", n, ""))
                .collect::<Vec<_>>(),
        )
        .await;
    eventually(LIMIT, "five futile tries", async || stats.reruns() >= 5).await;
    scene.database.let_in().await;
    recorder.open_gate(10);
    scene.await_effects(name, &effects_of("a", 50)).await;
    scene
        .await_committed(name, case_43_outage::Posted::TOPIC, 0, 50)
        .await;
    running.stop().await;
    assert!(scene.dead_letters(name).await.is_empty());
    assert_eq!(stats.retries(), 0, "an outage is no attempt");
}

entry_on_topic!(case_55, "t.case-55");
async fn case_55_tombstones_follow_the_policy(on: On) {
    let scene = Scene::new::<case_55::Posted>(on, 1).await;
    scene
        .produce_raw::<case_55::Posted>(0, &[None, Some(b""), Some(b"null"), Some(b"{}")])
        .await;
    scene.produce(0, &entries::<case_55::Posted>("a", 1)).await;
    let (skipping, _) = consumer::<case_55::Posted>("test-case-55-skipping");
    let (keeping, _) = consumer::<case_55::Posted>("test-case-55-keeping");
    let stats = skipping.stats();
    let running = scene.start([skipping, keeping.tombstones(TombstonePolicy::DeadLetter)]);
    scene
        .await_effects("test-case-55-skipping", &effects_of("a", 1))
        .await;
    scene
        .await_effects("test-case-55-keeping", &effects_of("a", 1))
        .await;
    running.stop().await;
    assert_eq!(stats.tombstones(), 1);
    assert_eq!(
        scene.dead_letters("test-case-55-skipping").await,
        ["empty", "not_object", "event_type"]
    );
    assert_eq!(
        scene.dead_letters("test-case-55-keeping").await,
        ["tombstone", "empty", "not_object", "event_type"]
    );
}

entry_on_topic!(headless, "t.headless");
async fn poison_without_headers_says_its_type(on: On) {
    let scene = Scene::new::<headless::Posted>(on, 1).await;
    let name = "test-headless";
    let value = br#"{"eventType":"account.posted.v1","seq":"not a number"}"#;
    scene
        .produce_raw::<headless::Posted>(0, &[Some(value), Some(b"{}")])
        .await;
    scene.produce(0, &entries::<headless::Posted>("a", 1)).await;
    let (consumer, _) = consumer::<headless::Posted>(name);
    let running = scene.start([consumer]);
    scene.await_effects(name, &effects_of("a", 1)).await;
    running.stop().await;
    assert_eq!(scene.dead_letters(name).await.len(), 2);
    let told = "SELECT count(*) FROM dead_letter WHERE record_offset = 0 AND event_type = 'account.posted.v1'";
    assert_eq!(scene.count(told).await, 1);
    let silent = "SELECT count(*) FROM dead_letter WHERE record_offset = 1 AND event_type IS NULL";
    assert_eq!(scene.count(silent).await, 1);
}

entry_on_topic!(batch, "t.batch-failure");
async fn a_failure_in_a_batch_costs_only_the_failing_event(on: On) {
    let scene = Scene::new::<batch::Posted>(on, 1).await;
    let name = "test-batch-failure";
    let mut events = entries::<batch::Posted>("a", 100);
    events[40].note = "permanent".into();
    events[70].note = "permanent".into();
    scene.produce(0, &events).await;
    let (consumer, _) = consumer::<batch::Posted>(name);
    let stats = consumer.stats();
    let running = scene.start([consumer]);
    scene
        .await_committed(name, batch::Posted::TOPIC, 0, 100)
        .await;
    running.stop().await;
    let good: Vec<String> = effects_of("a", 100)
        .into_iter()
        .filter(|e| e != "a:41" && e != "a:71")
        .collect();
    assert_eq!(scene.effects(name).await, good, "in order, each once");
    assert_eq!(scene.dead_letters(name).await, ["permanent", "permanent"]);
    assert_eq!(
        (stats.processed(), stats.dead_lettered(), stats.duplicates()),
        (98, 2, 0)
    );
}

entry_on_topic!(set_based, "t.set-based");
async fn a_batch_handler_is_narrowed_down_to_the_failing_event(on: On) {
    let scene = Scene::new::<set_based::Posted>(on, 1).await;
    let name = "test-set-based";
    let mut events = entries::<set_based::Posted>("a", 64);
    events[33].note = "permanent".into();
    events[34].note = "panic".into();
    scene.produce(0, &events).await;
    let consumer = Consumer::named(name)
        .batch_handler::<set_based::Posted>(Recorder::of(name))
        .retry(QUICK);
    let running = scene.start([consumer]);
    scene
        .await_committed(name, set_based::Posted::TOPIC, 0, 64)
        .await;
    running.stop().await;
    let good: Vec<String> = effects_of("a", 64)
        .into_iter()
        .filter(|e| e != "a:34" && e != "a:35")
        .collect();
    assert_eq!(scene.effects(name).await, good);
    assert_eq!(
        scene.dead_letters(name).await,
        ["permanent", "attempts_exhausted"]
    );
}

entry_on_topic!(transient, "t.transient");
async fn a_transient_failure_is_retried_in_order(on: On) {
    let scene = Scene::new::<transient::Posted>(on, 1).await;
    let name = "test-transient";
    let mut events = entries::<transient::Posted>("a", 10);
    events[4].note = "transient 3".into();
    let ids = scene.produce(0, &events).await;
    let (consumer, recorder) = consumer::<transient::Posted>(name);
    let running = scene.start([consumer]);
    scene
        .await_committed(name, transient::Posted::TOPIC, 0, 10)
        .await;
    running.stop().await;
    assert_eq!(scene.effects(name).await, effects_of("a", 10));
    assert_eq!(recorder.calls_of(ids[4]), 3);
    assert!(scene.dead_letters(name).await.is_empty());
}

entry_on_topic!(exhausted, "t.exhausted");
async fn attempts_end_in_a_dead_letter(on: On) {
    let scene = Scene::new::<exhausted::Posted>(on, 1).await;
    let name = "test-exhausted";
    let mut events = entries::<exhausted::Posted>("a", 3);
    events[1].note = "always".into();
    let ids = scene.produce(0, &events).await;
    let (consumer, recorder) = consumer::<exhausted::Posted>(name);
    let running = scene.start([consumer]);
    scene
        .await_committed(name, exhausted::Posted::TOPIC, 0, 3)
        .await;
    running.stop().await;
    assert_eq!(scene.effects(name).await, ["a:1", "a:3"]);
    assert_eq!(
        recorder.calls_of(ids[1]),
        3,
        "as many calls as the policy has attempts"
    );
    assert_eq!(scene.dead_letters(name).await, ["attempts_exhausted"]);
    assert_eq!(
        scene
            .count("SELECT attempts::bigint FROM dead_letter")
            .await,
        3
    );
}

entry_on_topic!(panic_hang, "t.panic-hang");
async fn a_panic_and_a_hang_are_failures_of_one_event(on: On) {
    let scene = Scene::new::<panic_hang::Posted>(on, 1).await;
    let name = "test-panic-hang";
    let mut events = entries::<panic_hang::Posted>("a", 5);
    events[1].note = "panic".into();
    events[3].note = "hang".into();
    scene.produce(0, &events).await;
    let (consumer, _) = consumer::<panic_hang::Posted>(name);
    let running = scene.start([consumer.handler_timeout(Duration::from_millis(300))]);
    scene
        .await_committed(name, panic_hang::Posted::TOPIC, 0, 5)
        .await;
    running.stop().await;
    assert_eq!(scene.effects(name).await, ["a:1", "a:3", "a:5"]);
    assert_eq!(
        scene.dead_letters(name).await,
        ["attempts_exhausted", "attempts_exhausted"]
    );
}

entry_on_topic!(conflict, "t.conflict");
async fn a_conflict_runs_again_uncounted(on: On) {
    let scene = Scene::new::<conflict::Posted>(on, 1).await;
    let name = "test-conflict";
    let recorder = Recorder::of(name);
    // One attempt only: a conflict that counted would end in a dead letter.
    let consumer = Consumer::named(name)
        .handler::<conflict::Posted>(recorder.clone())
        .retry(quick().attempts(1));
    let stats = consumer.stats();
    scene
        .produce(0, &[conflict::Posted::entry("a", 1, "conflict")])
        .await;
    let running = scene.start([consumer]);
    scene.await_effects(name, &effects_of("a", 1)).await;
    running.stop().await;
    assert_eq!(
        (recorder.calls(), stats.reruns(), stats.retries()),
        (2, 1, 0)
    );
    assert!(scene.dead_letters(name).await.is_empty());
}

entry_on_topic!(swallow, "t.swallow");
async fn a_swallowed_sql_error_loses_no_event(on: On) {
    let scene = Scene::new::<swallow::Posted>(on, 1).await;
    let name = "test-swallow";
    let mut events = entries::<swallow::Posted>("a", 20);
    events[10].note = "swallow".into();
    scene.produce(0, &events).await;
    let (consumer, _) = consumer::<swallow::Posted>(name);
    let running = scene.start([consumer]);
    scene
        .await_committed(name, swallow::Posted::TOPIC, 0, 20)
        .await;
    running.stop().await;
    let good: Vec<String> = effects_of("a", 20)
        .into_iter()
        .filter(|e| e != "a:11")
        .collect();
    assert_eq!(scene.effects(name).await, good);
    assert_eq!(
        scene.dead_letters(name).await,
        ["attempts_exhausted"],
        "set aside, visibly"
    );
}

entry_on_topic!(savepoint, "t.savepoint");
async fn an_inner_savepoint_is_the_handlers_own_affair(on: On) {
    let scene = Scene::new::<savepoint::Posted>(on, 1).await;
    let name = "test-savepoint";
    let mut events = entries::<savepoint::Posted>("a", 5);
    events[2].note = "savepoint".into();
    scene.produce(0, &events).await;
    let (consumer, recorder) = consumer::<savepoint::Posted>(name);
    let running = scene.start([consumer]);
    scene.await_effects(name, &effects_of("a", 5)).await;
    running.stop().await;
    assert_eq!(recorder.calls(), 5);
}

/// Runs a batch of six in which `typed` is the third event's deed and `failing` the fifth's, expects
/// the named error, then takes the abuse out and expects that all six have taken effect.
async fn abuse<E: Entry>(on: On, name: &'static str, typed: &str, fifth: &str) -> Vec<String> {
    let scene = Scene::new::<E>(on, 1).await;
    let events: Vec<E> = (1..=6)
        .map(|seq| {
            let note = match seq {
                3 => typed,
                5 => fifth,
                _ => "",
            };
            E::entry("a", seq, note)
        })
        .collect();
    scene.produce(0, &events).await;
    let (consumer, _) = consumer::<E>(name);
    let error = scene
        .start([consumer])
        .ended()
        .await
        .expect_err("the consumer stops");
    let text = error.to_string();
    assert!(text.contains(name) && text.contains("SAVEPOINT"), "{text}");
    assert!(
        std::iter::successors(Some(&error as &dyn std::error::Error), |e| e.source()).any(|e| {
            matches!(
                e.downcast_ref::<LaneError>(),
                Some(LaneError::TransactionEnded { .. })
            )
        }) || matches!(error, ServiceError::Consumer { .. }),
        "{error:?}"
    );
    // The same consumer with a handler that behaves: nothing was lost.
    struct Plain(&'static str);
    impl<E: Entry> factum::Handler<E> for Plain {
        async fn handle(
            &self,
            event: &Envelope<E>,
            tx: &mut factum::Tx<'_>,
        ) -> Result<(), factum::HandlerError> {
            factum::sqlx::query(
                "INSERT INTO effect (consumer, event_id, account, seq) VALUES ($1, $2, $3, $4)",
            )
            .bind(self.0)
            .bind(event.id().as_uuid())
            .bind(event.account())
            .bind(event.seq() as i64)
            .execute(tx.conn())
            .await?;
            Ok(())
        }
    }
    let running = scene.start([Consumer::named(name).handler::<E>(Plain(name)).retry(QUICK)]);
    scene.await_committed(name, E::TOPIC, 0, 6).await;
    running.stop().await;
    let mut effects = scene.effects(name).await;
    let all = effects.clone();
    effects.sort();
    effects.dedup();
    assert_eq!(effects, effects_of("a", 6), "no event is lost");
    assert!(scene.dead_letters(name).await.is_empty());
    all
}

entry_on_topic!(commit_fails, "t.commit-fails");
async fn a_typed_commit_stops_the_consumer_and_loses_nothing(on: On) {
    abuse::<commit_fails::Posted>(on, "test-commit-fails", "commit", "always").await;
}

entry_on_topic!(commit_only, "t.commit-only");
async fn a_typed_commit_without_a_failure_stops_the_consumer_and_loses_nothing(on: On) {
    let all = abuse::<commit_only::Posted>(on, "test-commit-only", "commit-begin", "").await;
    assert_eq!(
        all,
        effects_of("a", 6),
        "each once: all handlers had finished"
    );
}

entry_on_topic!(rollback_fails, "t.rollback-fails");
async fn a_typed_rollback_stops_the_consumer_and_loses_nothing(on: On) {
    abuse::<rollback_fails::Posted>(on, "test-rollback-fails", "rollback", "always").await;
}

entry_on_topic!(known, "t.unknown-type");
entry_on_topic!(newer, "t.unknown-type", "account.posted.v2");
async fn unknown_types_are_skipped_and_counted(on: On) {
    // Listing fault 6: a consumer of v1 survives v2 on its topic.
    let scene = Scene::new::<known::Posted>(on, 1).await;
    let name = "test-unknown-type";
    scene.produce(0, &entries::<newer::Posted>("a", 2)).await;
    scene.produce(0, &entries::<known::Posted>("b", 2)).await;
    let (consumer, _) = consumer::<known::Posted>(name);
    let stats = consumer.stats();
    let running = scene.start([consumer]);
    scene.await_effects(name, &effects_of("b", 2)).await;
    scene
        .await_committed(name, known::Posted::TOPIC, 0, 4)
        .await;
    running.stop().await;
    assert_eq!(stats.unknown(), 2);
    assert!(scene.dead_letters(name).await.is_empty());
}

entry_on_topic!(window, "t.window");
async fn an_event_outside_the_window_is_set_aside(on: On) {
    let scene = Scene::new::<window::Posted>(on, 1).await;
    let name = "test-window";
    let old = r#"{"eventId":"01935c3e-7c1a-7000-8000-000000000001","eventType":"account.posted.v1","occurredAt":"2026-06-01T12:00:00Z","aggregateType":"Account","aggregateId":"a","account":"a","seq":9,"note":""}"#;
    scene.produce(0, &entries::<window::Posted>("a", 2)).await;
    scene
        .produce_raw::<window::Posted>(0, &[Some(old.as_bytes())])
        .await;
    let (consumer, _) = consumer::<window::Posted>(name);
    let running = scene.start([consumer]);
    scene
        .await_committed(name, window::Posted::TOPIC, 0, 3)
        .await;
    running.stop().await;
    assert_eq!(scene.effects(name).await, effects_of("a", 2));
    assert_eq!(scene.dead_letters(name).await, ["out_of_window"]);
}

entry_on_topic!(foreign, "t.foreign");
async fn foreign_ids_are_handled_once_by_policy_and_refused_without(on: On) {
    let scene = Scene::new::<foreign::Posted>(on, 1).await;
    let (keeps, refuses) = ("test-foreign-keeps", "test-foreign-refuses");
    let event = |id: &str, seq: u64, note: &str| {
        format!(
            r#"{{"eventId":"{id}","eventType":"account.posted.v1","occurredAt":"2026-06-01T12:00:00Z","aggregateType":"Account","aggregateId":"a","account":"a","seq":{seq},"note":"{note}"}}"#
        )
    };
    let (first, second, third) = (
        "305ea1e4-de37-4d00-93ea-2524ddeceb97",
        "8ad50fd9-4ef3-4a2a-9b28-4e3ae3c9a6f1",
        "c232ab00-9414-11ec-b3c8-9f6bdeced846",
    );
    // The second fails at first, so that it and what follows go through the parking; all of them come twice.
    let values = [
        event(first, 1, ""),
        event(first, 1, ""),
        event(second, 2, "transient 2"),
        event(third, 3, ""),
        event(second, 2, "transient 2"),
        event(third, 3, ""),
    ];
    let records: Vec<Option<&[u8]>> = values.iter().map(|v| Some(v.as_bytes())).collect();
    scene.produce_raw::<foreign::Posted>(0, &records).await;
    let retry = Retry::park().first_delay(Duration::from_millis(20));
    let consumers = [
        Consumer::named(keeps)
            .handler::<foreign::Posted>(Recorder::of(keeps))
            .retry(retry)
            .foreign_ids(ForeignIds::Keep { days: 30 }),
        Consumer::named(refuses).handler::<foreign::Posted>(Recorder::of(refuses)),
    ];
    let running = scene.start(consumers);
    scene.await_effects(keeps, &effects_of("a", 3)).await;
    for name in [keeps, refuses] {
        scene
            .await_committed(name, foreign::Posted::TOPIC, 0, 6)
            .await;
    }
    eventually(LIMIT, "nothing is parked any more", async || {
        scene.count("SELECT count(*) FROM parked_event").await == 0
    })
    .await;
    running.stop().await;
    assert_eq!(scene.effects(keeps).await, effects_of("a", 3), "in order");
    assert_eq!(scene.dead_letters(keeps).await, Vec::<String>::new());
    assert_eq!(scene.effects(refuses).await, Vec::<String>::new());
    assert_eq!(scene.dead_letters(refuses).await, ["event_id"; 6]);
}

entry_on_topic!(drain, "t.drain");
async fn stopping_drains_the_running_handler(on: On) {
    let scene = Scene::new::<drain::Posted>(on, 1).await;
    let name = "test-drain";
    let (consumer, recorder) = consumer::<drain::Posted>(name);
    let running = scene.start([consumer]);
    scene
        .produce(0, &[drain::Posted::entry("a", 1, "gate")])
        .await;
    recorder.gate_reached(1).await;
    running.ask_to_stop();
    recorder.open_gate(1);
    running.ended().await.expect("a clean end");
    assert_eq!(scene.effects(name).await, effects_of("a", 1));
    scene
        .await_committed(name, drain::Posted::TOPIC, 0, 1)
        .await;
}
