//! Parking, the default retry: the failed event's key waits, in order, and every other key goes on (RTRY-1).

use std::time::Duration;

use factum::sqlx::{self, Connection as _};
use factum::{Consumer, Event, OnExhausted, Retry};
use factum_testing::eventually;
use factum_tests::{
    Entry, LIMIT, On, Recorder, Running, Scene, effects_of, entries, entry_on_topic, envelope,
    on_both_brokers,
};

on_both_brokers!(
    case_44_later_events_wait_behind_a_failed_one_and_other_keys_go_on,
    case_43_invalid_then_good_by_default,
    case_43_an_outage_of_the_database_sets_nothing_aside_and_counts_nothing,
    case_11_a_retrier_cut_off_in_the_middle_does_no_harm,
    parking_is_the_default,
    after_the_last_attempt_the_head_is_set_aside_and_the_key_goes_on,
    a_held_key_waits_until_it_is_released,
    a_permanent_failure_behind_a_parked_event_is_set_aside_in_its_turn,
    a_panic_and_a_hang_of_a_parked_event_count,
    a_rewind_parks_nothing_twice,
    the_limit_of_a_key_makes_its_partition_wait,
    the_limit_of_all_makes_partitions_wait,
    several_retriers_share_the_keys_and_keep_their_order,
    many_failing_keys_are_not_woken_at_once,
    keys_parked_before_a_change_of_strategy_flow_on,
    a_record_without_a_key_waits_under_its_aggregate,
    a_typed_commit_in_a_retry_stops_the_consumer_and_loses_nothing,
);

const QUICK: Retry = Retry::park()
    .attempts(4)
    .first_delay(Duration::from_millis(20))
    .max_delay(Duration::from_millis(50));

/// As good as for ever: until a test says otherwise.
const LATER: Retry = Retry::park()
    .attempts(4)
    .first_delay(Duration::from_hours(10))
    .max_delay(Duration::from_hours(10));

fn consumer<E: Entry>(name: &'static str, retry: Retry) -> (Consumer, Recorder) {
    let recorder = Recorder::of(name);
    let consumer = Consumer::named(name)
        .handler::<E>(recorder.clone())
        .retry(retry);
    (consumer, recorder)
}

/// The effects of one account, in the order of their commits.
async fn of_account(scene: &Scene, consumer: &str, account: &str) -> Vec<String> {
    let prefix = format!("{account}:");
    let mut effects = scene.effects(consumer).await;
    effects.retain(|effect| effect.starts_with(&prefix));
    effects
}

async fn await_parked(scene: &Scene, events: i64) {
    eventually(LIMIT, "the events are parked", async || {
        scene.count("SELECT count(*) FROM parked_event").await == events
    })
    .await;
}

async fn await_nothing_parked(scene: &Scene) {
    eventually(LIMIT, "nothing is parked", async || {
        scene
            .count("SELECT (SELECT count(*) FROM parked_key) + (SELECT count(*) FROM parked_event)")
            .await
            == 0
    })
    .await;
}

entry_on_topic!(case_44, "t.park-case-44");
async fn case_44_later_events_wait_behind_a_failed_one_and_other_keys_go_on(on: On) {
    use case_44::Posted;
    let scene = Scene::new::<Posted>(on, 1).await;
    let name = "test-park-case-44";
    let (consumer, recorder) = consumer::<Posted>(name, LATER);
    let stats = consumer.stats();
    let running = scene.start([consumer]);
    let ids = scene
        .produce(
            0,
            &[
                Posted::entry("a", 1, "transient 3"),
                Posted::entry("a", 2, ""),
                Posted::entry("b", 1, ""),
            ],
        )
        .await;
    // B isn't delayed: it is there while A still waits for its second attempt.
    scene.await_effects(name, &effects_of("b", 1)).await;
    await_parked(&scene, 2).await;
    scene.await_committed(name, Posted::TOPIC, 0, 3).await;
    assert_eq!(recorder.calls_of(ids[0]), 1);
    assert_eq!(stats.parked(), 2);
    for attempts in [2, 3] {
        scene
            .execute("UPDATE parked_key SET next_attempt_at = now()")
            .await;
        eventually(LIMIT, "the next attempt", async || {
            recorder.calls_of(ids[0]) == attempts
        })
        .await;
    }
    await_nothing_parked(&scene).await;
    running.stop().await;
    assert_eq!(scene.effects(name).await, ["b:1", "a:1", "a:2"]);
    assert_eq!(recorder.calls_of(ids[1]), 1, "A2 was never tried before A1");
    assert_eq!(scene.dead_letters(name).await, [""; 0]);
}

