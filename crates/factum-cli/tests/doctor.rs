//! `factum doctor` on a real PostgreSQL: each trouble is named with its place and what to do.

mod ended;

use std::process::{Command, Stdio};

use factum_testing::TestDatabase;
use factum_testing::postgres::{PostgresBinaries, PostgresServer};
use serde_json::Value;
use sqlx::{Connection as _, PgConnection};

use ended::Ended;

fn factum(url: &str, arguments: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_factum"));
    command
        .args(arguments)
        .env("DATABASE_URL", url)
        .env_remove("KAFKA_BROKERS")
        .env_remove("FACTUM_DEDUP_WINDOW_DAYS")
        .stdin(Stdio::null());
    command.output().expect("the command runs").into()
}

async fn database() -> (TestDatabase, PgConnection) {
    let database = factum_testing::database();
    let up = factum(database.url(), &["migrate", "up"]);
    assert_eq!(up.code, 0, "{}", up.stderr);
    let connection = database.connect().await;
    (database, connection)
}

async fn execute(connection: &mut PgConnection, sql: &'static str) {
    sqlx::raw_sql(sql)
        .execute(connection)
        .await
        .expect("a test's SQL runs");
}

/// The exit code and the checks of one name.
fn checks(url: &str, arguments: &[&str], name: &str) -> (i32, Vec<Value>) {
    let arguments = [&["doctor", "--json"], arguments].concat();
    let ended = factum(url, &arguments);
    let told = ended.json();
    let checks = told["checks"].as_array().expect("a list of checks");
    let named = checks.iter().filter(|check| check["name"] == name).cloned();
    (ended.code, named.collect())
}

#[track_caller]
fn assert_says(check: &Value, verdict: &str, parts: &[(&str, &str)]) {
    assert_eq!(check["verdict"], verdict, "{check}");
    for (field, part) in parts {
        let text = check[*field].as_str().expect("a text");
        assert!(text.contains(part), "{field} has no {part:?}: {check}");
    }
}

#[tokio::test]
async fn a_fresh_database_is_well() {
    let (database, _connection) = database().await;
    let ended = factum(database.url(), &["doctor"]);
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (0, ""),
        "{}",
        ended.stdout
    );
    for line in [
        "ok    schema        tables, keys and indexes are as they should be\n",
        "ok    window        processed_event goes 30 d back and has partitions for 7 d ahead\n",
        "ok    maintenance   no service has run here yet\n",
        "ok    outbox        0 rows wait, none for long\n",
        "ok    clock         the database's clock and this machine's agree\n",
        "ok    consumers     0 consumers, no dead letter open, no key held\n",
        "warn  topics        not looked at: KAFKA_BROKERS is not set\n      where         the environment\n",
    ] {
        assert!(ended.stdout.contains(line), "{line:?} in {}", ended.stdout);
    }
    assert!(
        ended.stdout.starts_with("warn  "),
        "the worst first: {}",
        ended.stdout
    );
    assert!(ended.stdout.ends_with(" 0 failed\n"), "{}", ended.stdout);
}

#[tokio::test]
async fn a_broken_schema_is_a_failure_and_the_only_one() {
    let (database, mut connection) = database().await;
    execute(
        &mut connection,
        "CREATE TABLE rest PARTITION OF processed_event DEFAULT; DROP INDEX outbox_claim",
    )
    .await;
    let (code, found) = checks(database.url(), &[], "schema");
    assert_eq!((code, found.len()), (1, 2));
    assert_says(
        &found[0],
        "fail",
        &[
            ("what", "OBX-X3"),
            ("mend", "CREATE INDEX CONCURRENTLY outbox_claim"),
        ],
    );
    assert_says(
        &found[1],
        "fail",
        &[
            ("what", "DEFAULT partition rest"),
            ("mend", "DETACH PARTITION rest"),
        ],
    );
}

