//! `factum parked` on a real PostgreSQL: what it prints and does, and its exit codes.

mod ended;

use std::process::Command;

use factum_testing::TestDatabase;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _};

use ended::Ended;
use ended::terminal::on_terminal;

fn parked(database: &TestDatabase, arguments: &[&str]) -> Ended {
    Command::new(env!("CARGO_BIN_EXE_factum"))
        .arg("parked")
        .args(arguments)
        .env("DATABASE_URL", database.url())
        .env("USER", "ana")
        .output()
        .expect("the command runs")
        .into()
}

async fn execute(database: &TestDatabase, sql: &str) {
    let mut connection = database.connect().await;
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut connection)
        .await
        .expect("a test's SQL runs");
    connection.close().await.expect("it closes");
}

async fn read(database: &TestDatabase, sql: &'static str) -> Vec<String> {
    let mut connection = database.connect().await;
    let rows = sqlx::query_scalar(sql)
        .fetch_all(&mut connection)
        .await
        .expect("a test's SQL runs");
    connection.close().await.expect("it closes");
    rows
}

/// Two keys of `billing`: `k1` with two events is due in two minutes, one that isn't text is held.
async fn stage() -> TestDatabase {
    let database = factum_testing::database();
    let up = Command::new(env!("CARGO_BIN_EXE_factum"))
        .args(["migrate", "up"])
        .env("DATABASE_URL", database.url())
        .output()
        .expect("the command runs");
    assert!(up.status.success());
    execute(
        &database,
        "INSERT INTO parked_key (consumer, topic, key, attempts, max_attempts, next_attempt_at, held_at, parked_at, error) VALUES \
           ('billing', 'orders', 'k1', 5, 8, now() + interval '130.9 s', NULL, '2026-06-01 14:11:02Z', E'timeout\\033[2J'), \
           ('billing', 'orders', '\\xff00', 8, 8, now(), now(), '2026-06-01 14:11:03Z', 'refused'); \
         INSERT INTO parked_event (consumer, topic, key, partition, record_offset, value, event_id, event_type, \
                                   first_failed_at) VALUES \
           ('billing', 'orders', 'k1', 3, 17, 'one', gen_random_uuid(), 'order.confirmed.v1', '2026-06-01 14:11:02Z'), \
           ('billing', 'orders', 'k1', 3, 18, 'two', gen_random_uuid(), 'order.confirmed.v1', NULL), \
           ('billing', 'orders', '\\xff00', 3, 19, 'three', gen_random_uuid(), 'order.confirmed.v1', NULL)",
    )
    .await;
    database
}

#[tokio::test]
async fn the_list_says_which_keys_wait_for_what_and_until_when() {
    let database = stage().await;
    let told = parked(&database, &["list"]);
    assert_eq!(told.code, 0, "{}", told.stderr);
    let lines: Vec<&str> = told.stdout.lines().collect();
    assert_eq!(
        lines[0],
        "KEY\tWAITING\tATTEMPT\tNEXT\tSINCE\tCAUSE\tTOPIC\tCONSUMER"
    );
    let (before, after) = lines[1].split_once("\tin 2m").expect("a time");
    assert_eq!(before, "k1\t2\t5/8");
    assert!(
        after.ends_with("s\t2026-06-01T14:11:02Z\ttimeout\\u001b[2J\torders\tbilling"),
        "{after}"
    );
    assert_eq!(
        lines[2],
        "0xff00\t1\t8/8\theld\t2026-06-01T14:11:03Z\trefused\torders\tbilling"
    );
    let told = parked(&database, &["list", "--consumer", "shipping"]);
    assert_eq!((told.code, told.stdout.trim()), (0, "No key waits"));
    assert!(
        told.stderr.starts_with("No consumer shipping has run here"),
        "{}",
        told.stderr
    );
    let told = parked(&database, &["list", "--json"]);
    let lines: Vec<Value> = told
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[0]["schema"], json!("factum.parked.key/1"));
    assert_eq!(
        (&lines[1]["key"], &lines[1]["held"]),
        (&json!("0xff00"), &json!(true))
    );
    let closing = told.json();
    assert_eq!(
        (&closing["schema"], &closing["keys"]),
        (&json!("factum.parked.list/1"), &json!(2))
    );
}