entry_on_topic!(case_43, "t.park-case-43");
async fn case_43_invalid_then_good_by_default(on: On) {
    use case_43::Posted;
    let scene = Scene::new::<Posted>(on, 1).await;
    let name = "test-park-case-43";
    let (consumer, _) = consumer::<Posted>(name, Retry::default());
    let running = scene.start([consumer]);
    scene.produce_raw::<Posted>(0, &[Some(b"{not json")]).await;
    scene.produce(0, &entries::<Posted>("a", 1)).await;
    scene.await_effects(name, &effects_of("a", 1)).await;
    running.stop().await;
    assert_eq!(scene.dead_letters(name).await, ["malformed_json"]);
    await_nothing_parked(&scene).await;
}

entry_on_topic!(outage, "t.park-outage");
async fn case_43_an_outage_of_the_database_sets_nothing_aside_and_counts_nothing(on: On) {
    use outage::Posted;
    let scene = Scene::new::<Posted>(on, 1).await;
    let name = "test-park-outage";
    let (consumer, recorder) = consumer::<Posted>(name, QUICK.attempts(2));
    let running = scene.start([consumer]);
    let notes = [
        Posted::entry("a", 1, "transient 2"),
        Posted::entry("a", 2, "gate"),
    ];
    scene.produce(0, &notes).await;
    // A2 is in its handler, a parked event's, when the database goes away, three times over.
    for time in 1..=3 {
        recorder.gate_reached(time).await;
        cut_connections_of_handlers(&scene).await;
        recorder.open_gate(1);
    }
    recorder.gate_reached(4).await;
    recorder.open_gate(1);
    await_nothing_parked(&scene).await;
    running.stop().await;
    assert_eq!(scene.effects(name).await, effects_of("a", 2));
    assert_eq!(scene.dead_letters(name).await, [""; 0]);
}

/// As the server does to a process that stands still for too long.
async fn cut_connections_of_handlers(scene: &Scene) {
    scene
        .execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE datname = current_database() AND state = 'idle in transaction'",
        )
        .await;
}

entry_on_topic!(case_11, "t.park-case-11");
async fn case_11_a_retrier_cut_off_in_the_middle_does_no_harm(on: On) {
    use case_11::Posted;
    let scene = Scene::new::<Posted>(on, 1).await;
    let name = "test-park-case-11";
    let (first, recorder) = consumer::<Posted>(name, QUICK);
    let running = scene.start([first]);
    let parked = [
        Posted::entry("a", 1, "transient 2"),
        Posted::entry("a", 2, "gate"),
        Posted::entry("a", 3, ""),
    ];
    scene.produce(0, &parked).await;
    recorder.gate_reached(1).await;
    cut_connections_of_handlers(&scene).await;
    // Nobody has told the first retrier: its handler still runs, its locks are gone. Another takes over.
    let (other, open) = consumer::<Posted>(name, QUICK);
    open.open_gate(10);
    let others = scene.start([other]);
    await_nothing_parked(&scene).await;
    recorder.open_gate(10);
    running.stop().await;
    others.stop().await;
    assert_eq!(scene.effects(name).await, effects_of("a", 3));
    assert_eq!(scene.dead_letters(name).await, [""; 0]);
}

