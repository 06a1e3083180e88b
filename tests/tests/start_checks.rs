//! What a service says when it can't start: what is wrong, where, and what to do.

use std::net::TcpListener;
use std::time::Duration;

use factum::sqlx::{self, Connection as _};
use factum::{
    Config, Consumer, Event as _, ForeignIds, Outbox, Problem, Profile, Service, ServiceBuilder,
    ServiceError,
};
use factum_runtime::doctor::{Examination, Verdict, examine};
use factum_testing::eventually;
use factum_tests::{
    Entry as _, LIMIT, On, Recorder, Running, Scene, effects_of, entry_on_topic, envelope,
    on_both_brokers,
};

entry_on_topic!(there, "t.start.there");
entry_on_topic!(missing, "t.start.missing", "account.closed.v1", Closed);
entry_on_topic!(stage, "t.start.stage");
entry_on_topic!(created, "t.start.created");
entry_on_topic!(forbidden, "t.start.forbidden");
entry_on_topic!(horizon, "t.start.horizon");

on_both_brokers!(case_36_a_missing_topic_is_named);

const NAME: &str = "test-start";

fn reader(name: &str) -> Consumer {
    Consumer::named(name).handler::<there::Posted>(Recorder::of(NAME))
}

/// Starts, expects a refusal, and gives what the checks found.
async fn refused(service: ServiceBuilder) -> Vec<Problem> {
    let started = service.run_until(std::future::pending());
    match tokio::time::timeout(LIMIT, started).await {
        Ok(Err(ServiceError::Start(problems))) => problems,
        other => panic!("expected a refused start, found {other:?}"),
    }
}

#[track_caller]
fn assert_reads(problem: &Problem, rule: &str, what: &str, place: &str, mend: &str) {
    assert_eq!(problem.rule(), rule, "{problem}");
    assert!(problem.what().contains(what), "{problem}");
    assert!(problem.place().contains(place), "{problem}");
    assert!(problem.mend().contains(mend), "{problem}");
}

#[track_caller]
fn only(problems: &[Problem]) -> &Problem {
    assert_eq!(problems.len(), 1, "{problems:#?}");
    &problems[0]
}

/// An address of this machine at which nobody listens.
fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener
        .local_addr()
        .expect("it has an address")
        .to_string()
}

