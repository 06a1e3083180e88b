//! PostgreSQL that crashes and connections that are cut, with a relay, a consumer and its retrier at work: nothing is
//! lost, doubled or out of order.
#![expect(clippy::print_stdout, reason = "the times of recovery are to be seen")]

use factum::Service;
use factum_testing::TestDatabase;
use factum_testing::postgres::{PostgresBinaries, PostgresServer};
use factum_tests::workload::{Workload, assert_exact, consumer};
use factum_tests::{Entry, Running, Scene, entry_on_topic, migrated};

const CRASHES: usize = 3;
const CUTS: usize = 5;

async fn scene<E: Entry>(server: &PostgresServer) -> Scene {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_test_writer()
        .try_init();
    let broker = factum_testing::kafka();
    broker.create_topic(E::TOPIC, 3).await;
    let database = TestDatabase::create(server.url()).expect("a database for this test");
    Scene {
        database: migrated(database).await,
        broker,
    }
}

fn server() -> PostgresServer {
    let binaries = PostgresBinaries::find().expect("PostgreSQL on this machine");
    PostgresServer::start(&binaries).expect("a server of this test's own")
}

fn start<E: Entry>(scene: &Scene, name: &'static str) -> Running {
    let service = Service::builder(scene.config(&[]));
    Running::start(service.relay().consumer(consumer::<E>(name)))
}

entry_on_topic!(crashed, "outage.crashed");
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_crashes_at_work_loses_and_doubles_nothing() {
    let name = "test-crashed";
    let mut server = server();
    let scene = scene::<crashed::Posted>(&server).await;
    let running = start::<crashed::Posted>(&scene, name);
    let workload = Workload::start::<crashed::Posted>(&scene).await;
    for crash in 1..=CRASHES {
        workload.goes_on(&scene, name).await;
        tokio::task::block_in_place(|| {
            server.stop().expect("an immediate end");
            server.start_again().expect("a start on the same files");
        });
        let after = workload.goes_on(&scene, name).await;
        println!(
            "crash {crash}: work goes on {:.1} s after the start",
            after.as_secs_f64()
        );
    }
    let rounds = workload.stop().await;
    assert_exact(&scene, name, rounds).await;
    running.stop().await;
}

entry_on_topic!(cut, "outage.cut");
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_cut_again_and_again_lose_and_double_nothing() {
    let name = "test-cut";
    let server = server();
    let scene = scene::<cut::Posted>(&server).await;
    let running = start::<cut::Posted>(&scene, name);
    let workload = Workload::start::<cut::Posted>(&scene).await;
    for _ in 0..CUTS {
        workload.goes_on(&scene, name).await;
        scene
            .execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE datname = current_database() AND pid <> pg_backend_pid()",
            )
            .await;
    }
    let rounds = workload.stop().await;
    assert_exact(&scene, name, rounds).await;
    running.stop().await;
}
