//! What stands in the headers, and what is made of them.

use factum_kafka::Headers;
use time::macros::datetime;

use super::*;

const NOW: OffsetDateTime = datetime!(2026-11-30 12:00 UTC);
const CONSUMER_NAME: &str = "billing-order-confirmed";

fn minutes(minutes: u64) -> Duration {
    Duration::from_mins(minutes)
}

fn topics(delays: &[Duration]) -> RetryTopics {
    RetryTopics::new(&["orders"], &Retry::topics(delays.iter().copied()))
}

fn record(topic: &str, headers: &[(&str, Option<&[u8]>)]) -> Record {
    Record {
        topic: topic.into(),
        partition: 3,
        offset: 7,
        key: Some(b"A-1".to_vec()),
        value: Some(b"{}".to_vec()),
        headers: headers.iter().copied().collect(),
        timestamp_ms: None,
    }
}

fn failed<'a>(record: &'a Record, attempts: u32, error: &'a str) -> Failed<'a> {
    Failed {
        record,
        consumer: CONSUMER_NAME,
        attempts,
        origin: ("orders", 3, 7),
        first_failure: NOW,
        at: NOW + minutes(1),
        error,
    }
}

/// The record that a hop sends, as the next topic's lane reads it.
fn arrived(hop: &Hop<'_>) -> Record {
    let headers: Headers = hop
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_deref()))
        .collect();
    Record {
        topic: hop.topic.into(),
        headers,
        ..hop.record.clone()
    }
}

#[test]
fn a_topic_is_named_by_its_delay_in_the_largest_whole_unit() {
    for (delay, name) in [
        (Duration::from_millis(1), "1ms"),
        (Duration::from_millis(1_500), "1500ms"),
        (Duration::from_secs(30), "30s"),
        (Duration::from_secs(60), "1m"),
        (Duration::from_secs(90), "90s"),
        (minutes(10), "10m"),
        (Duration::from_hours(2), "2h"),
        (Duration::from_mins(90), "90m"),
        (Duration::from_hours(24), "1d"),
        (Duration::from_hours(36), "36h"),
    ] {
        assert_eq!(in_words(delay), name);
    }
    let topics = RetryTopics::new(
        &["orders", "refunds"],
        &Retry::topics([minutes(1), minutes(10)]),
    );
    assert!(topics.names().eq([
        "orders.retry-1m",
        "orders.retry-10m",
        "refunds.retry-1m",
        "refunds.retry-10m"
    ]));
    let parking = RetryTopics::new(&["orders"], &Retry::park());
    assert_eq!(parking.names().count(), 0);
}

#[test]
fn case_41_fifty_hops_with_20_kb_of_error_are_as_small_as_one() {
    let topics = topics(&[minutes(1)]);
    let own = [
        ("event-id", Some(&b"id"[..])),
        ("twice", None),
        ("twice", Some(b"\xff\0")),
    ];
    let mut at = record("orders", &own);
    let first = bytes_of(&topics.hop(&failed(&at, 1, "short"), 0).unwrap().headers);
    for attempts in 1..=50 {
        let error = format!("{attempts} {}", "x\u{e4}".repeat(7_000));
        let hop = topics.hop(&failed(&at, attempts, &error), 0).unwrap();
        assert!(bytes_of(&hop.headers) < first + ERROR_BYTES + 10);
        at = arrived(&hop);
        assert_eq!(at.headers.len(), own.len() + HEADERS.len());
        assert_eq!(at.header(ATTEMPT), Some(attempts.to_string().as_bytes()));
        let told = text_of(&at, ERROR).unwrap();
        assert!(told.starts_with(&format!("{attempts} x")) && told.len() <= ERROR_BYTES);
    }
    let kept = at.headers.iter().take(own.len());
    assert!(
        kept.eq(own),
        "the event's own headers are untouched, in order"
    );
    assert_eq!(text_of(&at, FIRST_FAILURE), Some("2026-11-30T12:00:00Z"));
    assert_eq!(text_of(&at, NOT_BEFORE), Some("2026-11-30T12:02:00Z"));
    assert_eq!(topics.own_headers(&at).len(), own.len());
}

#[test]
fn a_hop_leads_back_to_where_the_event_was_published() {
    let topics = topics(&[minutes(1), minutes(10)]);
    let at = record("orders", &[]);
    assert_eq!(topics.journey(&at), None);
    let first = arrived(&topics.hop(&failed(&at, 1, "e"), 0).unwrap());
    let second = arrived(&topics.hop(&failed(&first, 2, "e"), 1).unwrap());
    for (record, attempts) in [(&first, 1), (&second, 2)] {
        let journey = topics.journey(record).unwrap();
        assert_eq!(journey.attempts, attempts);
        assert_eq!(journey.first_failure, Some(NOW));
        let origin = journey.origin.unwrap();
        let place = (origin.topic.as_str(), origin.partition, origin.offset);
        assert_eq!(place, ("orders", 3, 7));
        assert_eq!(
            topics.addressee(record, CONSUMER_NAME),
            Addressee::ThisConsumer
        );
        assert_eq!(
            topics.addressee(record, "mailing"),
            Addressee::AnotherConsumer
        );
    }
    assert_eq!(&*second.topic, "orders.retry-10m");
}

