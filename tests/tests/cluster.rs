//! A service on three brokers that fall: one, a leader, a coordinator, two, all. And members of a group that come, go
//! and have names.
#![expect(clippy::print_stdout, reason = "the times of recovery are to be seen")]

use std::sync::OnceLock;

use factum::{Consumer, Event, GroupProtocol, Relay, Service};
use factum_testing::cluster::KafkaCluster;
use factum_testing::kafka::KafkaServer;
use factum_testing::{TestBroker, eventually};
use factum_tests::workload::{Workload, assert_exact, consumer};
use factum_tests::{
    Entry as _, LIMIT, Recorder, Running, Scene, effects_of, entries, entry_on_topic,
    migrated_database,
};
use tokio::sync::RwLock;

/// A test that lets brokers fall has the cluster for itself.
static CLUSTER_AT_PEACE: RwLock<()> = RwLock::const_new(());

fn cluster() -> &'static KafkaCluster {
    static CLUSTER: OnceLock<KafkaCluster> = OnceLock::new();
    CLUSTER.get_or_init(|| KafkaCluster::start().expect("a cluster for these tests"))
}

async fn scene<E: Event>(partitions: u32) -> Scene {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_test_writer()
        .try_init();
    let broker = TestBroker::of(tokio::task::block_in_place(cluster));
    broker.create_topic(E::TOPIC, partitions).await;
    Scene {
        database: migrated_database().await,
        broker,
    }
}

/// The variables of a member in a protocol.
fn protocol(protocol: GroupProtocol) -> Vec<(&'static str, &'static str)> {
    let mut variables = vec![("FACTUM_GROUP_PROTOCOL", protocol.as_str())];
    if protocol == GroupProtocol::Consumer {
        variables.push(("KAFKA_CONSUMER_SESSION_TIMEOUT_MS", ""));
    }
    variables
}

/// Waits until no copy of a record is missing: only then may the next broker fall.
async fn until_in_sync(topic: &str) {
    eventually(LIMIT, "copies that have caught up", async || {
        tokio::task::block_in_place(|| {
            [topic, "__consumer_offsets"]
                .iter()
                .all(|topic| cluster().is_in_sync(topic).unwrap_or(false))
        })
    })
    .await;
}

/// The first answer that isn't an error.
async fn answer<T, E>(question: impl Fn() -> Result<T, E>) -> T {
    let mut found = None;
    eventually(LIMIT, "an answer of the cluster", async || {
        found = tokio::task::block_in_place(&question).ok();
        found.is_some()
    })
    .await;
    found.expect("it was waited for")
}

entry_on_topic!(falling, "cluster.falling");
#[tokio::test(flavor = "multi_thread")]
async fn work_goes_on_when_any_broker_a_leader_the_coordinator_or_all_fall() {
    let _alone = CLUSTER_AT_PEACE.write().await;
    let topic = falling::Posted::TOPIC;
    let scene = scene::<falling::Posted>(3).await;
    let both = [
        ("test-members-agree", GroupProtocol::Classic),
        ("test-brokers-decide", GroupProtocol::Consumer),
    ];
    let relay = scene.start_relay();
    let services =
        both.map(|(name, of)| scene.start_with(&protocol(of), [consumer::<falling::Posted>(name)]));
    let workload = Workload::start::<falling::Posted>(&scene).await;
    let coordinator = || cluster().coordinator(both[0].0);
    let leader = || cluster().leader(topic, 0).ok().flatten().ok_or(());
    for fault in ["any broker", "a leader", "the coordinator", "all brokers"] {
        for (name, _) in both {
            workload.goes_on(&scene, name).await;
        }
        until_in_sync(topic).await;
        let leader = answer(leader).await;
        let coordinator = answer(coordinator).await;
        let fallen = match fault {
            "any broker" => (0..cluster().nodes())
                .filter(|node| ![leader, coordinator].contains(node))
                .take(1)
                .collect(),
            "a leader" => vec![leader],
            "the coordinator" => vec![coordinator],
            _ => vec![0, 1, 2],
        };
        for node in &fallen {
            tokio::task::block_in_place(|| cluster().kill(*node)).expect("a node to kill");
        }
        if fallen.len() == cluster().nodes() {
            tokio::task::block_in_place(|| cluster().start_all_again(&fallen)).expect("a start");
        }
        for (name, _) in both {
            let after = workload.goes_on(&scene, name).await;
            println!(
                "{fault} down: {name} goes on after {:.1} s",
                after.as_secs_f64()
            );
        }
        if fallen.len() == 1 {
            tokio::task::block_in_place(|| cluster().start_again(fallen[0])).expect("a start");
        }
    }
    let rounds = workload.stop().await;
    for (name, _) in both {
        assert_exact(&scene, name, rounds).await;
    }
    until_in_sync(topic).await;
    for running in services.into_iter().chain([relay]) {
        running.stop().await;
    }
}

