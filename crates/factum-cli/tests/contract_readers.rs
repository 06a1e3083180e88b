//! `factum contract readers` on a real PostgreSQL: what it says of each state of the table.

mod ended;

use std::process::Command;

use factum_testing::TestDatabase;
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection as _};

use ended::Ended;

fn factum(database: &TestDatabase, arguments: &[&str]) -> Ended {
    Command::new(env!("CARGO_BIN_EXE_factum"))
        .args(arguments)
        .env("DATABASE_URL", database.url())
        .output()
        .expect("the command runs")
        .into()
}

fn readers(database: &TestDatabase, arguments: &[&str]) -> Ended {
    let mut all = vec!["contract", "readers"];
    all.extend(arguments);
    factum(database, &all)
}

async fn migrated() -> TestDatabase {
    let database = factum_testing::database();
    assert_eq!(factum(&database, &["migrate", "up"]).code, 0);
    database
}

/// A row: consumer, type, taken as, newest, time of the last sign of life, effects, time of the last one.
async fn row(database: &TestDatabase, columns: [&str; 5], taken: i64, last_taken: Option<&str>) {
    let [consumer, event_type, taken_as, newest, seen] = columns;
    let kind = |version| format!("'order.confirmed.{version}'");
    let last = last_taken.map_or("NULL".to_owned(), |at| format!("'2026-06-01 {at}Z'"));
    let sql = format!(
        "INSERT INTO event_reader (consumer, event_type, taken_as, newest, topic, consumer_group, declared_at, \
                                   seen_at, taken, last_taken_at) \
         VALUES ('{consumer}', {}, {}, {}, 'orders.confirmed', '{consumer}', '2026-05-01Z', \
                 '2026-06-01 {seen}Z', {taken}, {last})",
        kind(event_type),
        kind(taken_as),
        kind(newest)
    );
    let mut connection = database.connect().await;
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut connection)
        .await
        .expect("a test's SQL runs");
    connection
        .close()
        .await
        .expect("a connection can be closed");
}

const KIND: &str = "order.confirmed.v1";

#[tokio::test]
async fn an_old_version_is_needed_as_long_as_somebody_knows_nothing_newer() {
    let database = migrated().await;
    row(
        &database,
        ["billing-orders", "v1", "v1", "v1", "12:00"],
        500,
        Some("11:59"),
    )
    .await;
    row(
        &database,
        ["mailer-orders", "v1", "v2", "v2", "12:00"],
        7,
        Some("11:58"),
    )
    .await;
    row(
        &database,
        ["mailer-orders", "v2", "v2", "v2", "12:00"],
        493,
        Some("11:59"),
    )
    .await;

    let told = readers(&database, &[]);
    assert_eq!(told.code, 0, "{}", told.stderr);
    let lines: Vec<String> = told
        .stdout
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        lines,
        [
            "event type consumer taken effects duplicates last effect last seen",
            "order.confirmed.v1 billing-orders itself 500 0 2026-06-01T11:59:00Z 2026-06-01T12:00:00Z",
            "order.confirmed.v1 mailer-orders as order.confirmed.v2 (upcast) 7 0 2026-06-01T11:58:00Z 2026-06-01T12:00:00Z",
            "order.confirmed.v2 mailer-orders itself 493 0 2026-06-01T11:59:00Z 2026-06-01T12:00:00Z",
            "",
            "order.confirmed.v1 can't go yet: code that knows nothing newer runs in billing-orders (last seen \
             2026-06-01T12:00:00Z)",
            "order.confirmed.v2 is the newest version known here",
        ],
        "{}",
        told.stdout
    );

    let all = readers(&database, &["--json"]).json();
    assert_eq!(all["events"][1]["needed_by"], json!(["mailer-orders"]));
    assert_eq!(all["events"][1]["newest"], json!(true));

    let told = readers(&database, &["--event", KIND, "--json"]);
    assert_eq!(told.code, 1, "{}", told.stdout);
    let told = told.json();
    assert_eq!(
        (&told["schema"], &told["ok"]),
        (&json!("factum.contract.readers/1"), &json!(false))
    );
    let event = &told["events"][0];
    assert_eq!(event["needed_by"], json!(["billing-orders"]));
    assert_eq!(event["can_go"], json!(false));
    assert_eq!(event["readers"][1]["taken_as"], json!("order.confirmed.v2"));
}

