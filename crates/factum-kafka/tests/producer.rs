//! What the producer promises, on the embedded broker and on Kafka.

mod broker;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use broker::{Broker, LIMIT, text};
use factum_kafka::{
    BrokerFault, BrokerRequest, HEADERS_MAX, KafkaSettings, OutgoingRecord, Producer,
    SendErrorKind, describe_topics,
};

on_both_brokers!(
    a_batch_arrives_in_the_order_of_each_key,
    a_batch_larger_than_the_queue_keeps_its_order,
    a_key_goes_to_the_partition_that_java_picks,
    headers_and_empty_values_arrive_as_they_are,
    too_large_a_record_holds_its_key_and_no_other,
    an_unknown_topic_is_refused_and_not_created,
    too_many_headers_are_refused,
    errors_name_the_topic_and_never_the_content,
);

fn record<'a>(topic: &'a str, key: &'a str, value: &'a str) -> OutgoingRecord<'a> {
    OutgoingRecord {
        topic,
        key: Some(key.as_bytes()),
        value: Some(value.as_bytes()),
        headers: Vec::new(),
        partition: None,
    }
}

fn producer(settings: &KafkaSettings) -> Producer {
    Producer::connect(settings, LIMIT).unwrap()
}

/// `count` records over `keys` keys, as (key, value).
fn rows(count: usize, keys: usize) -> Vec<(String, String)> {
    (0..count)
        .map(|i| (format!("key-{}", i % keys), format!("{i}")))
        .collect()
}

fn in_order(rows: &[(String, String)]) -> BTreeMap<String, Vec<String>> {
    let mut by_key: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (key, value) in rows {
        by_key.entry(key.clone()).or_default().push(value.clone());
    }
    by_key
}

fn kinds(outcomes: &[Result<(), factum_kafka::SendError>]) -> Vec<Option<SendErrorKind>> {
    outcomes
        .iter()
        .map(|outcome| outcome.as_ref().err().map(factum_kafka::SendError::kind))
        .collect()
}

async fn a_batch_arrives_in_the_order_of_each_key(broker: Broker) {
    let topic = broker.topic(4).await;
    let rows = rows(3_000, 37);
    let batch: Vec<_> = rows.iter().map(|(k, v)| record(&topic, k, v)).collect();
    let producer = producer(&broker.settings);
    for part in batch.chunks(1_000) {
        let outcomes = producer.send_all(part).await;
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    }
    assert!(!producer.is_fatal());
    assert_eq!(broker.values_by_key(&topic).await, in_order(&rows));
}

async fn a_batch_larger_than_the_queue_keeps_its_order(broker: Broker) {
    let topic = broker.topic(2).await;
    let rows = rows(45_000, 11);
    let batch: Vec<_> = rows.iter().map(|(k, v)| record(&topic, k, v)).collect();
    let outcomes = producer(&broker.settings).send_all(&batch).await;
    assert!(outcomes.iter().all(Result::is_ok));
    assert_eq!(broker.values_by_key(&topic).await, in_order(&rows));
}

/// The keys and hashes of Kafka's own test (`UtilsTest.testMurmur2`).
async fn a_key_goes_to_the_partition_that_java_picks(broker: Broker) {
    const PARTITIONS: u32 = 7;
    let hashes: [(&str, i32); 6] = [
        ("21", -973_932_308),
        ("foobar", -790_332_482),
        ("a-little-bit-long-string", -985_981_536),
        ("a-little-bit-longer-string", -1_486_304_829),
        (
            "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
            -58_897_971,
        ),
        ("abc", 479_470_107),
    ];
    let topic = broker.topic(PARTITIONS).await;
    let batch: Vec<_> = hashes
        .iter()
        .map(|(key, _)| record(&topic, key, ""))
        .collect();
    let outcomes = producer(&broker.settings).send_all(&batch).await;
    assert!(outcomes.iter().all(Result::is_ok));
    let records = broker.records(&topic).await;
    for (key, hash) in hashes {
        let partition = (hash & i32::MAX) % i32::try_from(PARTITIONS).unwrap();
        let record = records
            .iter()
            .find(|record| text(record.key.clone()) == key)
            .unwrap();
        assert_eq!(record.partition, partition, "{key}");
    }
}

