//! Values survive the way between the languages, in both directions.

use std::collections::BTreeMap;

use factum::sqlx::Connection as _;
use factum::{Decoded, Envelope, Event as _, Outbox, Registry, Relay, Service};
use factum_tests::{LIMIT, On, Running, Scene, envelope, factum_testing::eventually};
use serde_json::Value;

use crate::project::Project;
use crate::sample::{Arbitrary, SampleTaken, told};

const EVENTS: usize = 1_000;

/// The runs of a test share a topic; this tells theirs apart.
fn run() -> String {
    factum::new_event_id().to_string()
}

fn by_id(told: impl IntoIterator<Item = Value>) -> BTreeMap<String, Value> {
    told.into_iter()
        .map(|value| (value["eventId"].to_string(), value))
        .collect()
}

/// Compared field by field, so that a failure names the field.
fn assert_equal(found: &BTreeMap<String, Value>, wanted: &BTreeMap<String, Value>, seed: u64) {
    for (id, wanted) in wanted {
        let found = &found[id];
        let names =
            |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
        assert_eq!(names(found), names(wanted), "fields of {id}, seed {seed}");
        for name in names(wanted) {
            let (found, wanted) = (&found[&name], &wanted[&name]);
            if name == "ratio" {
                // JavaScript has one kind of numbers, and writes 1.0 as 1.
                assert_eq!(
                    found.as_f64(),
                    wanted.as_f64(),
                    "{name} of {id}, seed {seed}"
                );
            } else {
                assert_eq!(found, wanted, "{name} of {id}, seed {seed}");
            }
        }
    }
    assert_eq!(found.len(), wanted.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_events_from_rust_are_read_by_zod_with_equal_values() {
    let project = Project::built();
    let scene = Scene::new::<SampleTaken>(On::Kafka, 3).await;
    let (run, seed) = (run(), fastrand::u64(..));
    let mut arbitrary = Arbitrary::of(seed);
    let samples: Vec<Envelope<SampleTaken>> = (0..EVENTS)
        .map(|place| envelope(arbitrary.sample(format!("{run}-{place}"))))
        .collect();

    let mut connection = scene.database.connect().await;
    let mut tx = connection.begin().await.unwrap();
    for sample in &samples {
        Outbox::new()
            .publish(&mut tx, sample.clone())
            .await
            .unwrap();
    }
    tx.commit().await.unwrap();
    connection.close().await.unwrap();
    let relay = Relay::new().cloud_events("/samples").unwrap();
    let relay = Running::start(Service::builder(scene.config(&[])).relay_with(relay));
    eventually(LIMIT, "every row is published", async || {
        scene
            .count("SELECT count(*) FROM outbox WHERE published_at IS NULL")
            .await
            == 0
    })
    .await;
    relay.stop().await;

    let brokers = scene.broker.bootstrap();
    let count = EVENTS.to_string();
    let lines = project.run("read.js", &[&brokers, SampleTaken::TOPIC, &run, &count]);
    let wanted = by_id(samples.iter().map(told));
    let mut by_release = BTreeMap::<String, Vec<Value>>::new();
    let mut cloud_events = BTreeMap::new();
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        if let Some(attributes) = line.get("cloudEvent") {
            cloud_events.insert(attributes["id"].to_string(), attributes.clone());
            continue;
        }
        let release = line["zod"].to_string();
        by_release
            .entry(release)
            .or_default()
            .push(line["event"].clone());
    }
    assert_eq!(by_release.len(), 2, "zod 3 and zod 4");
    for found in by_release.into_values() {
        assert_equal(&by_id(found), &wanted, seed);
    }
    for (id, wanted) in &wanted {
        let found = &cloud_events[id];
        assert_eq!(found["specversion"], "1.0");
        assert_eq!(found["type"], wanted["eventType"]);
        assert_eq!(found["source"], "/samples");
        assert_eq!(found["subject"], wanted["aggregateId"]);
        assert_eq!(found["datacontenttype"], "application/json");
        // JavaScript's times have milliseconds.
        let to_millisecond = |time: &Value| {
            let text = time.as_str().unwrap().trim_end_matches('Z').to_owned();
            let (seconds, fraction) = text.split_once('.').unwrap_or((&text, ""));
            format!("{seconds}.{:0<3.3}", fraction)
        };
        assert_eq!(
            to_millisecond(&found["time"]),
            to_millisecond(&wanted["occurredAt"])
        );
    }
    assert_eq!(cloud_events.len(), wanted.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_events_from_node_are_read_by_rust_with_equal_values() {
    let project = Project::built();
    let scene = Scene::new::<SampleTaken>(On::Kafka, 3).await;
    let (run, seed) = (run(), u64::from(fastrand::u32(..)));
    let brokers = scene.broker.bootstrap();
    let (count, seed_text) = (EVENTS.to_string(), seed.to_string());
    let lines = project.run(
        "write.js",
        &[&brokers, SampleTaken::TOPIC, &run, &count, &seed_text],
    );
    let wanted = by_id(
        lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap()),
    );
    assert_eq!(wanted.len(), EVENTS);

    let registry = Registry::new().with::<SampleTaken>();
    let mut found = Vec::new();
    for record in scene.broker.records(SampleTaken::TOPIC).await {
        if !record
            .key
            .as_ref()
            .is_some_and(|key| key.starts_with(run.as_bytes()))
        {
            continue;
        }
        match registry.decode(record.value.as_deref()) {
            Decoded::Event(event) => {
                found.push(told(event.downcast_ref::<SampleTaken>().unwrap()));
            }
            other => panic!("{other:?}, seed {seed}"),
        }
    }
    assert_equal(&by_id(found), &wanted, seed);
}

/// That a wrong pair doesn't compile, `@ts-expect-error` says in the program: a pair that did would be an error.
#[test]
fn a_registry_has_each_schema_under_its_own_event_type() {
    Project::built().run("registries.js", &[]);
}

#[test]
fn json_schemas_and_asyncapi_pass_the_tools_of_their_formats() {
    let vectors = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/conformance/order-confirmed.json"
    );
    Project::built().run("schemas.js", &[vectors]);
}

/// Values that are right in some places and wrong in most, as JSON texts.
const ODD: &[&str] = &[
    "null",
    "true",
    "0",
    "-0",
    "1",
    "-1",
    "5.0",
    "6",
    "1e1",
    "1.5",
    "255",
    "256",
    "65536",
    "1e400",
    "1e-400",
    "1e18",
    "999999999999999999.5",
    "1e-38",
    "1e-39",
    "9007199254740991",
    "9007199254740993",
    "18446744073709551616",
    "0.1000000000000000055511151231257827",
    "123456789012345678901234567890123456789",
    "0.01",
    "99.99",
    r#""""#,
    r#""a""#,
    r#""abcd""#,
    r#""\u0000""#,
    r#""\ud800""#,
    r#""0""#,
    r#""-0""#,
    r#""01""#,
    r#""1e2""#,
    r#""1 ""#,
    r#""+1""#,
    r#""0x1""#,
    r#""NaN""#,
    r#""18446744073709551615""#,
    r#""ABC-0123""#,
    r#""ABC-01234""#,
    r#""abc-0123""#,
    r#""ABC-0123\n""#,
    r#""DE""#,
    r#""de""#,
    r#""UK""#,
    r#""EUR""#,
    r#""web""#,
    r#""refunded_v2""#,
    r#""2026-02-30""#,
    r#""2026-02-28""#,
    r#""0000-01-01""#,
    r#""2026-06-01T12:00:00+05:30""#,
    r#""2026-06-01T23:59:60Z""#,
    r#""0001-01-01T00:00:00+00:01""#,
    r#""2026-06-01T12:00:00.1234567Z""#,
    r#""01935C3E-7C1A-7000-8000-000000000001""#,
    r#""01935c3e-7c1a-7000-c000-000000000001""#,
    r#""00000000-0000-0000-0000-000000000000""#,
    "[]",
    "[null]",
    "[true,false,true]",
    "{}",
    r#"{"a":null}"#,
    r#"{"a":"1"}"#,
    r#"{"amount":"1.50","currency":"EUR"}"#,
    r#"{"amount":1,"currency":"eur"}"#,
    r#"{"isLosslessNumber":true,"value":"5"}"#,
    r#"{"label":"","branches":[{"label":"x","branches":[]}]}"#,
];

/// Puts a mark into a place of the event, or takes the place away; gives whether it was to be found.
fn change(value: &mut Value, random: &mut fastrand::Rng, mark: &str) {
    let deeper = random.u8(..3) > 0;
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let names: Vec<String> = fields.keys().cloned().collect();
            let name = &names[random.usize(..names.len())];
            let is_open = matches!(&fields[name], Value::Object(_) | Value::Array(_));
            if deeper && is_open {
                change(&mut fields[name], random, mark);
            } else if random.u8(..8) == 0 {
                fields.remove(name);
            } else {
                fields.insert(name.clone(), mark.into());
            }
        }
        Value::Array(items) if !items.is_empty() => {
            let place = random.usize(..items.len());
            if deeper && matches!(&items[place], Value::Object(_) | Value::Array(_)) {
                change(&mut items[place], random, mark);
            } else {
                items[place] = mark.into();
            }
        }
        value => *value = mark.into(),
    }
}

