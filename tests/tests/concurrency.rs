//! Several events of a partition at once, and more lanes than connections to the database.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use factum::{
    Consumer, Envelope, Event as _, Handler, HandlerError, LaneError, Retry, Service, ServiceError,
    Tx,
};
use factum_testing::{OutgoingRecord, eventually};
use factum_tests::{
    Entry, LIMIT, On, Recorder, Running, Scene, effects_of, entries, entry_on_topic, envelope,
    on_both_brokers,
};

on_both_brokers!(
    thirty_two_handlers_run_at_once_and_never_two_of_a_key,
    an_offset_stays_below_the_lowest_unfinished_event,
    a_failed_event_parks_its_key_and_the_others_go_on,
    a_stop_finishes_what_runs_and_begins_nothing,
    a_new_member_gets_its_partitions_and_nothing_is_handled_twice,
);

/// Watches over a [`Recorder`]: what runs at once.
#[derive(Clone)]
struct Watched {
    recorder: Recorder,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    running: HashSet<String>,
    most: usize,
    /// Accounts of which two ran at once.
    doubled: Vec<String>,
}

impl Watched {
    fn of(consumer: &'static str) -> Watched {
        Watched {
            recorder: Recorder::of(consumer),
            seen: Arc::default(),
        }
    }

    fn most(&self) -> usize {
        self.seen.lock().expect("no poison").most
    }

    fn assert_no_key_ran_twice_at_once(&self) {
        let doubled = self.seen.lock().expect("no poison").doubled.clone();
        assert_eq!(doubled, Vec::<String>::new());
    }
}

/// A handler that runs; it may be dropped half-way.
struct Underway<'a> {
    seen: &'a Mutex<Seen>,
    account: String,
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        let mut seen = self.seen.lock().expect("no poison");
        seen.running.remove(&self.account);
    }
}

impl<E: Entry> Handler<E> for Watched {
    async fn handle(&self, event: &Envelope<E>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        let account = event.account().to_owned();
        {
            let mut seen = self.seen.lock().expect("no poison");
            if !seen.running.insert(account.clone()) {
                seen.doubled.push(account.clone());
            }
            seen.most = seen.most.max(seen.running.len());
        }
        let _running = Underway {
            seen: &self.seen,
            account,
        };
        self.recorder.handle(event, tx).await
    }
}

const QUICK: Retry = Retry::park()
    .attempts(5)
    .first_delay(Duration::from_millis(20))
    .max_delay(Duration::from_millis(100));

fn consumer<E: Entry>(name: &'static str, concurrency: u32) -> (Consumer, Watched) {
    let watched = Watched::of(name);
    let consumer = Consumer::named(name)
        .handler::<E>(watched.clone())
        .retry(QUICK)
        .concurrency(concurrency);
    (consumer, watched)
}

/// The effects of each account stand in the order of its events, each once.
async fn assert_in_order(scene: &Scene, consumer: &str) {
    let mut by_account: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for effect in scene.effects(consumer).await {
        let (account, seq) = effect.split_once(':').expect("account and number");
        let seqs = by_account.entry(account.to_owned()).or_default();
        seqs.push(seq.parse().expect("a number"));
    }
    for (account, seqs) in by_account {
        let expected: Vec<u64> = (1..=seqs.len() as u64).collect();
        assert_eq!(seqs, expected, "{account}");
    }
}