#[tokio::test]
async fn a_session_that_is_idle_in_transaction_is_named_with_what_it_holds_up() {
    let (database, mut connection) = database().await;
    let mut forgotten = database.connect().await;
    execute(&mut forgotten, "SET application_name = 'report'; BEGIN; SELECT FROM processed_event; UPDATE relay_lease SET owner = owner WHERE slot = 0").await;
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(&mut forgotten)
        .await
        .expect("a process");
    let (code, found) = checks(database.url(), &["--open-for", "0"], "sessions");
    assert_eq!(code, 0, "a warning: nobody waits for it");
    let [session] = &found[..] else {
        panic!("one session: {found:?}");
    };
    assert_says(
        session,
        "warn",
        &[
            ("where", &format!("process {pid} of `report`")),
            ("what", "idle in transaction for 0 s, since 2"),
            ("what", "vacuum can't clean what was deleted since"),
            ("what", "it holds locks on processed_event, relay_lease"),
            (
                "what",
                "old partitions of processed_event can't be dropped until it ends",
            ),
            ("mend", &format!("pg_terminate_backend({pid})")),
        ],
    );

    // A partition that maintenance drops, and somebody who waits for a row.
    let detach = "ALTER TABLE processed_event DETACH PARTITION {} CONCURRENTLY";
    let oldest: String = sqlx::query_scalar(
        "SELECT min(inhrelid::regclass::text) FROM pg_inherits WHERE inhparent = 'processed_event'::regclass",
    )
    .fetch_one(&mut connection)
    .await
    .expect("a partition");
    let mut maintenance = database.connect().await;
    let detach = sqlx::AssertSqlSafe(detach.replace("{}", &oldest));
    let detaching =
        tokio::spawn(async move { sqlx::raw_sql(detach).execute(&mut maintenance).await });
    let mut waiter = database.connect().await;
    let waiting = tokio::spawn(async move {
        execute(
            &mut waiter,
            "UPDATE relay_lease SET owner = owner WHERE slot = 0",
        )
        .await;
    });
    let limit = std::time::Duration::from_secs(60);
    factum_testing::eventually(limit, "two wait for it", async || {
        let waiting: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
        )
        .fetch_one(&mut connection)
        .await
        .expect("a count");
        waiting == 2
    })
    .await;
    let (code, found) = checks(database.url(), &["--open-for", "0"], "sessions");
    assert_eq!(code, 1, "somebody waits for it");
    let named = format!("process {pid} of `report`");
    let session = found.iter().find(|check| {
        check["where"]
            .as_str()
            .is_some_and(|text| text.starts_with(&named))
    });
    assert_says(
        session.expect("it is named"),
        "fail",
        &[
            (
                "what",
                &format!("{oldest} waits to be dropped until it ends"),
            ),
            ("what", "waits for it"),
        ],
    );
    execute(&mut forgotten, "ROLLBACK").await;
    waiting.await.expect("it got the row");
    detaching.await.expect("no panic").expect("it is detached");
    assert_says(
        &checks(database.url(), &["--open-for", "60"], "sessions").1[0],
        "ok",
        &[],
    );
}

