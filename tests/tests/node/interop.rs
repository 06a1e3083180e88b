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

#[test]
fn json_schemas_and_asyncapi_pass_the_tools_of_their_formats() {
    let vectors = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/conformance/order-confirmed.json"
    );
    Project::built().run("schemas.js", &[vectors]);
}