entry_on_topic!(together, "t.keyed-together");
async fn thirty_two_handlers_run_at_once_and_never_two_of_a_key(on: On) {
    use together::Posted;
    let scene = Scene::new::<Posted>(on, 3).await;
    let name = "test-keyed-together";
    let mut expected = Vec::new();
    for partition in 0..3 {
        let mut events = Vec::new();
        for seq in 1..=3 {
            for account in 0..14 {
                let account = format!("{partition}-{account}");
                let note = if seq == 1 { "gate" } else { "" };
                events.push(Posted::entry(&account, seq, note));
                expected.push(format!("{account}:{seq}"));
            }
        }
        scene.produce(partition, &events).await;
    }
    let (consumer, watched) = consumer::<Posted>(name, 32);
    let running = scene.start([consumer]);
    // None of them goes on before all are there. And the first event of every key waits.
    watched.recorder.gate_reached(32).await;
    assert_eq!((watched.recorder.calls(), watched.most()), (32, 32));
    watched.recorder.open_gate(1_000);
    scene.await_effects(name, &expected).await;
    for partition in 0..3 {
        scene
            .await_committed(name, Posted::TOPIC, partition, 42)
            .await;
    }
    running.stop().await;
    assert_eq!(watched.most(), 32, "as many as there may be, and no more");
    watched.assert_no_key_ran_twice_at_once();
    assert_in_order(&scene, name).await;
}

entry_on_topic!(lowest, "t.keyed-lowest");
async fn an_offset_stays_below_the_lowest_unfinished_event(on: On) {
    use lowest::Posted;
    let scene = Scene::new::<Posted>(on, 2).await;
    let name = "test-keyed-lowest";
    let mut events = vec![
        Posted::entry("a", 1, ""),
        Posted::entry("slow", 1, "gate"),
        Posted::entry("slow", 2, ""),
    ];
    events.extend(entries::<Posted>("b", 20));
    scene.produce(0, &events).await;
    let (first, watched) = consumer::<Posted>(name, 4);
    let running = scene.start_with(&[("FACTUM_SHUTDOWN_DEADLINE_SECONDS", "2")], [first]);
    let mut others = effects_of("b", 20);
    others.push("a:1".to_owned());
    scene.await_effects(name, &others).await;
    // Offsets of the other partition are committed after that, and so would be those of this one.
    scene.produce(1, &entries::<Posted>("c", 1)).await;
    scene.await_committed(name, Posted::TOPIC, 1, 1).await;
    let committed = scene.broker.committed(name, Posted::TOPIC).await;
    assert_eq!(
        committed.get(&0),
        Some(&1),
        "behind the slow one: {committed:?}"
    );
    // It is given up at the drain deadline; what was finished above it comes again, and has no second effect.
    running.stop().await;
    let committed = scene.broker.committed(name, Posted::TOPIC).await;
    assert_eq!(committed.get(&0), Some(&1));
    watched.assert_no_key_ran_twice_at_once();

    let (second, again) = consumer::<Posted>(name, 4);
    let stats = second.stats();
    again.recorder.open_gate(1);
    let running = scene.start([second]);
    let mut all = others.clone();
    all.extend(effects_of("slow", 2));
    all.push("c:1".to_owned());
    scene.await_effects(name, &all).await;
    scene.await_committed(name, Posted::TOPIC, 0, 23).await;
    running.stop().await;
    assert_eq!((stats.processed(), stats.duplicates()), (2, 20));
    assert_in_order(&scene, name).await;
}