/// A server of its own: slots are the server's and not a database's.
#[tokio::test]
async fn case_24_a_replication_slot_that_nobody_reads_is_named_before_the_disk_is_full() {
    let binaries = PostgresBinaries::find().expect("a PostgreSQL");
    let server = PostgresServer::start(&binaries).expect("a server");
    let url = server.url_of("postgres");
    assert_eq!(factum(&url, &["migrate", "up"]).code, 0);
    let (code, found) = checks(&url, &[], "replication");
    assert_eq!(code, 0);
    assert_says(&found[0], "ok", &[("what", "no replication slots")]);

    let mut connection = PgConnection::connect(&url)
        .await
        .expect("the server answers");
    execute(
        &mut connection,
        "SELECT pg_create_physical_replication_slot('cdc', true)",
    )
    .await;
    // WAL that the slot retains from now on.
    execute(
        &mut connection,
        "CREATE TABLE filler AS SELECT repeat('x', 1000) AS x FROM generate_series(1, 20000); SELECT pg_switch_wal()",
    )
    .await;
    let (code, found) = checks(&url, &[], "replication");
    assert_eq!((code, found.len()), (0, 2), "{found:?}");
    assert_says(
        &found[0],
        "warn",
        &[
            ("where", "the replication slot cdc"),
            ("what", "nobody reads from it, and it retains "),
            ("why", "until the disk is full"),
            ("mend", "pg_drop_replication_slot('cdc')"),
        ],
    );
    let megabytes: u32 = found[0]["what"]
        .as_str()
        .and_then(|text| text.split(' ').rev().nth(3))
        .and_then(|number| number.parse().ok())
        .expect("a number of megabytes");
    assert!(megabytes >= 16, "{}", found[0]);
    assert_says(
        &found[1],
        "warn",
        &[
            ("where", "max_slot_wal_keep_size"),
            ("mend", "ALTER SYSTEM SET max_slot_wal_keep_size"),
        ],
    );

    execute(
        &mut connection,
        "ALTER SYSTEM SET max_slot_wal_keep_size = '1GB'",
    )
    .await;
    execute(&mut connection, "SELECT pg_reload_conf()").await;
    let limit = std::time::Duration::from_secs(60);
    factum_testing::eventually(limit, "the limit holds", async || {
        checks(&url, &[], "replication").1.len() == 1
    })
    .await;
    execute(&mut connection, "SELECT pg_drop_replication_slot('cdc')").await;
    assert_says(&checks(&url, &[], "replication").1[0], "ok", &[]);
}

#[tokio::test]
async fn tables_that_nobody_cleans_and_what_waits_too_long_are_named() {
    let (database, mut connection) = database().await;
    execute(
        &mut connection,
        "ALTER TABLE outbox SET (autovacuum_enabled = off); \
         INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, topic, key, payload, occurred_at, created_at) \
           SELECT gen_random_uuid(), 't', 'A', 'a', 't', 'k', '', now(), now() - interval '11 min' FROM generate_series(1, 60000); \
         UPDATE outbox SET set_aside_at = now() WHERE id = 1; \
         DELETE FROM outbox WHERE id > 100; \
         UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'dead_letter_settled'::regclass; \
         INSERT INTO parked_key (consumer, topic, key, next_attempt_at, held_at) VALUES ('billing-orders', 't', 'k', now(), now()); \
         INSERT INTO dead_letter (consumer, topic, partition, record_offset, reason, first_seen) VALUES ('billing-orders', 't', 0, 1, 'permanent', now() - interval '40 d'); \
         INSERT INTO dead_letter_group SELECT consumer, '', reason, path_group, 0, 0, 0, first_seen, first_seen FROM dead_letter; \
         UPDATE dead_letter_group SET open = 1; DELETE FROM dead_letter_delta; \
         INSERT INTO event_reader (consumer, event_type, taken_as, newest, topic, consumer_group) VALUES ('billing-orders', 't', 't', 't', 't', 'g'); \
         INSERT INTO maintenance (service, settings, ran_at) VALUES \
           ('billing', '{\"FACTUM_OUTBOX_KEEP_HOURS\": \"72\"}', now()), ('mail', '{\"FACTUM_OUTBOX_KEEP_HOURS\": \"24\"}', now()), \
           ('gone', '{\"FACTUM_OUTBOX_KEEP_HOURS\": \"1\"}', now() - interval '1 d')",
    )
    .await;
    let url = database.url();
    let limit = std::time::Duration::from_secs(60);
    factum_testing::eventually(limit, "the statistics of the dead rows", async || {
        checks(url, &[], "vacuum").1.len() == 2
    })
    .await;
    let (code, vacuum) = checks(url, &[], "vacuum");
    assert_eq!(code, 1);
    assert_says(
        &vacuum[0],
        "fail",
        &[
            ("where", "table outbox"),
            ("what", "autovacuum is switched off"),
        ],
    );
    assert_says(
        &vacuum[1],
        "warn",
        &[
            ("where", "table outbox"),
            ("what", "dead rows beside"),
            ("mend", "VACUUM outbox"),
        ],
    );
    assert_says(
        &checks(url, &[], "indexes").1[0],
        "fail",
        &[
            ("what", "dead_letter_settled is invalid"),
            ("mend", "REINDEX INDEX CONCURRENTLY dead_letter_settled"),
        ],
    );
    let (_, outbox) = checks(url, &[], "outbox");
    assert_says(
        &outbox[0],
        "fail",
        &[("what", "99 rows wait, the oldest for 6")],
    );
    assert_says(&outbox[1], "warn", &[("what", "1 rows were set aside")]);
    let (_, consumers) = checks(url, &[], "consumers");
    assert_says(
        &consumers[0],
        "fail",
        &[("what", "1 keys are held"), ("mend", "factum parked list")],
    );
    assert_says(
        &consumers[1],
        "warn",
        &[
            ("what", "1 dead letters are open"),
            ("mend", "factum dlq list"),
        ],
    );
    assert_says(
        &checks(url, &[], "dead letters").1[0],
        "warn",
        &[("what", "is 40 d old, and the dedup window goes 30 d back")],
    );
    let (_, maintenance) = checks(url, &[], "maintenance");
    assert_says(
        &maintenance[0],
        "warn",
        &[(
            "what",
            "FACTUM_OUTBOX_KEEP_HOURS differs: billing 72, mail 24",
        )],
    );
    assert_says(&maintenance[1], "ok", &[("what", "outbox_keep_hours=72")]);

    execute(
        &mut connection,
        "UPDATE maintenance SET ran_at = now() - interval '20 min'",
    )
    .await;
    assert_says(
        &checks(url, &[], "maintenance").1[0],
        "warn",
        &[("what", "nobody has done it for 20 min")],
    );
}