entry_on_topic!(lonely, "cluster.lonely");
#[tokio::test(flavor = "multi_thread")]
async fn with_two_of_three_brokers_down_nothing_is_published_or_set_aside() {
    let _alone = CLUSTER_AT_PEACE.write().await;
    let topic = lonely::Posted::TOPIC;
    let name = "test-lonely";
    let scene = scene::<lonely::Posted>(3).await;
    let relay = Relay::new();
    let stats = relay.stats();
    let running = Running::start(
        Service::builder(scene.config(&[]))
            .relay_with(relay)
            .consumer(consumer::<lonely::Posted>(name)),
    );
    let workload = Workload::start::<lonely::Posted>(&scene).await;
    workload.goes_on(&scene, name).await;
    let before = workload.stop().await;
    assert_exact(&scene, name, before).await;
    until_in_sync(topic).await;
    for node in [0, 1] {
        tokio::task::block_in_place(|| cluster().kill(node)).expect("a node to kill");
    }
    let published = stats.published();
    scene.execute("DROP TABLE written").await;
    let mut connection = scene.database.connect().await;
    for seq in before + 1..=before + 5 {
        for account in 0..12 {
            let entry = lonely::Posted::entry(&format!("a{account}"), seq, "");
            let now = time::OffsetDateTime::now_utc();
            factum::Outbox::new()
                .publish(&mut connection, entry.occurred_at(now))
                .await
                .expect("the database is there");
        }
    }
    // The relay has tried all of them, and failed.
    eventually(2 * LIMIT, "futile sends", async || {
        stats.failed() >= 60 || stats.producer_rebuilds() >= 2
    })
    .await;
    let unpublished = "SELECT count(*) FROM outbox WHERE published_at IS NULL";
    assert_eq!(scene.count(unpublished).await, 60);
    assert_eq!((stats.published(), stats.set_aside()), (published, 0));
    tokio::task::block_in_place(|| cluster().start_all_again(&[0, 1])).expect("a start");
    assert_exact(&scene, name, before + 5).await;
    assert_eq!(stats.set_aside(), 0);
    until_in_sync(topic).await;
    running.stop().await;
}

async fn order_holds_while_members_come_and_go<E: factum_tests::Entry>(of: GroupProtocol) {
    let _peace = CLUSTER_AT_PEACE.read().await;
    let name = match of {
        GroupProtocol::Classic => "test-come-and-go-classic",
        GroupProtocol::Consumer => "test-come-and-go-consumer",
    };
    let scene = scene::<E>(4).await;
    let relay = scene.start_relay();
    let workload = Workload::start::<E>(&scene).await;
    let join = || {
        let consumer = consumer::<E>(name);
        let stats = consumer.stats();
        (scene.start_with(&protocol(of), [consumer]), stats)
    };
    let mut members = vec![join()];
    for _ in 0..3 {
        members.push(join());
        eventually(LIMIT, "partitions for the new member", async || {
            members.iter().all(|(_, stats)| stats.lanes() == 2)
        })
        .await;
        workload.goes_on(&scene, name).await;
        members.remove(0).0.stop().await;
        eventually(
            LIMIT,
            "all partitions at the one that is left",
            async || members[0].1.lanes() == 4,
        )
        .await;
        workload.goes_on(&scene, name).await;
    }
    let rounds = workload.stop().await;
    assert_exact(&scene, name, rounds).await;
    for (running, _) in members {
        running.stop().await;
    }
    relay.stop().await;
}

entry_on_topic!(agreeing, "cluster.agreeing");
#[tokio::test(flavor = "multi_thread")]
async fn order_holds_while_members_come_and_go_that_agree_among_themselves() {
    order_holds_while_members_come_and_go::<agreeing::Posted>(GroupProtocol::Classic).await;
}

entry_on_topic!(deciding, "cluster.deciding");
#[tokio::test(flavor = "multi_thread")]
async fn order_holds_while_members_come_and_go_when_the_brokers_decide() {
    order_holds_while_members_come_and_go::<deciding::Posted>(GroupProtocol::Consumer).await;
}

