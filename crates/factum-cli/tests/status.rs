//! `factum status` on a real PostgreSQL: one screen, one verdict.

mod ended;

use std::process::{Command, Stdio};

use factum_testing::TestDatabase;
use serde_json::{Value, json};
use sqlx::PgConnection;

use ended::Ended;
use ended::terminal::on_terminal;

fn factum(database: &TestDatabase, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_factum"));
    command.args(arguments).env("DATABASE_URL", database.url());
    command
}

fn run(database: &TestDatabase, arguments: &[&str]) -> Ended {
    factum(database, arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the command runs")
        .into()
}

async fn database() -> (TestDatabase, PgConnection) {
    let database = factum_testing::database();
    let up = run(&database, &["migrate", "up"]);
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

/// Without the first line, which has the database's name and the time.
fn below_the_first_line(screen: &str) -> &str {
    screen.split_once('\n').expect("lines").1
}

fn status(database: &TestDatabase) -> (i32, Value) {
    let ended = run(database, &["status", "--json"]);
    assert_eq!(ended.stdout.lines().count(), 1, "{}", ended.stderr);
    (ended.code, ended.json())
}

const TROUBLE: &str = "\
    INSERT INTO event_reader (consumer, event_type, taken_as, newest, topic, consumer_group) VALUES \
      ('billing-order-confirmed', 't', 't', 't', 't', 'g'), ('mail-order-confirmed', 't', 't', 't', 't', 'g'), \
      ('stock-order-confirmed', 't', 't', 't', 't', 'g'), ('audit-order-confirmed', 't', 't', 't', 't', 'g'); \
    INSERT INTO event_reader (consumer, event_type, taken_as, newest, topic, consumer_group, seen_at) VALUES \
      ('gone-order-confirmed', 't', 't', 't', 't', 'g', now() - interval '8 d'); \
    INSERT INTO instance (id, service, build, host, process_id, consumers, state, seen_at) VALUES \
      (gen_random_uuid(), 'billing', '1.5.0', 'h', 1, ARRAY['billing-order-confirmed', 'mail-order-confirmed', 'audit-order-confirmed'], \
       '{\"consumers\": {\"billing-order-confirmed\": {\"lag\": 7, \"oldest_seconds\": 0.4, \"events_per_second\": 512.4}, \
         \"mail-order-confirmed\": {\"lag\": \"nonsense\"}}}', now() + interval '1 hour'), \
      (gen_random_uuid(), 'billing', '1.5.0', 'h', 2, ARRAY['billing-order-confirmed'], \
       '{\"consumers\": {\"billing-order-confirmed\": {\"lag\": 5, \"oldest_seconds\": 0.1, \"events_per_second\": 400}}}', now() + interval '1 hour'), \
      (gen_random_uuid(), 'stock', '1.0.0', 'h', 3, ARRAY['stock-order-confirmed'], '{}', now() - interval '21 s'); \
    INSERT INTO dead_letter (consumer, topic, partition, record_offset, reason) \
      SELECT 'billing-order-confirmed', 't', 0, n, 'permanent' FROM generate_series(1, 1203) AS n; \
    INSERT INTO parked_key (consumer, topic, key, next_attempt_at) VALUES \
      ('billing-order-confirmed', 't', 'a', now()), ('mail-order-confirmed', 't', 'b', now()), ('mail-order-confirmed', 't', 'c', now()); \
    UPDATE parked_key SET held_at = now() WHERE key = 'c'; \
    INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, topic, key, payload, occurred_at, created_at) \
      SELECT gen_random_uuid(), 't', 'A', 'a', 't', 'k', '', now(), now() - interval '41 s' FROM generate_series(1, 214); \
    UPDATE outbox SET attempts = 3, last_error = 'too large' WHERE id = 1; \
    INSERT INTO outbound_call (service, consumer, event_id, event_type, aggregate_id, endpoint, method, path, idempotency_key, state) \
      SELECT 'billing', 'billing-order-confirmed', gen_random_uuid(), 't', 'a', 'payments', 'POST', '/', 'k', 'set_aside' FROM generate_series(1, 2)";

#[tokio::test]
async fn an_idle_database_is_well() {
    let (database, _connection) = database().await;
    let ended = run(&database, &["status"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    assert!(
        ended
            .stdout
            .starts_with(&format!("{}, as of 2", database.name())),
        "{}",
        ended.stdout
    );
    assert_eq!(
        below_the_first_line(&ended.stdout),
        "No consumer has run here yet\n\
         OUTBOX     0 unpublished\n\
         CALLS      0 set aside, 0 unknown\n\
         WINDOW     30d back, partitions for 7d ahead\n\
         All is well.\n"
    );
}

#[tokio::test]
async fn one_screen_has_the_worst_first_and_what_to_do_next() {
    let (database, mut connection) = database().await;
    execute(&mut connection, TROUBLE).await;
    let slot: i16 = sqlx::query_scalar("SELECT slot FROM outbox LIMIT 1")
        .fetch_one(&mut connection)
        .await
        .expect("a slot");

    let person = on_terminal(120, factum(&database, &["status"]), "");
    assert_eq!(person.code, 1);
    let age = person
        .screen
        .split("oldest ")
        .nth(1)
        .and_then(|rest| rest.split(',').next())
        .expect("an age");
    assert!(age.ends_with('s'), "{}", person.screen);
    assert_eq!(
        below_the_first_line(&person.screen),
        format!(
            "CONSUMER                 STATE     LAG  OLDEST  EV/S  PARKED   DEAD\n\
             billing-order-confirmed  x dead     12    0.4s   912       1  1,203\n\
             mail-order-confirmed     x held      -       -     -       2      0\n\
             stock-order-confirmed    ! nobody    -       -     -       0      0\n\
             audit-order-confirmed    runs        -       -     -       0      0\n\
             OUTBOX  !  214 unpublished, oldest {age}, slot {slot} stopped, no relay\n\
             CALLS   !  2 set aside, 0 unknown\n\
             WINDOW     30d back, partitions for 7d ahead\n\
             2 red, 3 yellow. Next: factum dlq list; factum parked list; factum calls list\n"
        )
    );
    let pipe = run(&database, &["status"]);
    assert_eq!(pipe.code, 1);
    assert!(
        pipe.stdout
            .contains("\nbilling-order-confirmed\tx dead\t12\t0.4s\t912\t1\t1203\n"),
        "{}",
        pipe.stdout
    );
    assert!(!person.screen.contains('\u{1b}') && !pipe.stdout.contains('\u{1b}'));
    let narrow = on_terminal(60, factum(&database, &["status"]), "");
    assert!(
        narrow.screen.contains("\nbilling-order-confirmed  x dead "),
        "{}",
        narrow.screen
    );

    // Nothing runs and nothing is measured.
    execute(
        &mut connection,
        "UPDATE instance SET seen_at = now() - interval '21 s'",
    )
    .await;
    let person = on_terminal(120, factum(&database, &["status"]), "");
    assert!(
        person.screen.contains(
            "CONSUMER                 STATE           PARKED   DEAD\n\
             billing-order-confirmed  x dead, nobody       1  1,203\n\
             mail-order-confirmed     x held, nobody       2      0\n"
        ),
        "{}",
        person.screen
    );
    execute(
        &mut connection,
        "UPDATE instance SET seen_at = now() + interval '1 h' WHERE service = 'billing'",
    )
    .await;

    let (code, object) = status(&database);
    assert_eq!(
        (code, &object["schema"], &object["ok"]),
        (1, &json!("factum.status/1"), &json!(false))
    );
    let billing = &object["consumers"][0];
    assert_eq!(
        (
            &billing["dead_letters"],
            &billing["lag"],
            &billing["processes"]
        ),
        (&json!("1203"), &json!("12"), &json!(2))
    );
    assert_eq!(
        object["consumers"][1]["lag"],
        Value::Null,
        "unknown is not 0"
    );
}

/// Each red alone is exit code 1, and each yellow alone is not.
#[tokio::test]
async fn red_is_code_1_and_yellow_is_not() {
    let (database, mut connection) = database().await;
    execute(&mut connection, TROUBLE).await;
    execute(
        &mut connection,
        "DELETE FROM parked_key WHERE key = 'c'; UPDATE dead_letter SET state = 'discarded'",
    )
    .await;
    let (code, object) = status(&database);
    assert_eq!(code, 0, "nothing is red: {object}");
    assert_eq!(object["consumers"][0]["level"], json!("yellow"));

    execute(
        &mut connection,
        "UPDATE dead_letter SET state = 'open' WHERE record_offset = 1",
    )
    .await;
    assert_eq!(status(&database).0, 1, "one dead letter");
    execute(
        &mut connection,
        "UPDATE dead_letter SET state = 'replayed'; UPDATE parked_key SET held_at = now()",
    )
    .await;
    assert_eq!(status(&database).0, 1, "a held key");
    execute(&mut connection, "DELETE FROM parked_key").await;
    assert_eq!(status(&database).0, 0);
    // Every partition from today on is gone.
    execute(
        &mut connection,
        "DO $$ DECLARE name text; BEGIN \
           FOR name IN SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'processed_event'::regclass \
             ORDER BY pg_get_expr((SELECT relpartbound FROM pg_class WHERE oid = inhrelid), inhrelid) DESC LIMIT 8 LOOP \
             EXECUTE 'DROP TABLE ' || name; END LOOP; END $$",
    )
    .await;
    let (code, object) = status(&database);
    assert_eq!(
        (code, &object["window"]["level"]),
        (1, &json!("red")),
        "{object}"
    );
}

/// Numbers of tables that grow stop at 10,000 and say so.
#[tokio::test]
async fn what_grows_is_counted_up_to_ten_thousand() {
    let (database, mut connection) = database().await;
    execute(
        &mut connection,
        "INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, topic, key, payload, occurred_at) \
           SELECT gen_random_uuid(), 't', 'A', 'a', 't', 'k', '', now() FROM generate_series(1, 10001); \
         INSERT INTO parked_key (consumer, topic, key, next_attempt_at) \
           SELECT 'billing', 't', n::text::bytea, now() FROM generate_series(1, 10001) AS n; \
         INSERT INTO event_reader (consumer, event_type, taken_as, newest, topic, consumer_group) VALUES ('billing', 't', 't', 't', 't', 'g')",
    )
    .await;
    let ended = run(&database, &["status"]);
    assert!(
        ended.stdout.contains("10,000+ unpublished"),
        "{}",
        ended.stdout
    );
    assert!(
        ended
            .stdout
            .contains("\nbilling\t! nobody\t-\t-\t-\t10,000+\t0\n"),
        "{}",
        ended.stdout
    );
    let (_, object) = status(&database);
    assert_eq!(object["outbox"]["unpublished"], json!("10000"));
    assert_eq!(object["outbox"]["unpublished_are_more"], json!(true));
    assert_eq!(object["outbox"]["relays"], json!(0));
    assert_eq!(object["outbox"]["free_slots"], json!(64));
}

/// A part that can't be read in its two seconds is said to be unknown, and the others are told.
#[tokio::test]
async fn a_part_that_takes_too_long_is_cut_and_said_to_be() {
    let (database, mut connection) = database().await;
    execute(
        &mut connection,
        "BEGIN; LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE",
    )
    .await;
    let ended = run(&database, &["status"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(
        ended.stdout.contains(
            "\nOUTBOX  !  unknown: it took longer than 2 s and was cut\nCALLS      0 set aside"
        ),
        "{}",
        ended.stdout
    );
    execute(&mut connection, "ROLLBACK").await;
}