#[tokio::test]
async fn the_next_day_without_a_partition_is_told_while_there_is_time() {
    let (database, mut connection) = database().await;
    execute(
        &mut connection,
        "DO $$ DECLARE p regclass; BEGIN \
           FOR p IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'processed_event'::regclass \
                    ORDER BY inhrelid::regclass::text DESC LIMIT 5 \
           LOOP EXECUTE format('DROP TABLE %s', p); END LOOP; END $$",
    )
    .await;
    let (code, found) = checks(database.url(), &[], "window");
    assert_eq!(code, 1);
    assert_says(
        &found[0],
        "fail",
        &[("what", "partitions stand ready for 2 d only")],
    );
}

#[tokio::test]
async fn a_database_that_is_away_and_settings_of_kafka_that_cant_be_used_have_their_own_codes() {
    let away = factum("postgres://nobody@127.0.0.1:1/none", &["doctor"]);
    assert_eq!(away.code, 3, "{}", away.stderr);
    let (database, _connection) = database().await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_factum"));
    command
        .args(["doctor"])
        .env("DATABASE_URL", database.url())
        .env("KAFKA_BROKERS", "not an address")
        .env("FACTUM_PROFILE", "development")
        .stdin(Stdio::null());
    let refused: Ended = command.output().expect("the command runs").into();
    assert_eq!(refused.code, 2, "{}", refused.stdout);
    assert!(
        refused.stderr.contains("KAFKA_BROKERS is not host:port"),
        "{}",
        refused.stderr
    );
    // Brokers that nobody reaches are a failed check, and the rest is told.
    let mut connection = database.connect().await;
    execute(
        &mut connection,
        "INSERT INTO event_reader (consumer, event_type, taken_as, newest, topic, consumer_group) VALUES ('c', 't', 't', 't', 't', 'g')",
    )
    .await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_factum"));
    command
        .args(["doctor"])
        .env("DATABASE_URL", database.url())
        .env("KAFKA_BROKERS", "127.0.0.1:1")
        .env("FACTUM_PROFILE", "development")
        .stdin(Stdio::null());
    let unreachable: Ended = command.output().expect("the command runs").into();
    assert_eq!(unreachable.code, 1, "{}", unreachable.stderr);
    assert!(
        unreachable.stdout.starts_with("FAIL  topics "),
        "{}",
        unreachable.stdout
    );
    assert!(
        unreachable.stdout.contains("\nok    schema "),
        "{}",
        unreachable.stdout
    );
}