entry_on_topic!(by_default, "t.park-default");
async fn parking_is_the_default(on: On) {
    use by_default::Posted;
    let scene = Scene::new::<Posted>(on, 1).await;
    let name = "test-park-default";
    let running = scene.start([Consumer::named(name).handler::<Posted>(Recorder::of(name))]);
    let events = [Posted::entry("a", 1, "always"), Posted::entry("b", 1, "")];
    scene.produce(0, &events).await;
    scene.await_effects(name, &effects_of("b", 1)).await;
    await_parked(&scene, 1).await;
    running.stop().await;
}

entry_on_topic!(exhausted, "t.park-exhausted");
async fn after_the_last_attempt_the_head_is_set_aside_and_the_key_goes_on(on: On) {
    use exhausted::Posted;
    let scene = Scene::new::<Posted>(on, 1).await;
    let name = "test-park-exhausted";
    let (consumer, recorder) = consumer::<Posted>(name, QUICK);
    let stats = consumer.stats();
    let running = scene.start([consumer]);
    let events = [Posted::entry("a", 1, "always"), Posted::entry("a", 2, "")];
    let ids = scene.produce(0, &events).await;
    scene.await_effects(name, &["a:2".to_owned()]).await;
    await_nothing_parked(&scene).await;
    running.stop().await;
    assert_eq!(scene.dead_letters(name).await, ["attempts_exhausted"]);
    assert_eq!(recorder.calls_of(ids[0]), 4);
    assert_eq!(stats.dead_lettered(), 1);
    let kept = scene
        .count("SELECT count(*) FROM dead_letter WHERE attempts = 4 AND first_seen < last_seen AND key = 'a'")
        .await;
    assert_eq!(kept, 1, "attempts and the first failure go along");
}

entry_on_topic!(held, "t.park-held");
async fn a_held_key_waits_until_it_is_released(on: On) {
    use held::Posted;
    let scene = Scene::new::<Posted>(on, 1).await;
    let name = "test-park-held";
    let (consumer, recorder) = consumer::<Posted>(name, QUICK.on_exhausted(OnExhausted::Hold));
    let running = scene.start([consumer]);
    let events = [
        Posted::entry("a", 1, "transient 5"),
        Posted::entry("a", 2, ""),
        Posted::entry("b", 1, ""),
    ];
    let ids = scene.produce(0, &events).await;
    eventually(LIMIT, "the key is held", async || {
        scene
            .count("SELECT count(*) FROM parked_key WHERE held_at IS NOT NULL AND attempts = 4")
            .await
            == 1
    })
    .await;
    assert_eq!(recorder.calls_of(ids[0]), 4);
    assert_eq!(scene.effects(name).await, effects_of("b", 1));
    assert_eq!(scene.dead_letters(name).await, [""; 0]);
    scene
        .execute("UPDATE parked_key SET held_at = NULL, attempts = 0, next_attempt_at = now()")
        .await;
    await_nothing_parked(&scene).await;
    running.stop().await;
    assert_eq!(of_account(&scene, name, "a").await, effects_of("a", 2));
}

entry_on_topic!(behind, "t.park-behind");
async fn a_permanent_failure_behind_a_parked_event_is_set_aside_in_its_turn(on: On) {
    use behind::Posted;
    let scene = Scene::new::<Posted>(on, 1).await;
    let name = "test-park-behind";
    let (consumer, _) = consumer::<Posted>(name, QUICK);
    let running = scene.start([consumer]);
    let events = [
        Posted::entry("a", 1, "transient 3"),
        Posted::entry("a", 2, "permanent"),
        Posted::entry("a", 3, "transient 2"),
        Posted::entry("a", 4, ""),
    ];
    scene.produce(0, &events).await;
    let expected = ["a:1", "a:3", "a:4"].map(str::to_owned);
    scene.await_effects(name, &expected).await;
    await_nothing_parked(&scene).await;
    running.stop().await;
    assert_eq!(scene.effects(name).await, expected);
    assert_eq!(scene.dead_letters(name).await, ["permanent"]);
}