entry_on_topic!(parks, "t.keyed-parks");
async fn a_failed_event_parks_its_key_and_the_others_go_on(on: On) {
    use parks::Posted;
    let scene = Scene::new::<Posted>(on, 2).await;
    let name = "test-keyed-parks";
    let mut expected = Vec::new();
    for partition in 0..2 {
        let mut events = Vec::new();
        for seq in 1..=6 {
            for account in 0..12 {
                let note = match (account + seq) % 6 {
                    0 => "transient 2",
                    1 => "conflict",
                    2 => "permanent",
                    _ => "",
                };
                let account = format!("{partition}-{account}");
                if note != "permanent" {
                    expected.push(format!("{account}:{seq}"));
                }
                events.push(Posted::entry(&account, seq, note));
            }
        }
        scene.produce(partition, &events).await;
    }
    // A malformed record and a tombstone have no order to keep, and hold nobody up.
    scene
        .produce_raw::<Posted>(0, &[Some(b"{not json"), None])
        .await;
    let keyless = envelope(Posted::entry("0-0", 7, "")).encode().unwrap();
    scene
        .broker
        .produce_keyless(Posted::TOPIC, 0, &[keyless])
        .await;
    expected.push("0-0:7".to_owned());
    let (consumer, watched) = consumer::<Posted>(name, 8);
    let running = scene.start([consumer]);
    scene.await_effects(name, &expected).await;
    scene.await_committed(name, Posted::TOPIC, 0, 75).await;
    scene.await_committed(name, Posted::TOPIC, 1, 72).await;
    // A sixth of the events, and what can't be read.
    let letters = 24 + 1;
    eventually(LIMIT, "nothing parked", async || {
        let parked =
            "SELECT (SELECT count(*) FROM parked_key) + (SELECT count(*) FROM parked_event)";
        scene.count(parked).await == 0
    })
    .await;
    assert_eq!(
        scene.count("SELECT count(*) FROM dead_letter").await,
        letters
    );
    running.stop().await;
    watched.assert_no_key_ran_twice_at_once();
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    for effect in scene.effects(name).await {
        let (account, seq) = effect.split_once(':').expect("account and number");
        let seq: u64 = seq.parse().expect("a number");
        let before = last.insert(account.to_owned(), seq);
        assert!(before < Some(seq), "{account}: {seq} after {before:?}");
    }
}

entry_on_topic!(pauses, "t.keyed-pauses");
#[tokio::test(flavor = "multi_thread")]
async fn while_a_failed_event_holds_up_its_partition_nothing_new_begins() {
    use pauses::Posted;
    let scene = Scene::new::<Posted>(On::Embedded, 1).await;
    let name = "test-keyed-pauses";
    let recorder = Recorder::of(name);
    let consumer = Consumer::named(name)
        .handler::<Posted>(recorder.clone())
        .concurrency(8)
        .retry(
            Retry::pause_partition()
                .attempts(9)
                .first_delay(Duration::from_millis(100))
                .max_delay(Duration::from_millis(100)),
        );
    let first = scene
        .produce(0, &[Posted::entry("a", 1, "transient 8")])
        .await;
    let running = scene.start([consumer]);
    eventually(LIMIT, "a second try", async || {
        recorder.calls_of(first[0]) >= 2
    })
    .await;
    scene.produce(0, &entries::<Posted>("b", 3)).await;
    scene.await_committed(name, Posted::TOPIC, 0, 4).await;
    running.stop().await;
    let effects = scene.effects(name).await;
    assert_eq!(effects, ["a:1", "b:1", "b:2", "b:3"]);
}

entry_on_topic!(drains, "t.keyed-drains");
async fn a_stop_finishes_what_runs_and_begins_nothing(on: On) {
    use drains::Posted;
    let scene = Scene::new::<Posted>(on, 2).await;
    let name = "test-keyed-drains";
    for partition in 0..2 {
        let events: Vec<Posted> = (0..30)
            .map(|account| Posted::entry(&format!("{partition}-{account}"), 1, "slow"))
            .collect();
        scene.produce(partition, &events).await;
    }
    let (consumer, watched) = consumer::<Posted>(name, 4);
    let running = scene.start([consumer]);
    eventually(LIMIT, "four at work", async || watched.most() == 4).await;
    // All of them would take 15 seconds.
    running.stop().await;
    let effects = scene.effects(name).await.len();
    assert_eq!(
        effects,
        watched.recorder.calls() as usize,
        "none is given up"
    );
    assert!((4..=16).contains(&effects), "{effects}");
    let committed = scene.broker.committed(name, Posted::TOPIC).await;
    let below: i64 = committed.values().sum();
    assert!(below <= effects as i64, "{committed:?}");
}