/// What a person copies from a narrow terminal is what the next command takes.
#[tokio::test]
async fn on_a_narrow_terminal_nothing_that_is_copied_is_cut() {
    let database = stage().await;
    execute(
        &database,
        "INSERT INTO parked_key (consumer, topic, key, next_attempt_at, held_at, error) VALUES \
           ('billing-order-confirmed', 'orders.confirmed', '0197a1b2-0000-7000-8000-00000000eeee', now(), now(), \
            'SQLSTATE 42P01: the table ledger does not exist')",
    )
    .await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_factum"));
    command
        .args(["parked", "list"])
        .env("DATABASE_URL", database.url());
    let seen = on_terminal(80, command, "").screen;
    for whole in [
        "\n0197a1b2-0000-7000-8000-00000000eeee ",
        "\n    cause     SQLSTATE 42P01: the table ledger does not exist\n",
        "    topic     orders.confirmed\n",
        "    consumer  billing-order-confirmed\n",
    ] {
        assert!(seen.contains(whole), "{whole:?} in {seen}");
    }
    assert!(!seen.contains(".."), "{seen}");
}

#[tokio::test]
async fn a_released_key_has_its_attempts_anew_and_an_audit_row() {
    let database = stage().await;
    let told = parked(
        &database,
        &[
            "release",
            "--consumer",
            "billing",
            "--topic",
            "orders",
            "--key",
            "0xff00",
            "--reason",
            "mended",
        ],
    );
    assert_eq!(told.code, 0, "{}", told.stderr);
    let state = "SELECT encode(key, 'escape') || ' ' || attempts || ' ' || (held_at IS NULL) || ' ' || \
                        (next_attempt_at <= now()) FROM parked_key ORDER BY parked_at";
    assert_eq!(
        read(&database, state).await,
        ["k1 5 true false", "\\377\\000 0 true true"]
    );
    let audit = "SELECT actor || '|' || via || '|' || action || '|' || consumer || '|' || events || '|' || reason FROM audit";
    assert_eq!(
        read(&database, audit).await,
        ["ana|cli|release|billing|1|mended"]
    );
    let told = parked(
        &database,
        &[
            "release",
            "--consumer",
            "billing",
            "--all",
            "--reason",
            "mended",
        ],
    );
    assert_eq!(
        told.stdout,
        "released 2; the service tries them when it runs\n"
    );
    assert!(
        told.stderr.starts_with("No process of this consumer runs"),
        "{}",
        told.stderr
    );
    assert_eq!(
        told.code, 0,
        "two keys need no confirmation: {}",
        told.stderr
    );
    execute(
        &database,
        "INSERT INTO instance (id, service, build, host, process_id, consumers, state) VALUES \
           (gen_random_uuid(), 'billing', '1', 'h', 1, ARRAY['billing'], '{}')",
    )
    .await;
    let told = parked(
        &database,
        &[
            "release",
            "--consumer",
            "billing",
            "--all",
            "--reason",
            "mended",
        ],
    );
    assert_eq!(
        (told.stdout.trim(), told.stderr.as_str()),
        ("released 2; the running service tries them now", "")
    );
    let attempts = "SELECT attempts::text FROM parked_key ORDER BY parked_at";
    assert_eq!(
        read(&database, attempts).await,
        ["0", "0"],
        "a key that waited has its attempts anew, too"
    );
}

