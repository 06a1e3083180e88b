//! `factum migrate` on a real PostgreSQL: what it prints, and its exit codes.

mod ended;

use std::net::TcpListener;
use std::process::Command;

use factum_testing::TestDatabase;
use serde_json::json;
use sqlx::{Connection as _, Row as _};

use ended::Ended;

fn factum() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_factum"));
    command
        .env_remove("DATABASE_URL")
        .env_remove("FACTUM_DEDUP_WINDOW_DAYS");
    command
}

fn migrate(database: &TestDatabase, arguments: &[&str]) -> Ended {
    factum()
        .arg("migrate")
        .args(arguments)
        .env("DATABASE_URL", database.url())
        .output()
        .expect("the command runs")
        .into()
}

async fn execute(database: &TestDatabase, sql: &'static str) {
    let mut connection = database.connect().await;
    sqlx::raw_sql(sql)
        .execute(&mut connection)
        .await
        .expect("a test's SQL runs");
    connection
        .close()
        .await
        .expect("a connection can be closed");
}

async fn partitions(database: &TestDatabase) -> i64 {
    let mut connection = database.connect().await;
    let row = sqlx::query(
        "SELECT count(*) FROM pg_inherits WHERE inhparent = 'processed_event'::regclass",
    )
    .fetch_one(&mut connection)
    .await
    .expect("a count");
    connection
        .close()
        .await
        .expect("a connection can be closed");
    row.get(0)
}

#[tokio::test]
async fn up_makes_tables_and_window_and_may_run_again() {
    let database = factum_testing::database();

    let before = migrate(&database, &["status", "--json"]);
    assert_eq!(before.code, 1, "something is pending");
    let pending = before.json()["pending"].as_u64().expect("a number");
    assert!(pending >= 1);
    assert_eq!(before.json()["ok"], json!(false));
    assert!(
        before.stdout.contains("pending; `factum migrate up`"),
        "{}",
        before.stdout
    );

    let up = migrate(&database, &["up", "--json"]);
    assert_eq!(up.code, 0, "{}", up.stderr);
    assert!(up.stdout.starts_with("applied 1 base\n"), "{}", up.stdout);
    let told = up.json();
    assert_eq!(told["schema"], json!("factum.migrate.up/1"));
    assert_eq!(told["ok"], json!(true));
    assert_eq!(told["applied"][0], json!({"version": 1, "name": "base"}));
    // 30 days back, today, 7 ahead.
    assert_eq!(told["partitions_made"], json!(38));
    assert_eq!(partitions(&database).await, 38);

    let after = migrate(&database, &["status", "--json"]);
    assert_eq!(after.code, 0, "{}", after.stderr);
    assert_eq!(after.json()["pending"], json!(0));
    let applied_at = after.json()["migrations"][0]["applied_at"].clone();
    assert!(
        applied_at.as_str().is_some_and(|at| at.ends_with('Z')),
        "{applied_at}"
    );

    let again = migrate(&database, &["up"]);
    assert_eq!(again.code, 0);
    assert_eq!(again.stdout, "every migration is applied already\n");
}

/// A window given by chance must not drop what the services still need.
#[tokio::test]
async fn up_leaves_the_window_of_an_older_table_alone_unless_told() {
    let database = factum_testing::database();
    assert_eq!(
        migrate(&database, &["up", "--dedup-window-days", "60"]).code,
        0
    );
    assert_eq!(partitions(&database).await, 68);
    assert_eq!(migrate(&database, &["up"]).code, 0);
    assert_eq!(partitions(&database).await, 68);
    let moved = migrate(&database, &["up", "--dedup-window-days", "30", "--json"]);
    assert_eq!(moved.json()["partitions_dropped"], json!(30));
    assert_eq!(partitions(&database).await, 38);
}

#[tokio::test]
async fn the_printed_sql_does_what_up_does() {
    let database = factum_testing::database();
    let printed = migrate(&database, &["sql"]);
    assert_eq!(printed.code, 0);
    let mut connection = database.connect().await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(printed.stdout.clone()))
        .execute(&mut connection)
        .await
        .expect("the script runs");
    connection
        .close()
        .await
        .expect("a connection can be closed");
    assert_eq!(migrate(&database, &["status"]).code, 0);

    let in_json = migrate(&database, &["sql", "--json"]);
    assert_eq!(in_json.stdout.lines().count(), 1);
    assert_eq!(
        in_json.json()["sql"].as_str().map(str::trim_end),
        Some(printed.stdout.trim_end())
    );
}

