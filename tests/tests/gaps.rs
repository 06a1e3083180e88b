//! Where a group begins, and records that are gone before they were read: on Apache Kafka, in both group
//! protocols. Nothing is ever skipped in silence.

use factum::{Consumer, GapPolicy, GroupProtocol, StartAt};
use factum_testing::eventually;
use factum_tests::{Entry, LIMIT, On, Recorder, Running, Scene, effects_of, entries};

/// A test in both protocols, with a topic of its own in each: once the members agree among themselves,
/// once the brokers decide.
macro_rules! in_both_protocols {
    ($($name:ident: $classic:literal, $consumer:literal;)*) => {$(
        mod $name {
            factum_tests::entry_on_topic!(classic, $classic);
            factum_tests::entry_on_topic!(consumer, $consumer);

            #[tokio::test(flavor = "multi_thread")]
            async fn members_agree() {
                super::$name::<classic::Posted>(factum::GroupProtocol::Classic).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn brokers_decide() {
                super::$name::<consumer::Posted>(factum::GroupProtocol::Consumer).await;
            }
        }
    )*};
}

in_both_protocols! {
    records_dropped_before_they_were_read_stop_the_consumer_by_name: "gap.stop.classic", "gap.stop.consumer";
    with_the_policy_earliest_it_goes_on_behind_the_gap_and_counts_it: "gap.earliest.classic", "gap.earliest.consumer";
    case_36_a_topic_deleted_while_it_is_read_is_named: "gap.deleted.classic", "gap.deleted.consumer";
    a_topic_made_anew_with_more_records_than_were_read_stops_the_consumer: "gap.anew.classic", "gap.anew.consumer";
    with_the_policy_earliest_a_topic_made_anew_is_read_from_its_first_record: "gap.again.classic", "gap.again.consumer";
    partitions_that_are_added_are_read_from_their_first_record: "gap.added.classic", "gap.added.consumer";
    a_group_that_began_at_the_end_does_not_jump_at_its_next_start: "gap.latest.classic", "gap.latest.consumer";
}

const NAME: &str = "test-gap";

fn consumer<E: Entry>() -> Consumer {
    Consumer::named(NAME).handler::<E>(Recorder::of(NAME))
}

fn start(scene: &Scene, protocol: GroupProtocol, consumer: Consumer) -> Running {
    let mut variables = vec![
        ("FACTUM_GROUP_PROTOCOL", protocol.as_str()),
        // New partitions are found so soon, and topics that are gone.
        ("KAFKA_CONSUMER_TOPIC_METADATA_REFRESH_INTERVAL_MS", "500"),
    ];
    if protocol == GroupProtocol::Consumer {
        variables.push(("KAFKA_CONSUMER_SESSION_TIMEOUT_MS", ""));
    }
    scene.start_with(&variables, [consumer])
}

/// A group name of each test's own: the tests share a Kafka.
fn group<E: Entry>() -> String {
    format!("test-{}", E::TOPIC.replace('.', "-"))
}

async fn error_of(running: Running) -> String {
    let ended = running.ended().await;
    ended.expect_err("the consumer stops").to_string()
}

/// Entries from one number to another.
fn span<E: Entry>(account: &str, from: u64, to: u64) -> Vec<E> {
    (from..=to).map(|seq| E::entry(account, seq, "")).collect()
}

/// Five records that were read, and 5 to 9 of five to twenty that nobody will read.
async fn scene_with_a_gap<E: Entry>(protocol: GroupProtocol) -> Scene {
    let scene = Scene::new::<E>(On::Kafka, 1).await;
    let running = start(&scene, protocol, consumer::<E>().group(group::<E>()));
    scene.produce(0, &span::<E>("a", 1, 5)).await;
    scene.await_committed(&group::<E>(), E::TOPIC, 0, 5).await;
    running.stop().await;
    scene.produce(0, &span::<E>("a", 6, 20)).await;
    scene.broker.delete_records(E::TOPIC, 0, 10).await;
    scene
}

async fn records_dropped_before_they_were_read_stop_the_consumer_by_name<E: Entry>(
    protocol: GroupProtocol,
) {
    let scene = scene_with_a_gap::<E>(protocol).await;
    // At every start, until somebody decides.
    for _ in 0..2 {
        let error = error_of(start(&scene, protocol, consumer::<E>().group(group::<E>()))).await;
        let gone = format!("the records 5 to 9 of `{}`/0 are gone", E::TOPIC);
        assert!(error.contains(&gone), "{error}");
        assert!(error.contains(&group::<E>()), "{error}");
        assert!(error.contains("GapPolicy::Earliest"), "{error}");
    }
    assert_eq!(scene.effects(NAME).await, effects_of("a", 5));
    assert_eq!(scene.broker.committed(&group::<E>(), E::TOPIC).await[&0], 5);
}

async fn with_the_policy_earliest_it_goes_on_behind_the_gap_and_counts_it<E: Entry>(
    protocol: GroupProtocol,
) {
    let scene = scene_with_a_gap::<E>(protocol).await;
    let consumer = consumer::<E>()
        .group(group::<E>())
        .on_gap(GapPolicy::Earliest);
    let stats = consumer.stats();
    let running = start(&scene, protocol, consumer);
    let mut expected = effects_of("a", 20);
    expected.drain(5..10);
    scene.await_effects(NAME, &expected).await;
    assert_eq!(stats.gaps(), 1);
    running.stop().await;
}

async fn case_36_a_topic_deleted_while_it_is_read_is_named<E: Entry>(protocol: GroupProtocol) {
    let scene = Scene::new::<E>(On::Kafka, 2).await;
    let running = start(&scene, protocol, consumer::<E>().group(group::<E>()));
    scene.produce(0, &entries::<E>("a", 3)).await;
    scene.await_effects(NAME, &effects_of("a", 3)).await;
    scene.broker.delete_topic(E::TOPIC).await;
    let error = error_of(running).await;
    let gone = format!("`{}` was deleted while it was read", E::TOPIC);
    assert!(error.contains(&gone), "{error}");
}

/// Deletes the topic and makes it again at once, with ten records of another account in it.
async fn make_anew<E: Entry>(scene: &Scene) {
    scene.broker.delete_topic(E::TOPIC).await;
    scene.broker.create_topic(E::TOPIC, 1).await;
    scene.produce(0, &entries::<E>("new", 10)).await;
}

async fn a_topic_made_anew_with_more_records_than_were_read_stops_the_consumer<E: Entry>(
    protocol: GroupProtocol,
) {
    let scene = Scene::new::<E>(On::Kafka, 1).await;
    let running = start(&scene, protocol, consumer::<E>().group(group::<E>()));
    scene.produce(0, &entries::<E>("old", 3)).await;
    scene.await_committed(&group::<E>(), E::TOPIC, 0, 3).await;
    make_anew::<E>(&scene).await;
    let error = error_of(running).await;
    assert!(error.contains(E::TOPIC), "{error}");
    assert!(
        error.contains("is not what it was") || error.contains("was deleted"),
        "{error}"
    );
    // The next start reads the new topic whole: the group's offset went with the old one.
    let running = start(&scene, protocol, consumer::<E>().group(group::<E>()));
    let expected = [effects_of("old", 3), effects_of("new", 10)].concat();
    scene.await_effects(NAME, &expected).await;
    running.stop().await;
}

async fn with_the_policy_earliest_a_topic_made_anew_is_read_from_its_first_record<E: Entry>(
    protocol: GroupProtocol,
) {
    let scene = Scene::new::<E>(On::Kafka, 1).await;
    let consumer = consumer::<E>()
        .group(group::<E>())
        .on_gap(GapPolicy::Earliest);
    let running = start(&scene, protocol, consumer);
    scene.produce(0, &entries::<E>("old", 3)).await;
    scene.await_committed(&group::<E>(), E::TOPIC, 0, 3).await;
    make_anew::<E>(&scene).await;
    let expected = [effects_of("old", 3), effects_of("new", 10)].concat();
    scene.await_effects(NAME, &expected).await;
    running.stop().await;
}

async fn partitions_that_are_added_are_read_from_their_first_record<E: Entry>(
    protocol: GroupProtocol,
) {
    let scene = Scene::new::<E>(On::Kafka, 1).await;
    scene.produce(0, &entries::<E>("old", 3)).await;
    let consumer = consumer::<E>()
        .group(group::<E>())
        .start_at(StartAt::Latest);
    let running = start(&scene, protocol, consumer);
    scene.await_committed(&group::<E>(), E::TOPIC, 0, 3).await;
    scene.broker.add_partitions(E::TOPIC, 3).await;
    // They are there before the consumer knows of the partitions.
    scene.produce(1, &entries::<E>("b", 4)).await;
    scene.produce(2, &entries::<E>("c", 4)).await;
    let expected = [effects_of("b", 4), effects_of("c", 4)].concat();
    scene.await_effects(NAME, &expected).await;
    running.stop().await;
}

async fn a_group_that_began_at_the_end_does_not_jump_at_its_next_start<E: Entry>(
    protocol: GroupProtocol,
) {
    let scene = Scene::new::<E>(On::Kafka, 2).await;
    scene.produce(0, &entries::<E>("old", 3)).await;
    let latest = || {
        consumer::<E>()
            .group(group::<E>())
            .start_at(StartAt::Latest)
    };
    let running = start(&scene, protocol, latest());
    for (partition, end) in [(0, 3), (1, 0)] {
        scene
            .await_committed(&group::<E>(), E::TOPIC, partition, end)
            .await;
    }
    running.stop().await;
    scene.produce(0, &entries::<E>("a", 4)).await;
    scene.produce(1, &entries::<E>("b", 4)).await;
    let running = start(&scene, protocol, latest());
    let expected = [effects_of("a", 4), effects_of("b", 4)].concat();
    scene.await_effects(NAME, &expected).await;
    eventually(LIMIT, "both offsets", async || {
        let committed = scene.broker.committed(&group::<E>(), E::TOPIC).await;
        committed.get(&0) == Some(&7) && committed.get(&1) == Some(&4)
    })
    .await;
    running.stop().await;
}