entry_on_topic!(named, "cluster.named");
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_comes_back_under_its_name_disturbs_nobody() {
    let _peace = CLUSTER_AT_PEACE.read().await;
    let name = "test-named";
    let scene = scene::<named::Posted>(4).await;
    let join = |instance: &'static str| {
        let consumer = Consumer::named(name).handler::<named::Posted>(Recorder::of(name));
        let stats = consumer.stats();
        let variables = [
            ("FACTUM_INSTANCE", instance),
            ("KAFKA_CONSUMER_SESSION_TIMEOUT_MS", "45000"),
        ];
        (scene.start_with(&variables, [consumer]), stats)
    };
    let (first, stats) = join("test-0");
    let (second, seconds) = join("test-1");
    eventually(LIMIT, "two partitions each", async || {
        (stats.lanes(), seconds.lanes()) == (2, 2)
    })
    .await;
    let assigned = stats.assigned();
    second.stop().await;
    let (second, seconds) = join("test-1");
    eventually(LIMIT, "its partitions at once", async || {
        seconds.lanes() == 2
    })
    .await;
    for partition in 0..4 {
        let account = format!("a{partition}");
        scene
            .produce(partition, &entries::<named::Posted>(&account, 5))
            .await;
    }
    let all: Vec<String> = (0..4)
        .flat_map(|p| effects_of(&format!("a{p}"), 5))
        .collect();
    scene.await_effects(name, &all).await;
    assert_eq!(
        stats.assigned(),
        assigned,
        "the other one got nothing for a while"
    );
    assert_eq!(stats.lanes(), 2);
    first.stop().await;
    second.stop().await;
}

/// Two processes under one name: whichever the brokers throw out says so, and what to do.
async fn a_name_that_two_members_share_is_an_error<E: factum_tests::Entry>(of: GroupProtocol) {
    let _peace = CLUSTER_AT_PEACE.read().await;
    let name = match of {
        GroupProtocol::Classic => "test-shared-classic",
        GroupProtocol::Consumer => "test-shared-consumer",
    };
    let scene = scene::<E>(2).await;
    let mut variables = protocol(of);
    variables.push(("FACTUM_INSTANCE", "test-0"));
    let join = || {
        let consumer = Consumer::named(name).handler::<E>(Recorder::of(name));
        let stats = consumer.stats();
        (scene.start_with(&variables, [consumer]), stats)
    };
    let (first, stats) = join();
    eventually(LIMIT, "all partitions", async || stats.lanes() == 2).await;
    let (second, _) = join();
    let (thrown_out, left) = first.first_ended(second).await;
    let error = thrown_out
        .expect_err("one of them is thrown out")
        .to_string();
    assert!(
        error.contains("another process is in this group"),
        "{error}"
    );
    assert!(error.contains("FACTUM_INSTANCE"), "{error}");
    scene.produce(0, &entries::<E>("a", 3)).await;
    scene.await_effects(name, &effects_of("a", 3)).await;
    left.stop().await;
}

entry_on_topic!(shared, "cluster.shared");
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_two_members_share_is_an_error_when_they_agree() {
    a_name_that_two_members_share_is_an_error::<shared::Posted>(GroupProtocol::Classic).await;
}

entry_on_topic!(shared_too, "cluster.shared-too");
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_two_members_share_is_an_error_when_the_brokers_decide() {
    a_name_that_two_members_share_is_an_error::<shared_too::Posted>(GroupProtocol::Consumer).await;
}

entry_on_topic!(refused, "cluster.refused");
#[tokio::test(flavor = "multi_thread")]
async fn brokers_without_the_chosen_protocol_are_named() {
    let more = [("group.coordinator.rebalance.protocols", "classic")];
    let server = tokio::task::block_in_place(|| KafkaServer::start_with(&more));
    let server = server.expect("a broker without KIP-848");
    let broker = TestBroker::at(server.bootstrap());
    broker.create_topic(refused::Posted::TOPIC, 1).await;
    let scene = Scene {
        database: migrated_database().await,
        broker,
    };
    let name = "test-refused";
    let consumer = Consumer::named(name).handler::<refused::Posted>(Recorder::of(name));
    let running = scene.start_with(&protocol(GroupProtocol::Consumer), [consumer]);
    let error = running
        .ended()
        .await
        .expect_err("it can't join")
        .to_string();
    assert!(error.contains("FACTUM_GROUP_PROTOCOL"), "{error}");
    assert!(error.contains("do not speak"), "{error}");
}