async fn headers_and_empty_values_arrive_as_they_are(broker: Broker) {
    let topic = broker.topic(1).await;
    let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let mut with_headers = record(&topic, "a", "{}");
    with_headers.headers = vec![
        ("traceparent", Some(traceparent.as_bytes())),
        ("event-type", Some(b"order.confirmed.v1")),
        ("empty", Some(b"")),
        ("null", None),
        ("empty", Some(b"\xff\0")),
    ];
    let mut tombstone = record(&topic, "a", "");
    tombstone.value = None;
    let mut keyless = record(&topic, "", "x");
    keyless.key = None;
    let outcomes = producer(&broker.settings)
        .send_all(&[with_headers, tombstone, record(&topic, "", ""), keyless])
        .await;
    assert!(outcomes.iter().all(Result::is_ok));
    let read = broker.records(&topic).await;
    assert!(read[0].headers.iter().eq([
        ("traceparent", Some(traceparent.as_bytes())),
        ("event-type", Some(&b"order.confirmed.v1"[..])),
        ("empty", Some(b"")),
        ("null", None),
        ("empty", Some(b"\xff\0")),
    ]));
    assert_eq!(
        (&read[1].key, &read[1].value),
        (&Some(b"a".to_vec()), &None)
    );
    assert_eq!(
        (&read[2].key, &read[2].value),
        (&Some(Vec::new()), &Some(Vec::new()))
    );
    assert_eq!(
        (&read[3].key, &read[3].value),
        (&None, &Some(b"x".to_vec()))
    );
}

async fn too_large_a_record_holds_its_key_and_no_other(broker: Broker) {
    let topic = broker.topic(3).await;
    let large = "x".repeat(1_000_001);
    let outcomes = producer(&broker.settings)
        .send_all(&[
            record(&topic, "a", "1"),
            record(&topic, "a", &large),
            record(&topic, "b", "1"),
            record(&topic, "a", "3"),
            record(&topic, "b", "2"),
        ])
        .await;
    assert_eq!(
        kinds(&outcomes),
        [
            None,
            Some(SendErrorKind::Permanent),
            None,
            Some(SendErrorKind::Held),
            None
        ]
    );
    let told = outcomes[1].as_ref().unwrap_err().to_string();
    assert!(
        told.contains("too large") && told.contains("1000002 bytes"),
        "{told}"
    );
    let arrived = broker.values_by_key(&topic).await;
    assert_eq!(arrived["a"], ["1"]);
    assert_eq!(arrived["b"], ["1", "2"]);
}

async fn an_unknown_topic_is_refused_and_not_created(broker: Broker) {
    let known = broker.topic(1).await;
    let unknown = broker::fresh_topic();
    let producer = producer(&broker.settings);
    let start = Instant::now();
    let outcomes = producer
        .send_all(&[
            record(&unknown, "a", "1"),
            record(&known, "a", "2"),
            record(&known, "b", "1"),
            record("no such name", "c", "1"),
        ])
        .await;
    assert_eq!(
        kinds(&outcomes),
        [
            Some(SendErrorKind::Permanent),
            Some(SendErrorKind::Held),
            None,
            Some(SendErrorKind::Permanent),
        ]
    );
    assert!(start.elapsed() < LIMIT / 2, "{:?}", start.elapsed());
    assert!(!producer.is_fatal(), "the others go on");
    let told = outcomes[0].as_ref().unwrap_err().to_string();
    assert!(told.contains(&unknown) && told.contains("CFG-4"), "{told}");
    let there = describe_topics(&broker.settings, &[&known, &unknown], LIMIT)
        .await
        .unwrap();
    assert_eq!((there[&known], there[&unknown]), (Some(1), None));
}