#[test]
fn headers_of_another_language_may_be_missing_or_senseless() {
    let topics = topics(&[minutes(1), minutes(10)]);
    let journey = |headers: &[(&str, Option<&[u8]>)]| {
        let record = record("orders.retry-10m", headers);
        topics.journey(&record).unwrap()
    };
    let bare = journey(&[]);
    assert_eq!(
        bare.attempts, 2,
        "it was tried before it came to the second"
    );
    assert_eq!((bare.first_failure, bare.origin), (None, None));
    // A count that begins with 0, and others: none leads back to a topic that it has been in.
    for (attempt, attempts) in [
        ("0", 2),
        ("1", 2),
        ("-1", 2),
        ("", 2),
        ("x", 2),
        ("4294967296", 2),
        (" 5 ", 5),
    ] {
        let found = journey(&[(ATTEMPT, Some(attempt.as_bytes()))]);
        assert_eq!(found.attempts, attempts, "{attempt:?}");
    }
    let origin = |topic: &str, partition: &str, offset: &str| {
        let headers = [
            (ORIGINAL_TOPIC, Some(topic.as_bytes())),
            (ORIGINAL_PARTITION, Some(partition.as_bytes())),
            (ORIGINAL_OFFSET, Some(offset.as_bytes())),
        ];
        journey(&headers).origin.map(|origin| origin.topic)
    };
    assert_eq!(origin("orders", "0", "0").as_deref(), Some("orders"));
    assert_eq!(
        origin("orders.retry-1m", "0", "0").as_deref(),
        Some("orders.retry-1m")
    );
    assert_eq!(origin("refunds", "0", "0"), None, "not this one's topic");
    assert_eq!(origin("orders", "-1", "0"), None);
    assert_eq!(origin("orders", "0", "-1"), None);
    assert_eq!(origin("orders", "0", "1.5"), None);
    let nobodys = record("orders.retry-10m", &[(CONSUMER, None)]);
    assert_eq!(
        topics.addressee(&nobodys, CONSUMER_NAME),
        Addressee::Anyone,
        "a name without a value"
    );
}

#[test]
fn nobody_waits_longer_than_the_delay() {
    let topics = topics(&[minutes(10)]);
    let topic = topics.find("orders.retry-10m").unwrap();
    let due = |not_before: &str, written: Option<OffsetDateTime>| {
        let headers = [(NOT_BEFORE, Some(not_before.as_bytes()))];
        let mut record = record("orders.retry-10m", &headers);
        record.timestamp_ms = written.map(|at| at.unix_timestamp() * 1_000);
        topic.due(&record, NOW)
    };
    let early = NOW - minutes(60);
    assert_eq!(due("2026-11-30T12:05:00Z", Some(NOW)), NOW + minutes(5));
    assert_eq!(due("2026-11-30T13:05:00+01:00", None), NOW + minutes(5));
    assert_eq!(due("2026-11-30T11:00:00Z", None), early, "at once");
    // After the record's own time, and after its arrival where that is later or missing.
    let written = NOW - minutes(7);
    let capped = due("2999-01-01T00:00:00Z", Some(written));
    assert_eq!(capped, written + minutes(10));
    assert_eq!(due("2999-01-01T00:00:00Z", None), NOW + minutes(10));
    let of_the_future = NOW + minutes(1_000_000);
    assert_eq!(
        due("2999-01-01T00:00:00Z", Some(of_the_future)),
        NOW + minutes(10)
    );
    for unreadable in ["", "tomorrow", "1764504000000"] {
        assert_eq!(due(unreadable, Some(NOW)), NOW, "{unreadable:?}");
    }
    assert_eq!(topic.due(&record("orders.retry-10m", &[]), NOW), NOW);
}

#[test]
fn what_does_not_fit_with_the_headers_of_a_retry_goes_nowhere() {
    let topics = topics(&[minutes(1)]);
    let mut at = record("orders", &[]);
    at.value = Some(vec![b' '; MESSAGE_MAX_BYTES - 2_000]);
    assert!(topics.hop(&failed(&at, 1, "e"), 0).is_some());
    at.value = Some(vec![b' '; MESSAGE_MAX_BYTES - 1_000]);
    assert!(topics.hop(&failed(&at, 1, "e"), 0).is_none());
    let larger = RetryTopics::new(&["orders"], &Retry::topics([minutes(1)]))
        .with_message_max_bytes(Some(&"2000000".to_owned()));
    assert!(larger.hop(&failed(&at, 1, "e"), 0).is_some());

    let many = vec![("h", None); HEADERS_MAX - HEADERS.len() + 1];
    let at = record("orders", &many);
    assert!(topics.hop(&failed(&at, 1, "e"), 0).is_none());
    let at = record("orders", &many[1..]);
    assert!(topics.hop(&failed(&at, 1, "e"), 0).is_some());
    let long = vec![b' '; HEADER_BYTES_MAX - 100];
    let at = record("orders", &[("h", Some(&long))]);
    assert!(topics.hop(&failed(&at, 1, "e"), 0).is_none());
}

#[test]
fn a_policy_that_cant_be_is_a_problem_of_rtry_1() {
    let millis = Duration::from_millis;
    let one_too_many = (1..=9).map(minutes);
    for wrong in [
        Retry::topics([]),
        Retry::topics(one_too_many),
        Retry::topics([minutes(10), minutes(1)]),
        Retry::topics([minutes(1), minutes(1)]),
        Retry::topics([Duration::ZERO, minutes(1)]),
        Retry::topics([Duration::from_micros(1_500)]),
    ] {
        let problems = problems(CONSUMER_NAME, &wrong);
        assert_eq!(problems.len(), 1, "{wrong:?}");
        assert_eq!(problems[0].rule(), "RTRY-1");
        assert!(problems[0].place().contains(CONSUMER_NAME));
    }
    let eight = Retry::topics((1..=8).map(minutes));
    for right in [eight, Retry::topics([millis(1)]), Retry::park()] {
        assert_eq!(problems(CONSUMER_NAME, &right), []);
    }
}