#[tokio::test]
async fn an_old_version_can_go_once_the_old_code_is_silent() {
    let database = migrated().await;
    row(
        &database,
        ["billing-orders", "v1", "v1", "v1", "12:00:00"],
        500,
        Some("11:59"),
    )
    .await;
    row(
        &database,
        ["billing-orders", "v1", "v2", "v2", "12:02:00"],
        3,
        Some("12:01"),
    )
    .await;
    row(
        &database,
        ["billing-orders", "v2", "v2", "v2", "12:02:00"],
        9,
        Some("12:01"),
    )
    .await;
    // Both generations have given a sign of life within two minutes: the migration may still be rolling.
    let told = readers(&database, &["--event", KIND]);
    assert_eq!(told.code, 1, "{}", told.stdout);
    assert!(told.stdout.contains("can't go yet"), "{}", told.stdout);

    let mut connection = database.connect().await;
    sqlx::raw_sql(
        "UPDATE event_reader SET seen_at = '2026-06-01 12:02:01Z' WHERE newest LIKE '%2'",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    connection.close().await.unwrap();
    let told = readers(&database, &["--event", KIND]);
    assert_eq!(told.code, 0, "{}", told.stdout);
    assert!(
        told.stdout.ends_with(
            "order.confirmed.v1 can go, as far as this database's consumers are concerned: nobody has declared it as \
             their newest since 2026-06-01T12:00:00Z. The last event that took effect from it was made into a newer \
             version at 2026-06-01T12:01:00Z: see that no producer writes it alone any more\n"
        ),
        "{}",
        told.stdout
    );
    assert!(
        !told.stdout.contains("itself"),
        "the old code's row is not shown"
    );

    // A handler of v1 in code that knows v2 needs no v1.
    row(
        &database,
        ["audit-orders", "v1", "v1", "v2", "12:30:00"],
        3,
        None,
    )
    .await;
    let told = readers(&database, &["--event", KIND, "--json"]);
    assert_eq!(told.code, 0, "{}", told.stdout);
    let event = &told.json()["events"][0];
    assert_eq!(event["nobody_since"], json!("2026-06-01T12:00:00Z"));
    assert_eq!(event["readers"].as_array().map(Vec::len), Some(2));
    // The newest version is needed by whoever takes it.
    assert_eq!(
        readers(&database, &["--event", "order.confirmed.v2"]).code,
        1
    );
}

#[tokio::test]
async fn a_version_in_the_middle_is_needed_only_by_code_that_stands_at_it() {
    let database = migrated().await;
    row(
        &database,
        ["old-orders", "v1", "v1", "v1", "12:00"],
        1,
        None,
    )
    .await;
    for kind in ["v1", "v2", "v10"] {
        row(
            &database,
            ["new-orders", kind, "v10", "v10", "12:00"],
            1,
            None,
        )
        .await;
    }
    let code = |event| readers(&database, &["--event", event]).code;
    assert_eq!(code("order.confirmed.v1"), 1);
    assert_eq!(code("order.confirmed.v2"), 0);
    row(
        &database,
        ["middle-orders", "v2", "v2", "v2", "12:00"],
        1,
        None,
    )
    .await;
    assert_eq!(code("order.confirmed.v2"), 1);
    assert_eq!(code("order.confirmed.v10"), 1, "it is the newest");
    assert_eq!(code("order.cancelled.v1"), 0, "nobody takes it");
}

#[tokio::test]
async fn nobody_has_said_anything() {
    let database = migrated().await;
    let told = readers(&database, &[]);
    assert_eq!(
        (told.code, told.stdout.as_str()),
        (
            0,
            "no consumer of this database has said yet what it takes\n"
        )
    );
    let told = readers(&database, &["--event", KIND]);
    assert_eq!(
        (told.code, told.stdout.as_str()),
        (0, "no consumer of this database takes it\n")
    );
}

#[tokio::test]
async fn wrong_usage_and_an_old_schema_are_said() {
    let database = factum_testing::database();
    let told = readers(&database, &["--event", "OrderConfirmed"]);
    assert_eq!(told.code, 2);
    assert!(
        told.stderr.contains("order.confirmed.v1"),
        "{}",
        told.stderr
    );
    let told = readers(&database, &["--json"]);
    assert_eq!(told.code, 1);
    assert!(told.stderr.contains("factum migrate up"), "{}", told.stderr);
    assert_eq!(told.json()["ok"], json!(false));
    let help = factum(&database, &["contract", "readers", "--help"]);
    assert!(
        help.stdout.contains("Exit codes:") && help.stdout.contains("Example:"),
        "{}",
        help.stdout
    );
}