async fn too_many_headers_are_refused(broker: Broker) {
    let topic = broker.topic(1).await;
    let value = vec![b'x'; 70_000];
    let mut many = record(&topic, "a", "1");
    many.headers = vec![("h", Some(b"v")); HEADERS_MAX + 1];
    let mut long = record(&topic, "b", "1");
    long.headers = vec![("h", Some(&value))];
    let mut just = record(&topic, "c", "1");
    just.headers = vec![("h", Some(b"v")); HEADERS_MAX];
    let outcomes = producer(&broker.settings)
        .send_all(&[many, long, just])
        .await;
    let permanent = Some(SendErrorKind::Permanent);
    assert_eq!(kinds(&outcomes), [permanent, permanent, None]);
}

async fn errors_name_the_topic_and_never_the_content(broker: Broker) {
    let topic = broker.topic(1).await;
    let content = "canary".repeat(200_000);
    let mut record = record(&topic, "canary-key", &content);
    record.headers = vec![("h", Some(b"canary-header"))];
    assert!(!format!("{record:?}").contains("canary"));
    let producer = producer(&broker.settings);
    let outcomes = producer.send_all(std::slice::from_ref(&record)).await;
    let error = outcomes[0].as_ref().unwrap_err();
    assert!(error.to_string().contains(&topic));
    for shown in [
        error.to_string(),
        format!("{error:?}"),
        format!("{producer:?}"),
    ] {
        assert!(!shown.contains("canary"), "{shown}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_send_spends_the_producer() {
    let broker = Broker::embedded();
    let topic = broker.topic(1).await;
    let producer = producer(&broker.settings);
    assert!(producer.send_all(&[record(&topic, "a", "1")]).await[0].is_ok());
    let embedded = broker.faults();
    embedded
        .round_trip_time(-1, Duration::from_secs(1))
        .unwrap();
    {
        // Polled once: the record is in the queue, and its report can't be there yet.
        let batch = [record(&topic, "a", "2")];
        let mut send = std::pin::pin!(producer.send_all(&batch));
        let first = std::future::poll_fn(|cx| std::task::Poll::Ready(send.as_mut().poll(cx))).await;
        assert!(first.is_pending());
        assert!(!producer.is_fatal());
    }
    assert!(producer.is_fatal());
    let refused = producer.send_all(&[record(&topic, "a", "3")]).await;
    assert_eq!(kinds(&refused), [Some(SendErrorKind::Fatal)]);
    let arrived = broker.values_by_key(&topic).await;
    assert!(!arrived["a"].contains(&"3".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_broker_away_everything_is_withdrawn_in_time_and_sent_by_the_next_producer() {
    let broker = Broker::embedded();
    let embedded = broker.faults();
    let topic = broker.topic(4).await;
    let rows = rows(500, 9);
    let batch: Vec<_> = rows.iter().map(|(k, v)| record(&topic, k, v)).collect();
    let limit = Duration::from_secs(4);
    let producer = Producer::connect(&broker.settings, limit).unwrap();
    assert!(producer.send_all(&[record(&topic, "first", "1")]).await[0].is_ok());
    embedded.broker_down(-1).unwrap();
    let start = Instant::now();
    let outcomes = producer.send_all(&batch).await;
    let took = start.elapsed();
    assert!(took >= limit && took < limit * 4, "{took:?}");
    assert!(
        kinds(&outcomes)
            .iter()
            .all(|kind| *kind == Some(SendErrorKind::Retriable)),
        "{outcomes:?}"
    );
    assert!(producer.is_fatal());
    // The next one finds no broker either, and says so.
    let second = Producer::connect(&broker.settings, limit).unwrap();
    let outcomes = second.send_all(&batch[..1]).await;
    let error = outcomes[0].as_ref().unwrap_err();
    assert_eq!(error.kind(), SendErrorKind::Retriable);
    assert!(
        error.to_string().contains(broker.settings.brokers.as_str()),
        "{error}"
    );
    embedded.broker_up(-1).unwrap();
    let third = Producer::connect(&broker.settings, LIMIT).unwrap();
    let outcomes = third.send_all(&batch).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let mut arrived = broker.values_by_key(&topic).await;
    arrived.remove("first");
    assert_eq!(arrived, in_order(&rows));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_answers_too_late_is_not_waited_for() {
    let broker = Broker::embedded();
    let topic = broker.topic(1).await;
    let limit = Duration::from_secs(5);
    let producer = Producer::connect(&broker.settings, limit).unwrap();
    assert!(producer.send_all(&[record(&topic, "a", "1")]).await[0].is_ok());
    let embedded = broker.faults();
    embedded
        .round_trip_time(-1, Duration::from_secs(60))
        .unwrap();
    let start = Instant::now();
    let outcomes = producer
        .send_all(&[record(&topic, "a", "2"), record(&topic, "a", "3")])
        .await;
    assert!(start.elapsed() < limit * 4);
    let error = outcomes[0].as_ref().unwrap_err();
    assert_eq!(error.kind(), SendErrorKind::Retriable);
    assert!(
        error
            .to_string()
            .contains("not acknowledged within 5000 ms"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_a_producer_with_work_left_returns_at_once() {
    let settings = KafkaSettings::new("127.0.0.1:1", "factum-kafka-tests");
    for _ in 0..3 {
        let producer = Producer::connect(&settings, Duration::from_millis(300)).unwrap();
        let outcomes = producer.send_all(&[record("t", "a", "1")]).await;
        let error = outcomes[0].as_ref().unwrap_err();
        assert_eq!(error.kind(), SendErrorKind::Retriable);
        assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
        let start = Instant::now();
        drop(producer);
        assert!(start.elapsed() < Duration::from_millis(200));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_broker_can_do_again_is_done_again_without_a_word() {
    let broker = Broker::embedded();
    let topic = broker.topic(1).await;
    let producer = producer(&broker.settings);
    let embedded = broker.faults();
    embedded
        .fail_next(
            BrokerRequest::Produce,
            &[
                BrokerFault::NotEnoughReplicas,
                BrokerFault::Disconnect,
                BrokerFault::NotLeader,
                BrokerFault::TimedOut,
            ],
        )
        .unwrap();
    let rows = rows(200, 3);
    let batch: Vec<_> = rows.iter().map(|(k, v)| record(&topic, k, v)).collect();
    let outcomes = producer.send_all(&batch).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert_eq!(broker.values_by_key(&topic).await, in_order(&rows));
}

/// Public case 25 at the producer: the relay sees it and rebuilds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_that_lost_its_place_is_spent_and_the_next_one_works() {
    for fault in [
        BrokerFault::OutOfOrderSequence,
        BrokerFault::InvalidProducerEpoch,
        BrokerFault::UnknownProducerId,
        BrokerFault::MessageTooLarge,
        BrokerFault::InvalidRecord,
    ] {
        let broker = Broker::embedded();
        let topic = broker.topic(1).await;
        let first = producer(&broker.settings);
        assert!(first.send_all(&[record(&topic, "a", "1")]).await[0].is_ok());
        let embedded = broker.faults();
        embedded
            .fail_next(BrokerRequest::Produce, &[fault])
            .unwrap();
        let outcomes = first.send_all(&[record(&topic, "a", "2")]).await;
        // librdkafka mends some of these itself; what it does not mend must show.
        if outcomes[0].is_err() {
            assert!(first.is_fatal(), "{fault:?} {outcomes:?}");
            let next = producer(&broker.settings);
            assert!(next.send_all(&[record(&topic, "a", "2")]).await[0].is_ok());
        }
        let arrived = broker.values_by_key(&topic).await;
        assert_eq!(arrived["a"], ["1", "2"], "{fault:?}");
    }
}

/// A value that no compression makes smaller than the topic below takes.
fn incompressible() -> String {
    let mut state = 1_u32;
    (0..60_000)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            char::from(b'!' + u8::try_from((state >> 24) % 90).unwrap())
        })
        .collect()
}

/// A topic that takes less than the producer sends.
async fn narrow_topic(broker: &Broker) -> String {
    use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
    let topic = broker::fresh_topic();
    let admin: AdminClient<_> = rdkafka::ClientConfig::new()
        .set("bootstrap.servers", &broker.settings.brokers)
        .create()
        .unwrap();
    let new =
        NewTopic::new(&topic, 1, TopicReplication::Fixed(1)).set("max.message.bytes", "20000");
    for created in admin
        .create_topics(&[new], &AdminOptions::new())
        .await
        .unwrap()
    {
        created.unwrap();
    }
    until_it_shows(broker, &topic).await;
    topic
}

async fn until_it_shows(broker: &Broker, topic: &str) {
    let start = Instant::now();
    while describe_topics(&broker.settings, &[topic], LIMIT)
        .await
        .unwrap()[topic]
        .is_none()
    {
        assert!(start.elapsed() < LIMIT, "the new topic does not show");
    }
}

/// Fails with librdkafka's defaults: the records after the refused batch are numbered anew and sent. It
/// fails with the gapless guarantee alone too: a broker that does not know the producer yet takes
/// the second request after it has refused the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_the_topic_refuses_is_not_overtaken() {
    let broker = Broker::kafka();
    let mut settings = broker.settings.clone();
    // One request for each record, so that several are on their way.
    settings
        .producer
        .insert("batch.num.messages".to_owned(), "1".to_owned());
    let large = incompressible();
    for large_at in [0, 1, 7] {
        let topic = narrow_topic(&broker).await;
        let values: Vec<String> = (0..200).map(|i| i.to_string()).collect();
        let batch: Vec<_> = values
            .iter()
            .enumerate()
            .map(|(i, value)| record(&topic, "a", if i == large_at { &large } else { value }))
            .collect();
        let first = producer(&settings);
        let outcomes = kinds(&first.send_all(&batch).await);
        assert_eq!(outcomes[large_at], Some(SendErrorKind::Permanent));
        assert!(
            outcomes[large_at + 1..].iter().all(Option::is_some),
            "{outcomes:?}"
        );
        assert!(first.is_fatal());
        let arrived = broker.values_by_key(&topic).await;
        let arrived = arrived.get("a").cloned().unwrap_or_default();
        assert_eq!(arrived, values[..arrived.len()], "large at {large_at}");
        assert!(arrived.len() <= large_at);
        // What was acknowledged is there.
        let acknowledged = outcomes
            .iter()
            .take_while(|outcome| outcome.is_none())
            .count();
        assert!(arrived.len() >= acknowledged);
    }
}

/// Fails if a new producer sends more than one request to a partition that does not know it: the
/// first is refused for now, the second is taken, and its acknowledgement counts for both. The embedded broker
/// never looks at the numbers, so it stands for a broker without state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_request_that_is_refused_for_now_is_not_lost() {
    let broker = Broker::embedded();
    let topic = broker.topic(1).await;
    let mut settings = broker.settings.clone();
    settings
        .producer
        .insert("batch.num.messages".to_owned(), "1".to_owned());
    let producer = producer(&settings);
    broker
        .faults()
        .fail_next(BrokerRequest::Produce, &[BrokerFault::NotEnoughReplicas])
        .unwrap();
    let rows = rows(50, 2);
    let batch: Vec<_> = rows.iter().map(|(k, v)| record(&topic, k, v)).collect();
    let outcomes = producer.send_all(&batch).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert_eq!(broker.values_by_key(&topic).await, in_order(&rows));
}

/// A key whose records go to two topics, one known to the producer and one new to it: none overtakes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_over_two_topics_waits_for_the_new_one() {
    let broker = Broker::embedded();
    let known = broker.topic(1).await;
    let new = broker.topic(1).await;
    let producer = producer(&broker.settings);
    assert!(producer.send_all(&[record(&known, "x", "0")]).await[0].is_ok());
    broker
        .faults()
        .fail_next(BrokerRequest::Produce, &[BrokerFault::InvalidRecord])
        .unwrap();
    let outcomes = producer
        .send_all(&[record(&new, "a", "1"), record(&known, "a", "2")])
        .await;
    assert_eq!(kinds(&outcomes)[0], Some(SendErrorKind::Permanent));
    assert!(outcomes[1].is_err());
    assert!(!broker.values_by_key(&known).await.contains_key("a"));
}
