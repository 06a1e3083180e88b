//! Topics and watermarks, on the embedded broker and on Kafka.

mod broker;

use std::time::{Duration, Instant};

use broker::{Broker, LIMIT, fresh_topic};
use factum_kafka::{
    EmbeddedBroker, KafkaErrorKind, KafkaSettings, NewTopic, OutgoingRecord, Producer,
    create_topics, describe_topics, topic_settings, watermarks,
};

on_both_brokers!(
    topics_are_told_apart_and_none_is_created,
    watermarks_show_where_records_begin_and_end,
);

/// Public case 36: a missing topic is found before anybody subscribes to it. The embedded broker
/// creates a topic as soon as a client allows it, so this fails with a careless request.
async fn topics_are_told_apart_and_none_is_created(broker: Broker) {
    let (three, one) = (broker.topic(3).await, broker.topic(1).await);
    let missing = fresh_topic();
    for _ in 0..2 {
        let there = describe_topics(
            &broker.settings,
            &[&three, &one, &missing, "not a legal name", ""],
            LIMIT,
        )
        .await
        .unwrap();
        assert_eq!(there.len(), 5);
        assert_eq!((there[&three], there[&one]), (Some(3), Some(1)));
        assert_eq!(there[&missing], None);
        assert_eq!((there["not a legal name"], there[""]), (None, None));
    }
}

async fn watermarks_show_where_records_begin_and_end(broker: Broker) {
    let topic = broker.topic(2).await;
    let producer = Producer::connect(&broker.settings, LIMIT).unwrap();
    let batch: Vec<_> = (0..5)
        .map(|_| OutgoingRecord {
            topic: &topic,
            key: None,
            value: Some(b"x"),
            headers: Vec::new(),
            partition: Some(1),
        })
        .collect();
    assert!(producer.send_all(&batch).await.iter().all(Result::is_ok));
    let ranges = watermarks(&broker.settings, &[&topic, &fresh_topic()], LIMIT)
        .await
        .unwrap();
    let shown: Vec<_> = ranges
        .iter()
        .map(|range| (range.topic.as_str(), range.partition, range.low, range.high))
        .collect();
    assert_eq!(
        shown,
        [(topic.as_str(), 0, 0, 0), (topic.as_str(), 1, 0, 5)]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creating_a_topic_twice_is_fine_and_changes_nothing() {
    let broker = Broker::kafka();
    let name = fresh_topic();
    for partitions in [2, 5] {
        let new = NewTopic {
            name: name.clone(),
            partitions,
            replication: 1,
        };
        create_topics(&broker.settings, &[new], LIMIT)
            .await
            .unwrap();
    }
    let there = describe_topics(&broker.settings, &[&name], LIMIT)
        .await
        .unwrap();
    assert_eq!(there[&name], Some(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_the_cluster_refuses_is_named() {
    let broker = Broker::kafka();
    let name = fresh_topic();
    let new = NewTopic {
        name: name.clone(),
        partitions: 1,
        replication: 3,
    };
    let error = create_topics(&broker.settings, &[new], LIMIT)
        .await
        .unwrap_err();
    let told = error.to_string();
    assert!(
        told.contains(&name) && told.contains("InvalidReplicationFactor"),
        "{told}"
    );
}

/// What a newcomer reads who has no broker running.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_broker_the_error_names_address_reason_and_setting() {
    let settings = KafkaSettings::new("127.0.0.1:1", "billing");
    let limit = Duration::from_secs(2);
    let start = Instant::now();
    let error = describe_topics(&settings, &["orders"], limit)
        .await
        .unwrap_err();
    assert!(start.elapsed() < limit * 3);
    assert_eq!(error.kind(), KafkaErrorKind::Unreachable);
    let told = error.to_string();
    for part in ["127.0.0.1:1", "Connection refused", "KAFKA_BROKERS"] {
        assert!(told.contains(part), "{told}");
    }
}

/// The embedded broker's trap, and the check that shows it: old records go without a word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_embedded_broker_drops_beyond_five_mebibytes_and_the_low_watermark_tells() {
    let broker = EmbeddedBroker::start(1).unwrap();
    broker.create_topic("full", 1).unwrap();
    let mut settings = KafkaSettings::new(broker.bootstrap_servers(), "billing");
    settings
        .producer
        .insert("compression.codec".to_owned(), "none".to_owned());
    let producer = Producer::connect(&settings, LIMIT).unwrap();
    let value = vec![b'x'; 100_000];
    let record = OutgoingRecord {
        topic: "full",
        key: None,
        value: Some(&value),
        headers: Vec::new(),
        partition: None,
    };
    let low = async || watermarks(&settings, &["full"], LIMIT).await.unwrap()[0].low;
    for (count, dropped) in [(50, false), (20, true)] {
        let outcomes = producer.send_all(&vec![record.clone(); count]).await;
        assert!(outcomes.iter().all(Result::is_ok));
        assert_eq!(low().await > 0, dropped, "after {count}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_settings_of_topics_are_told() {
    let broker = Broker::kafka();
    let topic = broker.topic(2).await;
    let told = topic_settings(&broker.settings, &[&topic, &fresh_topic()], LIMIT)
        .await
        .unwrap();
    assert_eq!(told.len(), 1, "a missing topic is left out");
    let settings = told[&topic];
    // Kafka's own default.
    let week = Duration::from_secs(7 * 24 * 60 * 60);
    assert_eq!(settings.retention, Some(week));
    assert_eq!((settings.min_in_sync, settings.copies), (1, 1));
}

/// The embedded broker knows no such question: asking costs the time limit, and no more.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_doesnt_tell_settings_costs_the_time_limit() {
    let broker = Broker::embedded();
    let topic = broker.topic(1).await;
    let asked_at = Instant::now();
    let limit = Duration::from_secs(1);
    let refused = topic_settings(&broker.settings, &[&topic], limit).await;
    assert_eq!(refused.unwrap_err().kind(), KafkaErrorKind::Other);
    assert!(asked_at.elapsed() < LIMIT / 2, "{:?}", asked_at.elapsed());
}