entry_on_topic!(joins, "t.keyed-joins");
async fn a_new_member_gets_its_partitions_and_nothing_is_handled_twice(on: On) {
    use joins::Posted;
    let scene = Scene::new::<Posted>(on, 4).await;
    let name = "test-keyed-joins";
    let mut expected = Vec::new();
    for partition in 0..4 {
        let mut events = Vec::new();
        for seq in 1..=15 {
            for account in 0..10 {
                let account = format!("{partition}-{account}");
                events.push(Posted::entry(&account, seq, ""));
                expected.push(format!("{account}:{seq}"));
            }
        }
        scene.produce(partition, &events).await;
    }
    let (first, watched) = consumer::<Posted>(name, 8);
    let first = scene.start([first]);
    eventually(LIMIT, "some effects", async || {
        scene.effects(name).await.len() >= 50
    })
    .await;
    let (second, also_watched) = consumer::<Posted>(name, 8);
    let taken = second.stats();
    let second = scene.start([second]);
    eventually(LIMIT, "partitions of the second", async || {
        taken.lanes() == 2
    })
    .await;
    for partition in 0..4 {
        scene
            .produce(
                partition,
                &entries::<Posted>(&format!("late-{partition}"), 5),
            )
            .await;
        expected.extend(effects_of(&format!("late-{partition}"), 5));
    }
    scene.await_effects(name, &expected).await;
    for partition in 0..4 {
        scene
            .await_committed(name, Posted::TOPIC, partition, 155)
            .await;
    }
    first.stop().await;
    second.stop().await;
    watched.assert_no_key_ran_twice_at_once();
    also_watched.assert_no_key_ran_twice_at_once();
    assert_in_order(&scene, name).await;
}

entry_on_topic!(typed, "t.keyed-typed");
#[tokio::test(flavor = "multi_thread")]
async fn a_typed_commit_beside_others_stops_the_consumer_and_they_finish() {
    use typed::Posted;
    let scene = Scene::new::<Posted>(On::Embedded, 1).await;
    let name = "test-keyed-typed";
    let events: Vec<Posted> = (0..3)
        .map(|account| Posted::entry(&format!("b{account}"), 1, "gate"))
        .collect();
    scene.produce(0, &events).await;
    let (consumer, watched) = consumer::<Posted>(name, 4);
    let running = scene.start([consumer]);
    watched.recorder.gate_reached(3).await;
    scene.produce(0, &[Posted::entry("a", 1, "commit")]).await;
    scene.await_effects(name, &effects_of("a", 1)).await;
    watched.recorder.open_gate(3);
    let error = running.ended().await.expect_err("a handler typed COMMIT");
    let ServiceError::Consumer { source, .. } = error else {
        panic!("{error}");
    };
    let factum::ConsumerError::Lane(LaneError::TransactionEnded { typed, .. }) = source else {
        panic!("{source}");
    };
    assert_eq!((typed, watched.most()), ("COMMIT", 4));
    let expected = ["a:1", "b0:1", "b1:1", "b2:1"].map(str::to_owned);
    scene.await_effects(name, &expected).await;
}