entry_on_topic!(panics, "t.park-panic");
async fn a_panic_and_a_hang_of_a_parked_event_count(on: On) {
    use panics::Posted;
    let scene = Scene::new::<Posted>(on, 1).await;
    let name = "test-park-panic";
    let (consumer, recorder) = consumer::<Posted>(name, QUICK.attempts(2));
    let running = scene.start([consumer.handler_timeout(Duration::from_millis(300))]);
    let events = [
        Posted::entry("a", 1, "panic"),
        Posted::entry("a", 2, "hang"),
        Posted::entry("a", 3, ""),
    ];
    let ids = scene.produce(0, &events).await;
    scene.await_effects(name, &["a:3".to_owned()]).await;
    await_nothing_parked(&scene).await;
    running.stop().await;
    assert_eq!(
        scene.dead_letters(name).await,
        ["attempts_exhausted", "attempts_exhausted"]
    );
    assert_eq!(
        (recorder.calls_of(ids[0]), recorder.calls_of(ids[1])),
        (2, 2)
    );
}

entry_on_topic!(rewind, "t.park-rewind");
async fn a_rewind_parks_nothing_twice(on: On) {
    use rewind::Posted;
    let scene = Scene::new::<Posted>(on, 1).await;
    let name = "test-park-rewind";
    let mut events = entries::<Posted>("a", 3);
    events.extend([
        Posted::entry("a", 4, "transient 3"),
        Posted::entry("a", 5, ""),
    ]);
    let (first, _) = consumer::<Posted>(name, LATER);
    let running = scene.start([first]);
    let ids = scene.produce(0, &events).await;
    await_parked(&scene, 2).await;
    scene.await_committed(name, Posted::TOPIC, 0, 5).await;
    running.stop().await;
    // Another group reads everything again; the consumer's name and so its dedup rows stay.
    let (again, recorder) = consumer::<Posted>(name, LATER);
    let stats = again.stats();
    let running = scene.start([again.group("test-park-rewind-again")]);
    scene
        .await_committed("test-park-rewind-again", Posted::TOPIC, 0, 5)
        .await;
    assert_eq!(stats.duplicates(), 3, "events before the parked one");
    assert_eq!(stats.parked(), 0, "they wait already");
    assert_eq!(scene.count("SELECT count(*) FROM parked_event").await, 2);
    for attempts in [1, 2, 3] {
        scene
            .execute("UPDATE parked_key SET next_attempt_at = now()")
            .await;
        eventually(LIMIT, "an attempt", async || {
            recorder.calls_of(ids[3]) == attempts
        })
        .await;
    }
    await_nothing_parked(&scene).await;
    running.stop().await;
    assert_eq!(scene.effects(name).await, effects_of("a", 5));
}

entry_on_topic!(key_limit, "t.park-key-limit");
async fn the_limit_of_a_key_makes_its_partition_wait(on: On) {
    use key_limit::Posted;
    let scene = Scene::new::<Posted>(on, 1).await;
    let name = "test-park-key-limit";
    let (consumer, recorder) = consumer::<Posted>(name, LATER.parked_per_key(3));
    let running = scene.start([consumer.batch_limit(1)]);
    let mut events = vec![Posted::entry("a", 1, "transient 2")];
    events.extend((2..=5).map(|seq| Posted::entry("a", seq, "")));
    events.push(Posted::entry("b", 1, ""));
    let ids = scene.produce(0, &events).await;
    await_parked(&scene, 3).await;
    scene.await_committed(name, Posted::TOPIC, 0, 3).await;
    assert_eq!(
        scene.effects(name).await,
        [""; 0],
        "what comes after waits on the topic"
    );
    assert_eq!(recorder.calls_of(ids[0]), 1);
    scene
        .execute("UPDATE parked_key SET next_attempt_at = now()")
        .await;
    let mut all = effects_of("a", 5);
    all.extend(effects_of("b", 1));
    scene.await_effects(name, &all).await;
    await_nothing_parked(&scene).await;
    running.stop().await;
    assert_eq!(of_account(&scene, name, "a").await, effects_of("a", 5));
    assert_eq!(scene.dead_letters(name).await, [""; 0]);
}

