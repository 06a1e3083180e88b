//! A test's view of a broker is the same on the in-process broker and on Apache Kafka.
#![cfg(feature = "embedded")]

use std::collections::BTreeMap;
use std::time::Duration;

use factum_testing::{TestBroker, embedded, eventually, kafka};

async fn what_is_sent_can_be_read(broker: &TestBroker, topic: &str) {
    broker.create_topic(topic, 2).await;
    assert!(broker.records(topic).await.is_empty());

    broker
        .produce(
            topic,
            1,
            &[("a", Some(b"1")), ("a", None), ("b", Some(b"3"))],
        )
        .await;
    broker.produce(topic, 0, &[("c", Some(b"4"))]).await;

    let read: Vec<_> = broker
        .records(topic)
        .await
        .into_iter()
        .map(|record| (record.partition, record.offset, record.key, record.value))
        .collect();
    let bytes = |text: &str| Some(text.as_bytes().to_vec());
    assert_eq!(
        read,
        [
            (0, 0, bytes("c"), bytes("4")),
            (1, 0, bytes("a"), bytes("1")),
            (1, 1, bytes("a"), None),
            (1, 2, bytes("b"), bytes("3")),
        ]
    );
    assert_eq!(
        broker.end_offsets(topic).await,
        BTreeMap::from([(0, 1), (1, 3)])
    );
    assert_eq!(broker.committed("nobody-yet", topic).await, BTreeMap::new());
    broker.assert_nothing_dropped(&[topic]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_the_in_process_broker() {
    let broker = embedded();
    what_is_sent_can_be_read(&broker, "testing.read").await;
    assert!(broker.as_embedded().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn on_kafka() {
    what_is_sent_can_be_read(&kafka(), "testing.read").await;
}

#[tokio::test(flavor = "multi_thread")]
#[should_panic(expected = "exists already")]
async fn a_topic_of_another_test_is_refused() {
    let broker = embedded();
    broker.create_topic("testing.twice", 1).await;
    broker.create_topic("testing.twice", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
#[should_panic(expected = "has dropped the first")]
async fn records_that_the_in_process_broker_drops_are_noticed() {
    let broker = embedded();
    let topic = "testing.dropped";
    broker.create_topic(topic, 1).await;
    // Bytes that the producer can't compress.
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let value: Vec<u8> = (0..700_000).map(|_| next()).collect();
    let records: Vec<_> = (0..12).map(|_| ("k", Some(value.as_slice()))).collect();
    broker.produce(topic, 0, &records).await;
    eventually(Duration::from_secs(10), "all twelve records", async || {
        broker.end_offsets(topic).await.get(&0) == Some(&12)
    })
    .await;
    broker.assert_nothing_dropped(&[topic]).await;
}