entry_on_topic!(many, "t.many-lanes");
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_lanes_share_eight_connections_in_turn() {
    use many::Posted;
    const LANES: u32 = 200;
    const EVENTS: u64 = 4;
    let scene = Scene::new::<Posted>(On::Embedded, LANES).await;
    let name = "test-many-lanes";
    let values: Vec<(u32, Vec<u8>)> = (0..LANES)
        .flat_map(|partition| {
            (1..=EVENTS).map(move |seq| {
                let note = if seq == 1 { "gate" } else { "" };
                let event = Posted::entry(&format!("p{partition}"), seq, note);
                (partition, envelope(event).encode().unwrap())
            })
        })
        .collect();
    let batch: Vec<OutgoingRecord<'_>> = values
        .iter()
        .map(|(partition, value)| OutgoingRecord {
            topic: Posted::TOPIC,
            key: Some(b"of the partition"),
            value: Some(value),
            headers: Vec::new(),
            partition: Some(*partition as i32),
        })
        .collect();
    scene.broker.send(&batch).await;
    let recorder = Recorder::of(name);
    let consumer = Consumer::named(name)
        .handler::<Posted>(recorder.clone())
        // A turn is one event.
        .batch_limit(1);
    let stats = consumer.stats();
    let running = scene.start_with(&[("FACTUM_DATABASE_MAX_CONNECTIONS", "8")], [consumer]);
    // Three have a turn, and every other lane waits for one with its first event in hand.
    recorder.gate_reached(3).await;
    eventually(LIMIT, "an event in every lane", async || {
        stats.received() == u64::from(LANES)
    })
    .await;
    let backends = "SELECT count(*) FROM pg_stat_activity
                     WHERE datname = current_database() AND application_name = 'test'";
    assert!(scene.count(backends).await <= 8);
    assert_eq!(recorder.calls(), 3, "who waits has begun nothing");
    recorder.open_gate(LANES as usize);
    eventually(LIMIT, "all effects", async || {
        stats.processed() == u64::from(LANES) * EVENTS
    })
    .await;
    assert!(scene.count(backends).await <= 8);
    running.stop().await;

    let effects = scene.effects(name).await;
    assert_eq!(effects.len(), LANES as usize * EVENTS as usize);
    assert_in_order(&scene, name).await;
    let seqs = effects.iter().map(|effect| {
        let (_, seq) = effect.split_once(':').expect("account and number");
        seq.parse::<u64>().expect("a number")
    });
    let seqs: Vec<u64> = seqs.collect();
    let last_first = seqs.iter().rposition(|seq| *seq == 1);
    let first_third = seqs.iter().position(|seq| *seq == 3);
    assert!(
        last_first < first_third,
        "a lane had its third turn before another had its first: {seqs:?}"
    );
}

entry_on_topic!(hog, "t.hogging");
entry_on_topic!(sent, "t.hogging-sent", "account.closed.v1", Closed);
#[tokio::test(flavor = "multi_thread")]
async fn handlers_that_take_every_turn_stop_neither_relay_nor_heartbeat() {
    use hog::Posted;
    let scene = Scene::new::<Posted>(On::Embedded, 8).await;
    scene.broker.create_topic(sent::Closed::TOPIC, 1).await;
    let name = "test-hogging";
    for partition in 0..8 {
        let event = Posted::entry(&format!("p{partition}"), 1, "gate");
        scene.produce(partition, &[event]).await;
    }
    let recorder = Recorder::of(name);
    let consumer = Consumer::named(name).handler::<Posted>(recorder.clone());
    let config = scene.config(&[("FACTUM_DATABASE_MAX_CONNECTIONS", "8")]);
    let running = Running::start(Service::builder(config).relay().consumer(consumer));
    recorder.gate_reached(3).await;

    let mut connection = scene.database.connect().await;
    factum::Outbox::new()
        .publish(
            &mut connection,
            sent::Closed::entry("c", 1, "")
                .occurred_at(factum_tests::time::OffsetDateTime::now_utc()),
        )
        .await
        .unwrap();
    eventually(LIMIT, "the event on its topic", async || {
        scene
            .count("SELECT count(*) FROM outbox WHERE published_at IS NOT NULL")
            .await
            == 1
    })
    .await;
    scene
        .execute("UPDATE instance SET seen_at = seen_at - interval '1 hour'")
        .await;
    eventually(LIMIT, "a sign of life", async || {
        scene
            .count("SELECT count(*) FROM instance WHERE seen_at > now() - interval '1 minute'")
            .await
            == 1
    })
    .await;
    assert_eq!(
        recorder.calls(),
        3,
        "all this while the handlers had every turn"
    );
    recorder.open_gate(8);
    let expected: Vec<String> = (0..8).map(|partition| format!("p{partition}:1")).collect();
    scene.await_effects(name, &expected).await;
    running.stop().await;
}