/// What differs from run to run, made the same.
fn same(printed: &str, database: &TestDatabase, pid: i32) -> String {
    let mut text = String::new();
    for line in printed.lines() {
        let line = match line.split_whitespace().nth(1) {
            Some("connections") => "ok    connections   11 of 97 connections are in use",
            Some("vacuum") => {
                "ok    vacuum        14 tables, 1 MB beside processed_event, no dead rows to speak of, no invalid index"
            }
            _ => line,
        };
        let line = line
            .replace(database.name(), "billing-db")
            .replace(&pid.to_string(), "4711");
        let line = match line
            .split_once("since 2")
            .and_then(|(head, rest)| Some((head, rest.split_once(';')?.1)))
        {
            Some((head, tail)) => format!(
                "{}for 754 s, since 2026-11-30T14:07:31Z;{tail}",
                head.split("for ").next().unwrap_or_default()
            ),
            None => line,
        };
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// `UPDATE_DOCS=1` writes the page's block anew.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_the_doctor_is_what_it_prints() {
    let database = factum_testing::database();
    let up = factum(
        database.url(),
        &["migrate", "up", "--dedup-window-days", "14"],
    );
    assert_eq!(up.code, 0, "{}", up.stderr);
    let broker = factum_testing::kafka();
    broker.create_topic("orders.confirmed", 4).await;
    let mut connection = database.connect().await;
    // As a service with the default settings says it of itself.
    execute(
        &mut connection,
        "INSERT INTO event_reader (consumer, event_type, taken_as, newest, topic, consumer_group, retry_seconds) \
           VALUES ('billing-order-confirmed', 'order.confirmed.v1', 'order.confirmed.v1', 'order.confirmed.v1', 'orders.confirmed', 'billing-order-confirmed', 4023); \
         INSERT INTO maintenance (service, settings) VALUES ('billing', '{\"FACTUM_DEDUP_WINDOW_DAYS\": \"14\", \"FACTUM_REPLAY_HORIZON_DAYS\": \"7\", \
           \"FACTUM_OUTBOX_KEEP_HOURS\": \"72\", \"FACTUM_DEAD_LETTERS_KEEP_DAYS\": \"30\", \"FACTUM_OPEN_DEAD_LETTERS_KEEP_DAYS\": \"for ever\", \
           \"FACTUM_CALLS_KEEP_DAYS\": \"90\", \"FACTUM_REPLAYS_KEEP_DAYS\": \"90\", \"FACTUM_AUDIT_KEEP_DAYS\": \"for ever\"}')",
    )
    .await;
    let mut forgotten = database.connect().await;
    execute(&mut forgotten, "SET application_name = 'psql'; BEGIN; UPDATE processed_event SET processed_at = now() WHERE false; SELECT pg_current_xact_id()").await;
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(&mut forgotten)
        .await
        .expect("a process");
    let role: String = sqlx::query_scalar("SELECT current_user::text")
        .fetch_one(&mut forgotten)
        .await
        .expect("a role");
    let mut command = Command::new(env!("CARGO_BIN_EXE_factum"));
    command
        .args(["doctor", "--open-for", "0"])
        .env("DATABASE_URL", database.url())
        .env("KAFKA_BROKERS", broker.bootstrap())
        .env("FACTUM_PROFILE", "development")
        .stdin(Stdio::null());
    let ended: Ended = tokio::task::spawn_blocking(move || command.output())
        .await
        .expect("no panic")
        .expect("the command runs")
        .into();
    assert_eq!(ended.code, 1, "{}{}", ended.stdout, ended.stderr);
    let printed = same(&ended.stdout, &database, pid).replace(&format!("role {role}"), "role ana");
    let block = format!("```console\n$ factum doctor   # exit 1\n{printed}```\n");

    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operate/doctor.md");
    let page = std::fs::read_to_string(file).expect("the page is there");
    let (head, rest) = page.split_once("```console\n").expect("a block");
    let (_, tail) = rest.split_once("```\n").expect("it ends");
    let written = format!("{head}{block}{tail}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(file, written).expect("the page can be written");
    } else {
        assert_eq!(
            page, written,
            "UPDATE_DOCS=1 writes docs/operate/doctor.md anew"
        );
    }
}