entry_on_topic!(all_limit, "t.park-all-limit");
async fn the_limit_of_all_makes_partitions_wait(on: On) {
    use all_limit::Posted;
    let scene = Scene::new::<Posted>(on, 1).await;
    let name = "test-park-all-limit";
    let (consumer, _) = consumer::<Posted>(name, LATER.parked_in_all(2));
    let running = scene.start([consumer.batch_limit(1)]);
    let events = [
        Posted::entry("a", 1, "transient 2"),
        Posted::entry("b", 1, "transient 2"),
        Posted::entry("ok", 1, ""),
        Posted::entry("c", 1, "transient 2"),
        Posted::entry("ok", 2, ""),
    ];
    scene.produce(0, &events).await;
    await_parked(&scene, 2).await;
    scene.await_committed(name, Posted::TOPIC, 0, 3).await;
    scene.await_effects(name, &effects_of("ok", 1)).await;
    assert_eq!(scene.count("SELECT count(*) FROM parked_event").await, 2);
    scene
        .execute("UPDATE parked_key SET next_attempt_at = now()")
        .await;
    scene.await_committed(name, Posted::TOPIC, 0, 5).await;
    scene
        .execute("UPDATE parked_key SET next_attempt_at = now()")
        .await;
    await_nothing_parked(&scene).await;
    let all = ["a:1", "b:1", "c:1", "ok:1", "ok:2"].map(str::to_owned);
    scene.await_effects(name, &all).await;
    running.stop().await;
    assert_eq!(scene.dead_letters(name).await, [""; 0]);
}

entry_on_topic!(shared, "t.park-shared");
async fn several_retriers_share_the_keys_and_keep_their_order(on: On) {
    use shared::Posted;
    const KEYS: usize = 20;
    const EVENTS: u64 = 6;
    let scene = Scene::new::<Posted>(on, 3).await;
    let name = "test-park-shared";
    let services: Vec<Running> = (0..3)
        .map(|_| scene.start([consumer::<Posted>(name, QUICK.attempts(20)).0]))
        .collect();
    let mut all = Vec::new();
    for key in 0..KEYS {
        let account = format!("k{key}");
        let note = |seq| if seq % 3 == 1 { "transient 2" } else { "" };
        let events: Vec<Posted> = (1..=EVENTS)
            .map(|seq| Posted::entry(&account, seq, note(seq)))
            .collect();
        scene.produce((key % 3) as i32, &events).await;
        all.extend(effects_of(&account, EVENTS));
    }
    scene.await_effects(name, &all).await;
    await_nothing_parked(&scene).await;
    for service in services {
        service.stop().await;
    }
    for key in 0..KEYS {
        let account = format!("k{key}");
        assert_eq!(
            of_account(&scene, name, &account).await,
            effects_of(&account, EVENTS)
        );
    }
    assert_eq!(scene.dead_letters(name).await, [""; 0]);
}

entry_on_topic!(damped, "t.park-damped");
async fn many_failing_keys_are_not_woken_at_once(on: On) {
    use damped::Posted;
    const KEYS: u32 = 300;
    let scene = Scene::new::<Posted>(on, 1).await;
    let name = "test-park-damped";
    let (consumer, recorder) = consumer::<Posted>(name, LATER.attempts(100));
    let running = scene.start([consumer]);
    let events: Vec<Posted> = (0..KEYS)
        .map(|key| Posted::entry(&format!("k{key}"), 1, "always"))
        .collect();
    scene.produce(0, &events).await;
    await_parked(&scene, i64::from(KEYS)).await;
    scene
        .await_committed(name, Posted::TOPIC, 0, i64::from(KEYS))
        .await;
    // All are due at one moment, and all fail: after some failures four are woken in a second.
    let before = recorder.calls();
    scene
        .execute("UPDATE parked_key SET next_attempt_at = now()")
        .await;
    let woken = std::time::Instant::now();
    eventually(LIMIT, "some attempts", async || {
        recorder.calls() >= before + 18
    })
    .await;
    // 8 halvings take it from 1000 to 4 a second; the attempts beyond them are 250 ms apart.
    assert!(
        woken.elapsed() > Duration::from_millis(1500),
        "{:?}",
        woken.elapsed()
    );
    running.stop().await;
}