async fn case_36_a_missing_topic_is_named(on: On) {
    let scene = Scene::new::<there::Posted>(on, 2).await;
    let consumer = Consumer::named("test-missing")
        .handler::<there::Posted>(Recorder::of("test-missing"))
        .handler::<missing::Closed>(Recorder::of("test-missing"));
    let service = Service::builder(scene.config(&[])).consumer(consumer);
    let problems = refused(service).await;
    assert_reads(
        only(&problems),
        "CFG-4",
        "the topic `t.start.missing` does not exist",
        "consumer `test-missing` reads it",
        "--create --topic t.start.missing",
    );
    assert!(only(&problems).place().contains(&scene.broker.bootstrap()));
    assert!(only(&problems).mend().contains(&scene.broker.bootstrap()));

    // The check itself made no topic, and without the missing one the service does its work.
    assert_eq!(
        refused(
            Service::builder(scene.config(&[]))
                .publishes::<missing::Closed>()
                .relay()
        )
        .await
        .len(),
        1
    );
    scene.produce(0, &[there::Posted::entry("a", 1, "")]).await;
    let running = scene.start([reader(NAME)]);
    scene.await_effects(NAME, &effects_of("a", 1)).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_migrations_were_not_run() {
    let scene = Scene::new::<there::Posted>(On::Embedded, 1).await;
    let empty = factum_testing::database();
    let config = scene.config(&[("DATABASE_URL", empty.url())]);
    let problems = refused(Service::builder(config).consumer(reader(NAME))).await;
    assert!(!problems.is_empty());
    for problem in &problems {
        let place = empty.name();
        assert_reads(
            problem,
            "OBX-X3",
            "isn't applied",
            place,
            "factum migrate up",
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_does_not_deduplicate_is_refused() {
    let scene = Scene::new::<there::Posted>(On::Embedded, 1).await;
    scene
        .execute(
            "DROP TABLE processed_event;
             CREATE TABLE processed_event (
                 event_id uuid NOT NULL, consumer_group text NOT NULL,
                 processed_at timestamptz NOT NULL DEFAULT now(),
                 PRIMARY KEY (event_id, processed_at)) PARTITION BY RANGE (processed_at);",
        )
        .await;
    let problems = refused(Service::builder(scene.config(&[])).consumer(reader(NAME))).await;
    assert!(
        problems
            .iter()
            .any(|p| p.rule() == "IDEM-2" && p.what().contains("processed_event")),
        "{problems:#?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_limits_are_checked() {
    let scene = Scene::new::<there::Posted>(On::Embedded, 1).await;
    let config = || scene.config(&[("KAFKA_CONSUMER_MAX_POLL_INTERVAL_MS", "20000")]);
    let service = Service::builder(config())
        .consumer(reader("test-twice"))
        .consumer(reader("test-twice"))
        .consumer(reader("start"))
        .consumer(reader("test-Start"))
        .consumer(reader("test-"))
        .consumer(Consumer::named("test-idle"))
        .consumer(reader("test-two").handler::<there::Posted>(Recorder::of(NAME)))
        .consumer(reader("test-slow").handler_timeout(Duration::from_secs(20)))
        .create_topics(0);
    let problems = refused(service).await;
    let found = |place: &str| {
        let mut of_place = problems
            .iter()
            .filter(|p| p.place() == place && p.rule() != "CONS-6");
        of_place
            .next()
            .unwrap_or_else(|| panic!("{place} in {problems:#?}"))
    };
    assert_reads(
        found("consumer `test-twice`"),
        "CONS-1",
        "the same name",
        "",
        "its own name",
    );
    assert_reads(
        found("consumer `start`"),
        "CONS-1",
        "does not begin with its service's, `test-`",
        "",
        "test-order-confirmed",
    );
    assert_reads(
        found("consumer `test-Start`"),
        "CONS-1",
        "not lower-case kebab",
        "",
        "",
    );
    assert_reads(
        found("consumer `test-`"),
        "CONS-1",
        "not lower-case kebab",
        "",
        "",
    );
    assert_reads(
        found("consumer `test-idle`"),
        "CONS-1",
        "no handler",
        "",
        ".handler::<",
    );
    assert_reads(
        found("consumer `test-two`"),
        "CONS-1",
        "two handlers for `account.posted.v1`",
        "",
        "second consumer",
    );
    assert_reads(
        found("service `test`"),
        "CFG-5",
        "0 partitions",
        "",
        "create_topics(1)",
    );
    // Every other consumer has the default of 30 s.
    let slow: Vec<_> = problems.iter().filter(|p| p.rule() == "CONS-6").collect();
    let slow_one = slow
        .iter()
        .find(|p| p.place() == "consumer `test-slow`")
        .expect("CONS-6");
    assert_reads(
        slow_one,
        "CONS-6",
        "a handler may take 20 s, but Kafka takes the partition away after 20 s",
        "",
        "KAFKA_CONSUMER_MAX_POLL_INTERVAL_MS",
    );
    assert_eq!(slow.len(), 8, "{slow:#?}");
    assert_eq!(problems.len(), 15, "{problems:#?}");

    let nothing = refused(Service::builder(config())).await;
    assert_reads(
        only(&nothing),
        "CFG-1",
        "neither a relay nor a consumer",
        "",
        ".relay()",
    );
}

/// The environment's reader refuses these too; this is about a configuration changed in code.
#[tokio::test(flavor = "multi_thread")]
async fn what_weakens_a_promise_is_refused_again_at_the_start() {
    let scene = Scene::new::<there::Posted>(On::Embedded, 1).await;
    let mut config = scene.config(&[]);
    config
        .kafka
        .producer
        .insert("acks".to_owned(), "1".to_owned());
    config
        .kafka
        .consumer
        .insert("enable.auto.commit".to_owned(), "true".to_owned());
    config.profile = Profile::Production;
    let problems = refused(Service::builder(config).relay()).await;
    assert_eq!(problems.len(), 3, "{problems:#?}");
    assert_reads(
        &problems[0],
        "SEC-1",
        "in the clear",
        "KAFKA_SECURITY_PROTOCOL",
        "KAFKA_SECURITY_PROTOCOL=SSL",
    );
    assert_reads(
        &problems[1],
        "PROD-1",
        "acks",
        "KAFKA_PRODUCER_ACKS",
        "unset",
    );
    assert_reads(
        &problems[2],
        "CONS-2",
        "enable.auto.commit",
        "KAFKA_CONSUMER_ENABLE_AUTO_COMMIT",
        "unset",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_too_small_is_refused() {
    let scene = Scene::new::<there::Posted>(On::Embedded, 3).await;
    let config = scene.config(&[("FACTUM_DATABASE_MAX_CONNECTIONS", "2")]);
    let problems = refused(Service::builder(config).consumer(reader(NAME))).await;
    assert_reads(
        only(&problems),
        "CFG-1",
        "2 connections are too few: with 1 consumer the service needs at least 7",
        "FACTUM_DATABASE_MAX_CONNECTIONS",
        "write 13, or unset it",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn more_lanes_than_connections_are_no_reason_to_refuse() {
    let scene = Scene::new::<there::Posted>(On::Embedded, 30).await;
    let config = scene.config(&[("FACTUM_DATABASE_MAX_CONNECTIONS", "7")]);
    let keyed = reader("test-keyed").concurrency(32);
    let service = Service::builder(config)
        .consumer(reader(NAME))
        .consumer(keyed);
    let running = Running::start(service);
    scene.produce(0, &[there::Posted::entry("a", 1, "")]).await;
    eventually(LIMIT, "both consumers' effects", async || {
        scene.count("SELECT count(*) FROM effect").await == 2
    })
    .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrency_has_its_limits_and_wants_handlers_of_single_events() {
    let scene = Scene::new::<there::Posted>(On::Embedded, 3).await;
    for (concurrency, what) in [(0, "concurrency is 0"), (257, "concurrency is 257")] {
        let consumer = reader(NAME).concurrency(concurrency);
        let problems = refused(Service::builder(scene.config(&[])).consumer(consumer)).await;
        let place = "consumer `test-start`";
        assert_reads(only(&problems), "CONS-5", what, place, "with 1 to 256");
    }
    let in_slices = Consumer::named(NAME)
        .batch_handler::<there::Posted>(Recorder::of(NAME))
        .concurrency(2);
    let problems = refused(Service::builder(scene.config(&[])).consumer(in_slices)).await;
    assert_reads(
        only(&problems),
        "CONS-5",
        "2 events at once, each in a transaction of its own, and its handler of `account.posted.v1` takes slices",
        "consumer `test-start`",
        "write `.handler` in place of `.batch_handler`",
    );
    // Its workers count in place of its partitions: 32, four retries, a replay, and five beside.
    let config = scene.config(&[("FACTUM_DATABASE_MAX_CONNECTIONS", "6")]);
    let consumer = reader(NAME).concurrency(32);
    let problems = refused(Service::builder(config).consumer(consumer)).await;
    assert_reads(
        only(&problems),
        "CFG-1",
        "6 connections are too few: with 1 consumer the service needs at least 7",
        "FACTUM_DATABASE_MAX_CONNECTIONS",
        "write 42, or unset it",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_away_is_named() {
    let scene = Scene::new::<there::Posted>(On::Embedded, 1).await;
    let address = nobody();
    let url = format!("postgres://app:cAnArY@{address}/orders");
    let config = scene.config(&[("DATABASE_URL", &url)]);
    let service = Service::builder(config).consumer(reader("elsewhere"));
    let problems = refused(service).await;
    assert_eq!(problems.len(), 2, "all at once: {problems:#?}");
    assert_eq!(problems[0].place(), "consumer `elsewhere`");
    assert_reads(
        &problems[1],
        "CFG-1",
        "the database cannot be used",
        &format!("PostgreSQL at {address}/orders"),
        "start PostgreSQL there, or correct host",
    );
    assert!(!format!("{problems:?}").contains("cAnArY"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_away_is_named() {
    let address = nobody();
    let database = factum_tests::migrated_database().await;
    let config = Config::from_vars(
        [
            ("DATABASE_URL", database.url()),
            ("KAFKA_BROKERS", &address),
            ("FACTUM_SERVICE", "test"),
            ("FACTUM_PROFILE", "development"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned())),
    )
    .expect("a right configuration");
    for service in [
        Service::builder(config.clone()).consumer(reader(NAME)),
        Service::builder(config).relay(),
    ] {
        let problems = refused(service).await;
        assert_reads(
            only(&problems),
            "CFG-2",
            "no broker answered",
            &format!("Kafka at {address}"),
            "start Kafka there, or correct KAFKA_BROKERS",
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn maintenance_makes_the_window_or_is_missed() {
    let scene = Scene::new::<there::Posted>(On::Embedded, 1).await;
    let partitions = async || {
        scene
            .count("SELECT count(*) FROM pg_inherits WHERE inhparent = 'processed_event'::regclass")
            .await
    };
    let service = || Service::builder(scene.config(&[])).consumer(reader(NAME));
    if partitions().await == 0 {
        let problems = refused(service().maintenance(false)).await;
        assert_reads(
            only(&problems),
            "IDEM-2",
            "no partition for today",
            "",
            "maintenance",
        );
    }
    let running = Running::start(service());
    eventually(LIMIT, "the window's partitions", async || {
        partitions().await >= 38
    })
    .await;
    running.stop().await;
}

/// CFG-5: on Kafka alone, because the embedded broker can't create topics on request.
#[tokio::test(flavor = "multi_thread")]
async fn own_topics_are_created_in_development_only() {
    let scene = Scene::new::<stage::Posted>(On::Kafka, 1).await;
    let forbidden = Service::builder(scene.config(&[("FACTUM_CREATE_TOPICS", "false")]))
        .publishes::<forbidden::Posted>()
        .create_topics(3)
        .relay();
    let problems = refused(forbidden).await;
    assert_reads(
        only(&problems),
        "CFG-4",
        "the topic `t.start.forbidden` does not exist",
        "service `test` publishes to it",
        ".create_topics(",
    );

    let service = Service::builder(scene.config(&[]))
        .publishes::<created::Posted>()
        .create_topics(3)
        .relay()
        .consumer(Consumer::named(NAME).handler::<created::Posted>(Recorder::of(NAME)));
    let running = Running::start(service);
    let mut connection = scene.database.connect().await;
    Outbox::new()
        .publish(
            &mut connection,
            envelope(created::Posted::entry("a", 1, "")),
        )
        .await
        .expect("a row in the outbox");
    connection
        .close()
        .await
        .expect("a connection can be closed");
    scene.await_effects(NAME, &effects_of("a", 1)).await;
    assert_eq!(
        scene.broker.end_offsets(created::Posted::TOPIC).await.len(),
        3
    );
    running.stop().await;
}

/// A part that stops takes the service with it, and its error comes out.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_consumer_stops_the_service_with_its_error() {
    let scene = Scene::new::<there::Posted>(On::Embedded, 1).await;
    scene
        .produce(0, &[there::Posted::entry("a", 1, "commit")])
        .await;
    let service = Service::builder(scene.config(&[]))
        .relay()
        .consumer(reader(NAME))
        .consumer(
            Consumer::named("test-other").handler::<there::Posted>(Recorder::of("test-other")),
        );
    let ended = tokio::time::timeout(LIMIT, service.run_until(std::future::pending())).await;
    let error = ended
        .expect("the service stops by itself")
        .expect_err("with an error");
    assert!(
        matches!(&error, ServiceError::Consumer { name, .. } if name == NAME || name == "test-other"),
        "{error:?}"
    );
    assert!(error.to_string().starts_with("consumer `test-"), "{error}");
}

/// A handler that never ends does not hold the service beyond its deadline.
#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_handler_does_not_hold_the_service() {
    let scene = Scene::new::<there::Posted>(On::Embedded, 1).await;
    scene
        .produce(0, &[there::Posted::entry("a", 1, "gate")])
        .await;
    let recorder = Recorder::of(NAME);
    let running = scene.start_with(
        &[("FACTUM_SHUTDOWN_DEADLINE_SECONDS", "2")],
        [Consumer::named(NAME).handler::<there::Posted>(recorder.clone())],
    );
    recorder.gate_reached(1).await;
    let asked = std::time::Instant::now();
    running.ask_to_stop();
    let ended = running.ended().await;
    assert!(
        matches!(ended, Ok(()) | Err(ServiceError::Deadline { .. })),
        "{ended:?}"
    );
    assert!(
        asked.elapsed() < Duration::from_secs(20),
        "{:?}",
        asked.elapsed()
    );
    // Nothing was committed, and the next start handles the event.
    assert_eq!(scene.effects(NAME).await, Vec::<String>::new());
    recorder.open_gate(10);
    let running = scene.start([Consumer::named(NAME).handler::<there::Posted>(recorder)]);
    scene.await_effects(NAME, &effects_of("a", 1)).await;
    running.stop().await;
}

/// A connection that was lent when the service ended is given back: the database can be dropped,
/// and nothing of a stopped service goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_service_holds_no_connection() {
    let scene = Scene::new::<there::Posted>(On::Embedded, 4).await;
    scene.produce(0, &[there::Posted::entry("a", 1, "")]).await;
    let running = scene.start([reader(NAME)]);
    scene.await_effects(NAME, &effects_of("a", 1)).await;
    running.stop().await;
    let mut connection = scene.database.connect().await;
    eventually(LIMIT, "the end of the service's sessions", async || {
        let left: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name = 'test'",
        )
        .fetch_one(&mut connection)
        .await
        .expect("a count");
        left == 0
    })
    .await;
    connection
        .close()
        .await
        .expect("a connection can be closed");
}

/// Kafka keeps records for seven days unless told otherwise; retries take 67 minutes, replays seven days.
#[tokio::test(flavor = "multi_thread")]
async fn listing_fault_12_a_window_shorter_than_events_may_come_again_is_refused_with_the_numbers()
{
    let scene = Scene::new::<horizon::Posted>(On::Kafka, 1).await;
    let name = "test-horizon";
    let consumer = |foreign| {
        Consumer::named(name)
            .handler::<horizon::Posted>(Recorder::of(name))
            .foreign_ids(foreign)
    };
    let short = [
        ("FACTUM_DEDUP_WINDOW_DAYS", "14"),
        ("FACTUM_ALLOW_SHORT_DEDUP_WINDOW", "false"),
    ];
    let service =
        Service::builder(scene.config(&short)).consumer(consumer(ForeignIds::Keep { days: 13 }));
    let problems = refused(service).await;
    let [window, foreign] = &problems[..] else {
        panic!("{problems:#?}");
    };
    assert_reads(
        window,
        "IDEM-2",
        "the dedup window is 14 d and must be longer than 14.1 d: 7 d that `t.start.horizon` keeps its records + 67.1 min of \
         retries + 7 d of replays",
        "consumer `test-horizon`, topic `t.start.horizon`",
        "FACTUM_DEDUP_WINDOW_DAYS of at least 15 d, or keep the topic's records for ",
    );
    assert_reads(
        foreign,
        "IDEM-2",
        "foreign ids are remembered for 13 d",
        "topic `t.start.horizon`",
        "ForeignIds::Keep of at least 15 d",
    );

    // The mends are mends.
    let enough = [
        ("FACTUM_DEDUP_WINDOW_DAYS", "15"),
        ("FACTUM_ALLOW_SHORT_DEDUP_WINDOW", "false"),
    ];
    let running = scene.start_with(&enough, [consumer(ForeignIds::Keep { days: 15 })]);
    let told = "SELECT count(*) FROM event_reader WHERE retry_seconds = 4023 AND foreign_days = 15";
    eventually(LIMIT, "the consumer says what it takes", async || {
        scene.count(told).await == 1
    })
    .await;
    let kept = "SELECT count(*) FROM maintenance WHERE service = 'test' \
                AND settings ->> 'FACTUM_DEDUP_WINDOW_DAYS' = '15' AND settings ->> 'FACTUM_OUTBOX_KEEP_HOURS' = '72'";
    eventually(LIMIT, "maintenance says what it keeps", async || {
        scene.count(kept).await == 1
    })
    .await;
    running.stop().await;
    let (verdict, what) = doctors_horizon(&scene).await;
    assert_eq!(verdict, Verdict::Ok, "{what}");

    // The doctor looks at the partitions that are there, and not at a setting.
    scene
        .execute(
            "DO $$ DECLARE p regclass; BEGIN \
               FOR p IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'processed_event'::regclass \
                        ORDER BY inhrelid::regclass::text LIMIT 5 \
               LOOP EXECUTE format('DROP TABLE %s', p); END LOOP; END $$",
        )
        .await;
    let (verdict, what) = doctors_horizon(&scene).await;
    assert_eq!(verdict, Verdict::Failed);
    assert!(
        what.starts_with(
            "the dedup window is 10 d and must be longer than 14.1 d: 7 d that `t.start.horizon`"
        ),
        "{what}"
    );

    // In development too short a window is a warning.
    let running = scene.start_with(&short[..1], [consumer(ForeignIds::Refuse)]);
    scene
        .produce(0, &[horizon::Posted::entry("a", 1, "")])
        .await;
    scene.await_effects(name, &effects_of("a", 1)).await;
    running.stop().await;
}

async fn doctors_horizon(scene: &Scene) -> (Verdict, String) {
    let db = factum_tests::database_handle(scene.database.url()).await;
    let examination = Examination {
        kafka: Some(scene.broker.settings()),
        open_for: LIMIT,
    };
    let checks = examine(&db, &examination).await.expect("a database");
    let check = checks.into_iter().find(|check| check.name == "horizon");
    let check = check.expect("topics are compared");
    (check.verdict, check.what)
}