/// Listing fault 2: the published table does not deduplicate.
#[tokio::test]
async fn case_02_a_table_that_does_not_deduplicate_is_refused() {
    let database = factum_testing::database();
    execute(
        &database,
        "CREATE TABLE processed_event (
             event_id uuid NOT NULL, consumer_group text NOT NULL,
             processed_at timestamptz NOT NULL DEFAULT now(),
             PRIMARY KEY (event_id, processed_at)) PARTITION BY RANGE (processed_at)",
    )
    .await;
    let up = migrate(&database, &["up", "--json"]);
    assert_eq!(up.code, 1);
    assert!(
        up.stderr
            .starts_with("error: IDEM-2: the table processed_event"),
        "{}",
        up.stderr
    );
    assert!(
        up.stderr
            .contains("  where: the database that DATABASE_URL names"),
        "{}",
        up.stderr
    );
    assert!(up.stderr.contains("nothing was changed"), "{}", up.stderr);
    assert_eq!(up.json()["ok"], json!(false));
    assert_eq!(
        migrate(&database, &["status"]).code,
        1,
        "nothing is applied"
    );
}

#[test]
fn a_database_that_is_away_is_code_3_and_no_password_shows() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener
        .local_addr()
        .expect("it has an address")
        .to_string();
    drop(listener);
    let ended: Ended = factum()
        .args([
            "migrate",
            "status",
            "--json",
            "--database-url-env",
            "ORDERS_DATABASE",
        ])
        .env(
            "ORDERS_DATABASE",
            format!("postgres://app:cAnArY@{address}/orders"),
        )
        .output()
        .expect("the command runs")
        .into();
    assert_eq!(ended.code, 3, "{}", ended.stderr);
    assert!(ended.stderr.contains(&address), "{}", ended.stderr);
    assert!(
        ended
            .stderr
            .contains("correct host, port and database in ORDERS_DATABASE")
    );
    assert!(!format!("{}{}", ended.stderr, ended.stdout).contains("cAnArY"));
    assert_eq!(ended.json()["schema"], json!("factum.migrate.status/1"));
}

#[test]
fn a_missing_url_and_a_wrong_argument_are_code_2() {
    let ended: Ended = factum()
        .args(["migrate", "up"])
        .output()
        .expect("the command runs")
        .into();
    assert_eq!(ended.code, 2);
    assert_eq!(
        ended.stderr,
        "error: DATABASE_URL is not set\n  where: the environment\n  \
         mend:  set it, for example DATABASE_URL=postgres://user:password@localhost:5432/orders, or \
         name another variable with --database-url-env\n"
    );
    for wrong in [
        &["migrate", "down"][..],
        &["migrate", "up", "--dedup-window-days", "0"],
        &[],
    ] {
        let ended: Ended = factum()
            .args(wrong)
            .output()
            .expect("the command runs")
            .into();
        assert_eq!(ended.code, 2, "{wrong:?}");
    }
}

#[test]
fn every_help_has_an_example() {
    for command in [
        &[][..],
        &["migrate", "up"],
        &["migrate", "status"],
        &["migrate", "sql"],
        &["relay"],
    ] {
        let ended: Ended = factum()
            .args(command)
            .arg("--help")
            .output()
            .expect("the command runs")
            .into();
        assert_eq!(ended.code, 0);
        assert!(
            ended.stdout.contains("Example:"),
            "{command:?}: {}",
            ended.stdout
        );
    }
}

#[test]
fn a_relay_without_settings_names_all_of_them() {
    let ended: Ended = factum()
        .arg("relay")
        .env_remove("KAFKA_BROKERS")
        .env_remove("FACTUM_SERVICE")
        .env_remove("FACTUM_PROFILE")
        .env_remove("KAFKA_SECURITY_PROTOCOL")
        .output()
        .expect("the command runs")
        .into();
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    for name in [
        "DATABASE_URL",
        "KAFKA_BROKERS",
        "FACTUM_SERVICE",
        "KAFKA_SECURITY_PROTOCOL",
    ] {
        assert!(
            ended.stderr.contains(&format!("{name} is not set")),
            "{}",
            ended.stderr
        );
    }
}