#[tokio::test]
async fn many_keys_are_released_with_a_confirmation_and_spread() {
    let database = stage().await;
    execute(
        &database,
        "INSERT INTO parked_key (consumer, topic, key, next_attempt_at) \
         SELECT 'billing', 'orders', int4send(n), now() + interval '1 day' FROM generate_series(1, 1000) n",
    )
    .await;
    let all = [
        "release",
        "--consumer",
        "billing",
        "--all",
        "--reason",
        "mended",
    ];
    let told = parked(&database, &all);
    assert_eq!(told.code, 4);
    assert!(
        told.stderr.contains("error[PARKED-NOT-CONFIRMED]"),
        "{}",
        told.stderr
    );
    assert_eq!(
        read(&database, "SELECT count(*)::text FROM audit").await,
        ["0"]
    );
    let told = parked(&database, &[&all[..], &["--yes", "--json"]].concat());
    assert_eq!(told.code, 0, "{}", told.stderr);
    assert!(
        told.stdout.contains("\"released\":\"1002\""),
        "{}",
        told.stdout
    );
    // A second for a hundred: ten in all.
    let spread = "SELECT (max(next_attempt_at) - min(next_attempt_at) BETWEEN interval '5 s' AND interval '11 s')::text \
                  FROM parked_key";
    assert_eq!(read(&database, spread).await, ["true"]);
}

#[tokio::test]
async fn the_first_event_of_a_key_is_set_aside_and_the_key_goes_on() {
    let database = stage().await;
    let arguments = |key| {
        [
            "dead-letter",
            "--consumer",
            "billing",
            "--topic",
            "orders",
            "--key",
            key,
            "--reason",
            "#4411",
        ]
    };
    let told = parked(&database, &arguments("k1"));
    assert_eq!(told.code, 0, "{}", told.stderr);
    assert_eq!(
        told.stdout.trim(),
        "set aside orders/3 @ 17; the key goes on"
    );
    let letters = "SELECT reason || ' ' || attempts || ' ' || encode(value, 'escape') || ' ' || encode(key, 'escape') \
                          || ' ' || (first_seen = '2026-06-01 14:11:02Z') FROM dead_letter";
    assert_eq!(read(&database, letters).await, ["set_aside 5 one k1 true"]);
    let left = "SELECT k.attempts || ' ' || encode(e.value, 'escape') || ' ' || (k.next_attempt_at <= now()) \
                FROM parked_key k JOIN parked_event e USING (consumer, topic, key) WHERE k.key = 'k1'";
    assert_eq!(read(&database, left).await, ["0 two true"]);
    assert_eq!(
        read(&database, "SELECT action FROM audit").await,
        ["dead-letter"]
    );
    // What isn't there is refused by name; so is what a retrier has in hand.
    let told = parked(&database, &arguments("nobody"));
    assert_eq!(told.code, 4);
    assert!(
        told.stderr.contains("error[PARKED-NO-KEY]"),
        "{}",
        told.stderr
    );
    let mut retrier = database.connect().await;
    sqlx::raw_sql("BEGIN; SELECT 1 FROM parked_event FOR UPDATE")
        .execute(&mut retrier)
        .await
        .unwrap();
    let told = parked(&database, &arguments("k1"));
    assert_eq!(told.code, 4);
    assert!(
        told.stderr.contains("error[PARKED-BUSY]"),
        "{}",
        told.stderr
    );
    assert_eq!(read(&database, letters).await.len(), 1);
    retrier.close().await.unwrap();
}

#[tokio::test]
async fn an_action_needs_a_reason_and_a_release_a_choice() {
    let database = stage().await;
    for arguments in [
        &["release", "--consumer", "billing", "--all"][..],
        &["release", "--consumer", "billing", "--all", "--reason", " "],
        &["release", "--consumer", "billing", "--reason", "x"],
        &[
            "release",
            "--consumer",
            "billing",
            "--key",
            "k1",
            "--reason",
            "x",
        ],
        &["release", "--all", "--reason", "x"],
        &[
            "dead-letter",
            "--consumer",
            "billing",
            "--topic",
            "orders",
            "--key",
            "k1",
        ],
        &[
            "dead-letter",
            "--consumer",
            "billing",
            "--topic",
            "orders",
            "--key",
            "0xf",
            "--reason",
            "x",
        ],
    ] {
        assert_eq!(parked(&database, arguments).code, 2, "{arguments:?}");
    }
}