#[test]
fn changed_events_get_the_same_verdict_from_rust_and_from_zod() {
    const MARK: &str = "@mark@";
    const CHANGED: usize = 4_000;
    let seed = fastrand::u64(..);
    let (mut arbitrary, mut random) = (Arbitrary::of(seed), fastrand::Rng::with_seed(seed));
    let registry = Registry::new().with::<SampleTaken>();
    let mut records = Vec::new();
    let mut wanted = Vec::new();
    let mut events = 0;
    for _ in 0..CHANGED {
        let event = envelope(arbitrary.sample("A-1".to_owned()));
        let mut value: Value = serde_json::from_slice(&event.encode().unwrap()).unwrap();
        change(&mut value, &mut random, MARK);
        let odd = ODD[random.usize(..ODD.len())];
        let text = value.to_string().replace(&format!("\"{MARK}\""), odd);
        wanted.push(match registry.decode(Some(text.as_bytes())) {
            Decoded::Event(_) => {
                events += 1;
                "event".to_owned()
            }
            Decoded::Poison(poison) => poison.reason().to_string(),
            Decoded::Unknown { .. } => "unknown".to_owned(),
            Decoded::Tombstone => unreachable!("there is a value"),
        });
        records.push(text);
    }
    // Both sides of the border are visited.
    assert!(
        (CHANGED / 20..CHANGED * 19 / 20).contains(&events),
        "{events}"
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    let lines: Vec<String> = records.iter().map(|text| base64(text.as_bytes())).collect();
    std::fs::write(file.path(), lines.join("\n")).unwrap();
    let told = Project::built().run("verdicts.js", &[file.path().to_str().unwrap()]);
    let told: Vec<Vec<String>> = told
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(told.len(), wanted.len());
    for ((text, wanted), told) in records.iter().zip(&wanted).zip(&told) {
        for verdict in told {
            let (reason, _) = verdict.split_once(" at ").unwrap_or((verdict, ""));
            // Of U+0000 the verdict is the same, and the reason that of whichever check meets it first.
            let is_same = reason == wanted
                || (text.contains("\\u0000") && reason != "event" && wanted != "event");
            assert!(is_same, "{verdict}, not {wanted}, seed {seed}: {text}");
        }
    }
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