entry_on_topic!(strategy, "t.park-strategy");
async fn keys_parked_before_a_change_of_strategy_flow_on(on: On) {
    use strategy::Posted;
    let scene = Scene::new::<Posted>(on, 1).await;
    let name = "test-park-strategy";
    let (parking, _) = consumer::<Posted>(name, LATER);
    let running = scene.start([parking]);
    let events = [
        Posted::entry("a", 1, "transient 2"),
        Posted::entry("a", 2, ""),
    ];
    scene.produce(0, &events).await;
    await_parked(&scene, 2).await;
    scene.await_committed(name, Posted::TOPIC, 0, 2).await;
    running.stop().await;
    let (pausing, _) = consumer::<Posted>(name, Retry::pause_partition());
    let running = scene.start([pausing]);
    scene.produce(0, &[Posted::entry("a", 3, "")]).await;
    await_parked(&scene, 3).await;
    scene
        .execute("UPDATE parked_key SET next_attempt_at = now()")
        .await;
    await_nothing_parked(&scene).await;
    running.stop().await;
    assert_eq!(scene.effects(name).await, effects_of("a", 3));
}

entry_on_topic!(keyless, "t.park-keyless");
async fn a_record_without_a_key_waits_under_its_aggregate(on: On) {
    use keyless::Posted;
    let scene = Scene::new::<Posted>(on, 1).await;
    let name = "test-park-keyless";
    let (consumer, _) = consumer::<Posted>(name, LATER);
    let running = scene.start([consumer]);
    let values: Vec<Vec<u8>> = [("a", 1, "transient 2"), ("a", 2, ""), ("b", 1, "")]
        .map(|(account, seq, note)| {
            envelope(Posted::entry(account, seq, note))
                .encode()
                .unwrap()
        })
        .into();
    scene
        .broker
        .produce_keyless(Posted::TOPIC, 0, &values)
        .await;
    scene.await_effects(name, &effects_of("b", 1)).await;
    await_parked(&scene, 2).await;
    let stored = scene
        .count("SELECT count(*) FROM parked_event WHERE keyless AND key = 'a'")
        .await;
    assert_eq!(stored, 2);
    scene
        .execute("UPDATE parked_key SET next_attempt_at = now()")
        .await;
    await_nothing_parked(&scene).await;
    running.stop().await;
    assert_eq!(of_account(&scene, name, "a").await, effects_of("a", 2));
}

entry_on_topic!(typed, "t.park-typed");
async fn a_typed_commit_in_a_retry_stops_the_consumer_and_loses_nothing(on: On) {
    use typed::Posted;
    let scene = Scene::new::<Posted>(on, 1).await;
    let name = "test-park-typed";
    let (first, _) = consumer::<Posted>(name, QUICK);
    let running = scene.start([first]);
    let events = [
        Posted::entry("a", 1, "transient 2"),
        Posted::entry("a", 2, "commit"),
    ];
    scene.produce(0, &events).await;
    let error = running.ended().await.unwrap_err().to_string();
    assert!(error.contains("typed COMMIT"), "{error}");
    let mut connection = scene.database.connect().await;
    let lost: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM processed_event p WHERE NOT EXISTS (SELECT FROM effect e WHERE e.event_id = p.event_id)",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    connection.close().await.unwrap();
    assert_eq!(lost, 0, "no event counts as handled without its effect");
}
