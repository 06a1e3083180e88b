//! `factum dlq` on a real PostgreSQL: what it prints, what it refuses, what it writes.
//!
//! The service's side is SQL here, which does what a service does with plans and runs; `tests/tests/operator_walk.rs`
//! has a real one.

mod ended;

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use factum_testing::{TestDatabase, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use sqlx::{PgConnection, Row as _};

use ended::Ended;
use ended::terminal::{Seen, on_terminal};

const LIMIT: Duration = Duration::from_secs(60);
const CONSUMER: &str = "billing-order-confirmed";
/// In payloads, keys of objects and header values: it shows nowhere.
const CANARY: &str = "cAnArY";

fn factum(database: &TestDatabase, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_factum"));
    command
        .args(arguments)
        .env("DATABASE_URL", database.url())
        .env("USER", "ana")
        .env_remove("FACTUM_DEDUP_WINDOW_DAYS");
    command
}

fn run(database: &TestDatabase, arguments: &[&str]) -> Ended {
    factum(database, arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the command runs")
        .into()
}

fn dlq(database: &TestDatabase, arguments: &[&str]) -> Ended {
    run(database, &[&["dlq"], arguments].concat())
}

/// On a terminal of that many columns.
fn seen(database: &TestDatabase, columns: u16, arguments: &[&str], typed: &str) -> Seen {
    on_terminal(columns, factum(database, arguments), typed)
}

/// The only row of a list, of which the closing object says that it is the only one.
fn row_of(ended: &Ended, name: &str) -> Value {
    assert_eq!(ended.stdout.lines().count(), 2, "{}", ended.stdout);
    assert_eq!(ended.json()[name], json!(1));
    let line = ended.stdout.lines().next().expect("a row");
    serde_json::from_str(line).expect("JSON")
}

/// The one line of JSON.
fn json_of(ended: &Ended) -> Value {
    assert_eq!(ended.stdout.lines().count(), 1, "{}", ended.stdout);
    ended.json()
}

/// A migrated database without letters.
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

async fn text(connection: &mut PgConnection, sql: &'static str) -> String {
    let row = sqlx::query(sql).fetch_one(connection).await.expect("a row");
    row.get(0)
}

/// Letters 1 to `n` of one group, from offset 918273 on.
async fn letters(connection: &mut PgConnection, n: i64) {
    sqlx::query(
        "INSERT INTO dead_letter (consumer, topic, partition, record_offset, key, value, header_names, header_values, \
           event_id, event_type, reason, path, path_group, error, attempts, first_seen, last_seen, payload_bytes, build) \
         SELECT $2, 'orders.confirmed', 4, 918272 + n, convert_to('order-7c1e55aa' || n, 'UTF8'), \
           convert_to('{\"orderId\":\"cAnArY\",\"total\":{\"amount\":17.25,\"cAnArY@b\":1}}', 'UTF8'), \
           ARRAY['event-type', 'trace'], ARRAY['\\x6341', NULL]::bytea[], gen_random_uuid(), 'order.confirmed.v1', 'missing_field', \
           '$.total.currency', '$.total.currency', 'missing_field at $.total.currency: expected string, ISO 4217', 1, \
           timestamptz '2026-06-01T14:02:00Z', timestamptz '2026-06-01T14:19:58Z' + n * interval '1 ms', 1953, '1.4.2' \
         FROM generate_series(1, $1) AS n",
    )
    .bind(n)
    .bind(CONSUMER)
    .execute(connection)
    .await
    .expect("letters can be written");
}

/// A process of the consumer, which is there for as long as a test may take.
async fn instance(connection: &mut PgConnection) {
    sqlx::query(
        "INSERT INTO instance (id, service, build, host, process_id, consumers, seen_at) \
         VALUES (gen_random_uuid(), 'billing', '1.5.0', 'host', 1, ARRAY[$1], now() + interval '1 hour')",
    )
    .bind(CONSUMER)
    .execute(connection)
    .await
    .expect("an instance can be written");
}

/// What a service does with a plan: here by a rule of the letter's number.
const CHECK: &str = "\
    WITH run AS (SELECT id FROM replay_run WHERE state = 'checking' FOR UPDATE), \
    items AS ( \
      UPDATE replay_item i SET at = clock_timestamp(), state = CASE \
        WHEN dead_letter_id % 20 = 3 THEN 'undecodable' WHEN dead_letter_id % 20 = 7 THEN 'out_of_window' \
        WHEN dead_letter_id % 20 = 11 THEN 'duplicate' ELSE 'ready' END \
      FROM run WHERE i.run_id = run.id RETURNING i.run_id) \
    UPDATE replay_run SET state = 'planned' WHERE id IN (SELECT id FROM run)";

/// What a service does with a run: one item.
const CARRY_OUT: &str = "\
    WITH run AS (SELECT id, first FROM replay_run WHERE state = 'running' FOR UPDATE), \
    item AS ( \
      SELECT i.run_id, i.dead_letter_id, i.state FROM replay_item i JOIN run ON run.id = i.run_id \
      WHERE i.state IN ('ready', 'duplicate') ORDER BY topic, partition, record_offset LIMIT 1), \
    done AS ( \
      UPDATE replay_item i SET at = clock_timestamp(), detail = 'invalid: \u{1b}[2Jno such order', \
        state = CASE WHEN item.state = 'duplicate' THEN 'was_duplicate' WHEN item.dead_letter_id % 20 = 5 THEN 'failed' ELSE 'handled' END \
      FROM item WHERE i.run_id = item.run_id AND i.dead_letter_id = item.dead_letter_id RETURNING i.dead_letter_id, i.state), \
    letter AS ( \
      UPDATE dead_letter d SET state = 'replayed', state_at = clock_timestamp() \
      FROM done WHERE d.id = done.dead_letter_id AND done.state <> 'failed') \
    UPDATE replay_run r SET first = r.first - 1, \
        state = CASE WHEN r.first = 1 THEN 'paused' ELSE r.state END \
    FROM run WHERE r.id = run.id AND EXISTS (SELECT FROM item)";

const END: &str = "\
    UPDATE replay_run r SET state = 'done', ended_at = clock_timestamp() WHERE state = 'running' \
    AND NOT EXISTS (SELECT FROM replay_item i WHERE i.run_id = r.id AND i.state IN ('ready', 'duplicate'))";

/// Starts a command and plays the service until the command has ended.
async fn with_service(
    database: &TestDatabase,
    connection: &mut PgConnection,
    arguments: &[&str],
) -> Ended {
    let child = start(database, arguments);
    served(connection, child).await
}

fn start(database: &TestDatabase, arguments: &[&str]) -> Child {
    factum(database, arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts")
}

async fn served(connection: &mut PgConnection, mut child: Child) -> Ended {
    eventually(LIMIT, "the command ends", async || {
        for statement in [CHECK, CARRY_OUT, END] {
            execute(connection, statement).await;
        }
        child.try_wait().expect("it can be asked").is_some()
    })
    .await;
    child.wait_with_output().expect("it has ended").into()
}

/// A plan of these arguments, checked; its id.
async fn planned(
    database: &TestDatabase,
    connection: &mut PgConnection,
    arguments: &[&str],
) -> String {
    let arguments = [&["dlq", "plan", "--json"], arguments].concat();
    let ended = with_service(database, connection, &arguments).await;
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    json_of(&ended)["plan"].as_str().expect("an id").to_owned()
}

/// The group that the letters of [`letters`] are in.
fn the_group(database: &TestDatabase) -> String {
    let listed = dlq(database, &["list", "--json"]);
    row_of(&listed, "groups")["group"]
        .as_str()
        .expect("an id")
        .to_owned()
}

#[tokio::test]
async fn groups_and_letters_for_a_program_and_for_a_person() {
    let (database, mut connection) = database().await;
    letters(&mut connection, 1203).await;
    let id = the_group(&database);

    let pipe = dlq(&database, &["list"]);
    assert_eq!((pipe.code, pipe.stderr.as_str()), (0, ""));
    assert_eq!(
        pipe.stdout,
        format!(
            "GROUP\tREASON\tWHERE\tTYPE\tOPEN\tLAST\tCONSUMER\n\
             {id}\tmissing_field\t$.total.currency\torder.confirmed.v1\t1203\t2026-06-01T14:19:59Z\tbilling-order-confirmed\n"
        )
    );
    let listed = dlq(&database, &["list", "--json"]);
    assert_eq!(listed.json()["schema"], json!("factum.dlq.list/1"));
    let object = row_of(&listed, "groups");
    assert_eq!(object["schema"], json!("factum.dlq.group/1"));
    assert_eq!(object["open"], json!("1203"), "64-bit numbers are text");

    let person = seen(&database, 120, &["dlq", "list"], "");
    assert_eq!(person.code, 0);
    assert_eq!(
        person.screen,
        format!(
            "GROUP  REASON         WHERE             TYPE                 OPEN  LAST\n\
             {id}   missing_field  $.total.currency  order.confirmed.v1  1,203  2026-06-01T14:19:59Z\n"
        )
    );
    let narrow = seen(&database, 80, &["dlq", "list"], "");
    assert!(
        narrow.screen.lines().all(|line| line.chars().count() <= 80),
        "{}",
        narrow.screen
    );
    assert!(
        narrow.screen.contains(".."),
        "a middle is left out: {}",
        narrow.screen
    );
    for (name, value) in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let mut command = factum(&database, &["dlq", "list"]);
        command.env(name, value);
        assert!(!on_terminal(120, command, "").screen.contains('\u{1b}'));
    }

    // The letters of the group, a page at a time, by their ids.
    let first = dlq(&database, &["list", "--group", &id]);
    assert_eq!(first.stdout.lines().count(), 51);
    assert_eq!(
        first.stdout.lines().nth(1),
        Some(
            "1\topen\torders.confirmed/4 @ 918273\torder-7c1e55aa1\t1\t1953\t2026-06-01T14:19:58Z"
        )
    );
    assert_eq!(
        first.stderr,
        format!("More: factum dlq list --group {id} --after 50\n")
    );
    let last = dlq(
        &database,
        &["list", "--group", &id, "--after", "1200", "--json"],
    );
    assert_eq!(
        (&last.json()["letters"], &last.json()["more"]),
        (&json!(3), &json!(false))
    );
    let ids: Vec<Value> = last
        .stdout
        .lines()
        .take(3)
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["id"].clone())
        .collect();
    assert_eq!(ids, [json!("1201"), json!("1202"), json!("1203")]);
    assert_eq!(last.stderr, "");

    let stats = dlq(&database, &["stats"]);
    assert_eq!(
        stats.stdout,
        "CONSUMER\tOPEN\tREPLAYED\tDISCARDED\tOLDEST\tNEWEST\tOPEN BY REASON\n\
         billing-order-confirmed\t1203\t0\t0\t2026-06-01T14:02:00Z\t2026-06-01T14:19:59Z\tmissing_field 1203\n"
    );

    execute(&mut connection, "UPDATE dead_letter SET state = 'replayed'").await;
    let none = dlq(&database, &["list"]);
    assert_eq!(none.code, 0);
    assert_eq!(
        none.stderr,
        "None is open; 0 open, 1,203 replayed, 0 discarded\n"
    );
    let replayed = dlq(&database, &["list", "--state", "replayed", "--json"]);
    assert_eq!(row_of(&replayed, "groups")["replayed"], json!("1203"));
    let empty = dlq(&database, &["list", "--json"]);
    assert_eq!(
        json_of(&empty)["groups"],
        json!(0),
        "an empty list is its closing object"
    );
    let unknown = dlq(&database, &["list", "--group", "zzzz"]);
    assert_eq!(unknown.code, 4);
    assert!(
        unknown
            .stderr
            .starts_with("error[DLQ-NO-GROUP]: no group has this id\n"),
        "{}",
        unknown.stderr
    );
}

#[tokio::test]
async fn a_letter_shows_its_fault_and_no_value() {
    let (database, mut connection) = database().await;
    letters(&mut connection, 1).await;
    instance(&mut connection).await;
    let shown = dlq(&database, &["show", "1"]);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    assert_eq!(
        shown.stdout,
        "1  open  billing-order-confirmed  order.confirmed.v1\n\
         reason  missing_field at $.total.currency: expected string, ISO 4217\n\
         from    orders.confirmed/4 @ 918273, key order-7c1e55aa1, 1.9 kB, attempt 1\n\
         seen    2026-06-01T14:02:00Z to 2026-06-01T14:19:58Z\n\
         builds  failed on 1.4.2; running billing 1.5.0\n\
         headers event-type 2 B, trace null\n  \
         \"total\": { \"amount\": <number>, \"…\": <number> }\n           \
         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ \"currency\" is missing\n"
    );
    assert_eq!(
        shown.stderr,
        "values hidden; --values shows those not personal (audited)\n"
    );
    let object = json_of(&dlq(&database, &["show", "1", "--json"]));
    assert_eq!(object["schema"], json!("factum.dlq.show/1"));
    assert_eq!(object["offset"], json!("918273"));
    assert_eq!(
        object["excerpt"][0],
        json!("  \"total\": { \"amount\": <number>, \"…\": <number> }")
    );

    let person = seen(&database, 80, &["dlq", "show", "1"], "");
    assert!(
        person.screen.contains("key order-7c1e55aa1, 1.9 kB"),
        "{}",
        person.screen
    );

    execute(
        &mut connection,
        "UPDATE dead_letter SET value = NULL, state = 'discarded', state_at = '2026-06-02Z'",
    )
    .await;
    let tombstone = dlq(&database, &["show", "1"]).stdout;
    assert!(
        tombstone.contains("since   discarded 2026-06-02T00:00:00Z\n"),
        "{tombstone}"
    );
    assert!(tombstone.contains("(no value: a tombstone)"), "{tombstone}");
    let missing = dlq(&database, &["show", "2"]);
    assert_eq!(missing.code, 4);
    assert!(
        missing.stderr.starts_with("error[DLQ-NO-LETTER]: "),
        "{}",
        missing.stderr
    );
    assert_eq!(dlq(&database, &["show", "0"]).code, 2);
}

/// Values of fields that the contract knows, and of no others; who looked, and why.
#[tokio::test]
async fn values_need_a_contract_and_a_reason_and_are_audited() {
    let (database, mut connection) = database().await;
    letters(&mut connection, 1).await;
    let folder = tempfile::tempdir().expect("a folder");
    let contracts = folder.path().join("contracts");
    std::fs::create_dir(&contracts).expect("a folder");
    std::fs::write(folder.path().join("Cargo.toml"), "").expect("a file");
    let write = |restricted: bool| {
        let fields = vec![
            factum_event::FieldShape::new(
                "orderId",
                factum_event::Shape::Integer {
                    min: 0,
                    max: 9,
                    not_zero: false,
                    text: true,
                },
            ),
            factum_event::FieldShape::new("total", factum_event::Shape::Money { text: true }),
        ];
        let contract = factum_event::Contract {
            event_type: "order.confirmed.v1".into(),
            aggregate_type: "Order".into(),
            topic: "orders.confirmed".into(),
            restricted,
            name: "OrderConfirmed".into(),
            supersedes: None,
            aggregate_id: "orderId".into(),
            fields,
            definitions: std::collections::BTreeMap::new(),
        };
        let file = contracts.join("order.confirmed.v1.json");
        std::fs::write(file, factum_contract::lock::to_text(&contract)).expect("a file");
    };
    let folder = folder.path().to_str().expect("a path").to_owned();
    const AUDITED: &str = "SELECT coalesce(string_agg(actor || '|' || via || '|' || action || '|' || subject || '|' || reason, ';'), '') FROM audit";

    assert_eq!(
        dlq(&database, &["show", "1", "--values"]).code,
        2,
        "no reason"
    );
    let refused = dlq(&database, &["show", "1", "--values", "--reason", "#4411"]);
    assert_eq!(refused.code, 4);
    assert!(
        refused.stderr.starts_with("error[DLQ-NO-CONTRACTS]: "),
        "{}",
        refused.stderr
    );
    write(true);
    let looking = [
        "show",
        "1",
        "--values",
        "--reason",
        "#4411",
        "--contracts",
        &folder,
    ];
    let refused = dlq(&database, &looking);
    assert_eq!(refused.code, 4);
    assert!(
        refused
            .stderr
            .starts_with("error[DLQ-RESTRICTED]: order.confirmed.v1 is"),
        "{}",
        refused.stderr
    );
    assert_eq!(
        text(&mut connection, AUDITED).await,
        "",
        "nothing was shown"
    );

    write(false);
    let shown = dlq(&database, &looking);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    assert!(
        shown
            .stdout
            .contains("\"total\": { \"amount\": 17.25, \"…\": <number> }"),
        "{}",
        shown.stdout
    );
    // The order's id is no number, so it isn't what the contract knows.
    assert!(
        shown.stdout.contains("\"orderId\": <string>"),
        "{}",
        shown.stdout
    );
    assert!(!shown.stdout.contains(CANARY), "{}", shown.stdout);
    assert_eq!(
        text(&mut connection, AUDITED).await,
        "ana|cli|reveal|letter 1|#4411"
    );
}

#[tokio::test]
async fn a_plan_is_made_by_the_service_that_would_carry_it_out() {
    let (database, mut connection) = database().await;
    letters(&mut connection, 1203).await;
    let group = the_group(&database);

    // Nobody is there to check it, and nothing is written.
    let refused = dlq(&database, &["plan", "--group", &group]);
    assert_eq!(refused.code, 4);
    assert_eq!(
        refused.stderr,
        format!(
            "error[DLQ-NO-INSTANCE]: no process of billing-order-confirmed runs\n  where: group {group}\n  \
             why:   the handler lives in the service\n  mend:  start the service, then repeat the command\n"
        )
    );
    let refused = dlq(&database, &["plan", "--group", &group, "--json"]);
    assert_eq!(json_of(&refused)["code"], json!("DLQ-NO-INSTANCE"));
    execute(
        &mut connection,
        "INSERT INTO instance (id, service, build, host, process_id, consumers, seen_at) VALUES \
         (gen_random_uuid(), 'billing', '1.4.2', 'host', 1, ARRAY['billing-order-confirmed'], now() - interval '21 s'), \
         (gen_random_uuid(), 'mail', '1.0.0', 'host', 2, ARRAY['mail-order-confirmed'], now())",
    )
    .await;
    assert_eq!(
        dlq(&database, &["plan", "--group", &group]).code,
        4,
        "one is dead, one another's"
    );
    assert_eq!(
        text(&mut connection, "SELECT count(*)::text FROM replay_run").await,
        "0"
    );

    instance(&mut connection).await;
    execute(
        &mut connection,
        "INSERT INTO parked_key (consumer, topic, key, next_attempt_at) \
         SELECT consumer, topic, key, now() FROM dead_letter WHERE id = 17",
    )
    .await;
    let ended = with_service(
        &database,
        &mut connection,
        &["dlq", "replay", "--group", &group, "--dry-run"],
    )
    .await;
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let told = ended.stdout;
    let good_until = text(
        &mut connection,
        "SELECT to_char(good_until AT TIME ZONE 'UTC', 'HH24:MI:SS') FROM replay_run",
    )
    .await;
    let made = text(&mut connection, "SELECT to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS') FROM replay_run").await;
    assert_eq!(
        told,
        format!(
            "PLAN p-1 for billing-order-confirmed, good until {good_until}Z\n\
             matched             1,203  open at {made}Z\n\
             would be handled    1,022  decoded by billing 1.5.0; handler not run\n\
             would be duplicate     60  \n\
             left out              121  61 still missing_field, 60 outside the window\n\
             order  later events of these keys may be handled already; 1 key parked\n\
             reach  this consumer only; 100/s, about 10 s\n\
             Nothing was replayed. Next: factum dlq replay --plan p-1 --reason TEXT\n"
        )
        .replace("  \n", "\n")
    );
    assert_eq!(
        text(
            &mut connection,
            "SELECT round(extract(epoch FROM good_until - created_at))::text FROM replay_run"
        )
        .await,
        "900"
    );

    // Accepted, those outside the window are part of it.
    let accepted = with_service(
        &database,
        &mut connection,
        &[
            "dlq",
            "plan",
            "--group",
            &group,
            "--accept-outside-window",
            "--rate",
            "5",
            "--json",
        ],
    )
    .await;
    let accepted = json_of(&accepted);
    assert_eq!(
        (
            &accepted["would_be_handled"],
            &accepted["outside_window"],
            &accepted["rate"],
            &accepted["plan"]
        ),
        (&json!("1082"), &json!("0"), &json!(5), &json!("p-2"))
    );
    let runs = dlq(&database, &["runs", "--json"]);
    let newest: Value =
        serde_json::from_str(runs.stdout.lines().next().expect("a line")).expect("JSON");
    assert_eq!(
        (&newest["run"], &newest["state"]),
        (&json!("p-2"), &json!("planned"))
    );
}

#[tokio::test]
async fn a_plan_takes_what_was_asked_for_and_never_all_by_chance() {
    let (database, mut connection) = database().await;
    letters(&mut connection, 30).await;
    instance(&mut connection).await;
    execute(
        &mut connection,
        "INSERT INTO dead_letter (consumer, topic, partition, record_offset, reason) VALUES ('mail', 't', 0, 0, 'permanent'); \
         UPDATE dead_letter SET reason = 'invalid_field', path_group = '$.items[].price' WHERE id IN (4, 5); \
         UPDATE dead_letter SET event_type = 'order.confirmed.v2' WHERE id = 6; \
         UPDATE dead_letter SET last_seen = '2026-06-02T00:00:00Z' WHERE id IN (7, 8); \
         UPDATE dead_letter SET state = 'discarded' WHERE id = 9",
    )
    .await;
    let consumer = &["--consumer", CONSUMER][..];
    for (filter, matched) in [
        (&[][..], "29"),
        (&["--limit", "5"], "5"),
        (&["--reason-code", "invalid_field"], "2"),
        (&["--path", "$.items[3].price"], "2"),
        (
            &[
                "--path",
                "$.items[3].price",
                "--reason-code",
                "missing_field",
            ],
            "-",
        ),
        (&["--type", "order.confirmed.v2"], "1"),
        (&["--key", "order-7c1e55aa12"], "1"),
        (&["--since", "2026-06-02T00:00:00Z"], "2"),
        (&["--until", "2026-06-02T00:00:00Z"], "27"),
    ] {
        let arguments = [&["dlq", "plan", "--json"], consumer, filter].concat();
        let ended = with_service(&database, &mut connection, &arguments).await;
        if matched == "-" {
            assert_eq!(ended.code, 4);
            assert!(
                ended
                    .stderr
                    .starts_with("error[DLQ-EMPTY]: no dead letter matches\n"),
                "{}",
                ended.stderr
            );
        } else {
            assert_eq!(json_of(&ended)["matched"], json!(matched), "{filter:?}");
        }
    }
    let of_ids = with_service(
        &database,
        &mut connection,
        &["dlq", "plan", "--id", "3", "1", "3", "--json"],
    )
    .await;
    assert_eq!(json_of(&of_ids)["matched"], json!("2"));

    for (arguments, code, starts) in [
        (&["plan"][..], 2, "error[DLQ-NO-FILTER]: "),
        (&["plan", "--reason-code", "missing_field"], 2, "error: "),
        (
            &["plan", "--group", "7f3k", "--consumer", "mail"],
            2,
            "error: ",
        ),
        (&["plan", "--id", "1", "--limit", "100001"], 2, "error: "),
        (
            &["plan", "--id", "1", "31"],
            4,
            "error[DLQ-MANY-CONSUMERS]: ",
        ),
        (
            &["plan", "--id", "1", "9"],
            4,
            "error[DLQ-STATE]: dead letter 9 is not open\n",
        ),
        (
            &["plan", "--id", "1", "99"],
            4,
            "error[DLQ-NO-LETTER]: there is no dead letter 99\n",
        ),
        (&["plan", "--consumer", "nobody"], 4, "error[DLQ-EMPTY]: "),
        (&["replay"], 2, "error[DLQ-NO-PLAN]: "),
        (
            &["replay", "--id", "1", "--reason", "x"],
            2,
            "error[DLQ-NO-PLAN]: ",
        ),
        (&["discard", "--reason", "x"], 2, "error[DLQ-NO-FILTER]: "),
        (&["discard", "--id", "1", "--reason", "  "], 2, "error: "),
    ] {
        let ended = dlq(&database, arguments);
        assert_eq!(ended.code, code, "{arguments:?}: {}", ended.stderr);
        assert!(
            ended.stderr.starts_with(starts),
            "{arguments:?}: {}",
            ended.stderr
        );
    }
    // A service that is there and doesn't check: it is said, and nothing waits for ever.
    let late = dlq(&database, &["plan", "--id", "1", "--wait", "1"]);
    assert_eq!(late.code, 1);
    assert!(
        late.stderr.starts_with(
            "error[DLQ-NOT-CHECKED]: the plan is not checked after 1 s: 1 of 1 letters are left\n"
        ),
        "{}",
        late.stderr
    );
}

#[tokio::test]
async fn a_replay_is_carried_out_by_the_service_and_told_by_the_command() {
    let (database, mut connection) = database().await;
    letters(&mut connection, 30).await;
    instance(&mut connection).await;
    let plan = planned(&database, &mut connection, &["--consumer", CONSUMER]).await;
    let replay = |more: &[&'static str]| -> Vec<String> {
        let all = [
            &["dlq", "replay", "--plan", &plan, "--reason", "#4411"],
            more,
        ]
        .concat();
        all.iter().map(|&argument| argument.to_owned()).collect()
    };
    let carried_out = async |connection: &mut PgConnection, more: &[&'static str]| {
        let arguments = replay(more);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        with_service(&database, connection, &arguments).await
    };

    // Try one first: a few need no question.
    let one = carried_out(&mut connection, &["--first", "1"]).await;
    assert_eq!(one.code, 0, "{}", one.stderr);
    assert_eq!(
        one.stdout,
        "r-1 paused: handled 1, duplicate 0, failed again 0\n\
         25 left. Next: factum dlq replay --plan p-1 --reason TEXT; or factum dlq replay --stop r-1 --reason TEXT\n"
    );
    // Many need one, and nobody is there to answer.
    let refused = carried_out(&mut connection, &[]).await;
    assert_eq!(refused.code, 4);
    assert_eq!(
        refused.stderr,
        "error[DLQ-NOT-CONFIRMED]: nobody is there to confirm it\n  where: replay 25 events of billing-order-confirmed\n  \
         why:   more than 10 events are touched only with a confirmation\n  mend:  repeat the command with --yes\n"
    );
    // One of them fails again (its number is 5, and 25), one was handled before (11).
    let rest = carried_out(&mut connection, &["--yes"]).await;
    assert_eq!(rest.code, 1, "{}", rest.stderr);
    assert_eq!(
        rest.stdout,
        "r-1 done: handled 23, duplicate 1, failed again 2\n\
         failed  5  invalid: \\u001b[2Jno such order\n\
         failed  25  invalid: \\u001b[2Jno such order\n\
         What failed stays open. Next: factum dlq list\n"
    );
    assert_eq!(
        text(&mut connection, "SELECT string_agg(state || count, ' ' ORDER BY state) FROM (SELECT state, count(*) FROM dead_letter GROUP BY 1) AS s").await,
        "open6 replayed24"
    );
    // Who did what, and why.
    assert_eq!(
        text(
            &mut connection,
            "SELECT string_agg(actor || ' ' || via || ' ' || action || ' ' || subject || ' ' || consumer || ' ' || events || ' ' || reason, '; ' ORDER BY id) FROM audit"
        )
        .await,
        "ana cli replay r-1 billing-order-confirmed 1 #4411; ana cli replay r-1 billing-order-confirmed 25 #4411"
    );
    // It is at its end.
    let again = carried_out(&mut connection, &["--yes", "--json"]).await;
    assert_eq!(again.code, 4);
    assert_eq!(json_of(&again)["code"], json!("DLQ-RUN-STATE"));
    assert_eq!(json_of(&again)["error"], json!("it is done"));
    assert_eq!(
        text(
            &mut connection,
            "SELECT action || ' ' || subject FROM audit ORDER BY id DESC LIMIT 1"
        )
        .await,
        "replay_refused r-1"
    );
}

#[tokio::test]
async fn a_replay_is_refused_by_name() {
    let (database, mut connection) = database().await;
    letters(&mut connection, 12).await;
    instance(&mut connection).await;
    let first = planned(&database, &mut connection, &["--id", "1", "2"]).await;
    let second = planned(&database, &mut connection, &["--id", "4", "6"]).await;
    let replay = |plan: &str| {
        dlq(
            &database,
            &["replay", "--plan", plan, "--reason", "#4411", "--detach"],
        )
    };
    let starts = |ended: &Ended, starts: &str| {
        assert_eq!(ended.code, 4, "{}", ended.stderr);
        assert!(ended.stderr.starts_with(starts), "{}", ended.stderr);
    };

    starts(&replay("p-zz"), "error[DLQ-NO-RUN]: ");
    let nameless = dlq(&database, &["replay", "--plan", &first]);
    assert_eq!(nameless.code, 2);
    assert!(
        nameless.stderr.starts_with("error[DLQ-NO-REASON]: "),
        "{}",
        nameless.stderr
    );
    // Nobody runs.
    execute(
        &mut connection,
        "UPDATE instance SET seen_at = now() - interval '21 s'",
    )
    .await;
    starts(
        &replay(&first),
        "error[DLQ-NO-INSTANCE]: no process of billing-order-confirmed runs\n  where: plan p-1\n",
    );
    execute(
        &mut connection,
        "UPDATE instance SET seen_at = now() + interval '1 hour'",
    )
    .await;
    // Its time is over.
    execute(
        &mut connection,
        "UPDATE replay_run SET good_until = '2026-06-01T00:00:00Z' WHERE id = 1",
    )
    .await;
    starts(
        &replay(&first),
        "error[DLQ-EXPIRED]: the plan was good until 2026-06-01T00:00:00Z\n",
    );
    execute(
        &mut connection,
        "UPDATE replay_run SET good_until = now() + interval '1 hour' WHERE id = 1",
    )
    .await;
    // Started twice; another run lives; what is paused lives, too.
    assert_eq!(replay(&first).code, 0);
    starts(&replay(&first), "error[DLQ-RUN-STATE]: it is running\n");
    starts(
        &replay(&second),
        "error[DLQ-ANOTHER-RUN]: another run of billing-order-confirmed is running: r-1\n",
    );
    assert_eq!(
        dlq(&database, &["replay", "--stop", "r-1"]).code,
        2,
        "without a reason"
    );
    let paused = dlq(
        &database,
        &["replay", "--pause", "r-1", "--reason", "#4411"],
    );
    assert_eq!((paused.code, paused.stdout.as_str()), (0, "r-1 paused\n"));
    starts(
        &dlq(
            &database,
            &["replay", "--pause", "r-1", "--reason", "#4411"],
        ),
        "error[DLQ-RUN-STATE]: it is paused\n",
    );
    starts(
        &replay(&second),
        "error[DLQ-ANOTHER-RUN]: another run of billing-order-confirmed is paused: r-1\n",
    );
    // A paused run goes on after its plan's time, and can be ended.
    execute(
        &mut connection,
        "UPDATE replay_run SET good_until = '2026-06-01T00:00:00Z' WHERE id = 1",
    )
    .await;
    assert_eq!(replay(&first).code, 0);
    let stopped = dlq(
        &database,
        &["replay", "--stop", "r-1", "--reason", "#4411", "--json"],
    );
    assert_eq!(json_of(&stopped)["state"], json!("stopped"));
    starts(
        &dlq(&database, &["replay", "--stop", "r-1", "--reason", "#4411"]),
        "error[DLQ-RUN-STATE]: it is stopped\n",
    );
    starts(&replay(&first), "error[DLQ-RUN-STATE]: it is stopped\n");
    assert_eq!(replay(&second).code, 0, "the way is free");
    let runs = dlq(&database, &["runs"]);
    assert!(
        runs.stdout
            .contains("r-1\tstopped\tbilling-order-confirmed\t2\t0\t0\t0\t")
            && runs.stdout.contains("\tana\tstopped by ana\n"),
        "{}",
        runs.stdout
    );
}

/// Ctrl-C lets the run rest; a command that is killed doesn't.
#[tokio::test]
async fn an_interrupted_replay_pauses_and_a_killed_command_changes_nothing() {
    let (database, mut connection) = database().await;
    letters(&mut connection, 8).await;
    instance(&mut connection).await;
    let plan = planned(&database, &mut connection, &["--consumer", CONSUMER]).await;
    let arguments = ["dlq", "replay", "--plan", &plan, "--reason", "#4411"];
    const STATE: &str = "SELECT state FROM replay_run";
    let running = async |connection: &mut PgConnection, child: &Child, signal: Signal| {
        eventually(LIMIT, "the run has begun", async || {
            text(connection, STATE).await == "running"
        })
        .await;
        let id = i32::try_from(child.id()).expect("a process id");
        kill(Pid::from_raw(id), signal).expect("the command is there");
    };

    let mut child = start(&database, &arguments);
    running(&mut connection, &child, Signal::SIGKILL).await;
    child.wait().expect("it ends");
    assert_eq!(
        text(&mut connection, STATE).await,
        "running",
        "the service goes on"
    );

    assert_eq!(
        dlq(
            &database,
            &["replay", "--pause", "r-1", "--reason", "#4411"]
        )
        .code,
        0
    );
    let mut child = start(&database, &arguments);
    running(&mut connection, &child, Signal::SIGINT).await;
    eventually(LIMIT, "the command ends", async || {
        child.try_wait().expect("it can be asked").is_some()
    })
    .await;
    let ended: Ended = child.wait_with_output().expect("it has ended").into();
    assert_eq!(ended.code, 130, "{}", ended.stderr);
    assert!(
        ended
            .stdout
            .starts_with("r-1 paused: handled 0, duplicate 0, failed again 0\n"),
        "{}",
        ended.stdout
    );
    assert_eq!(ended.stderr, "pauses after the event at hand\n");
    assert_eq!(text(&mut connection, STATE).await, "paused");
}

/// After a second a person sees how far it is; a program never gets a bar.
#[tokio::test]
async fn a_run_of_more_than_a_second_has_a_bar_on_a_terminal() {
    let (database, mut connection) = database().await;
    letters(&mut connection, 2).await;
    instance(&mut connection).await;
    let plan = planned(&database, &mut connection, &["--consumer", CONSUMER]).await;
    let command = factum(
        &database,
        &["dlq", "replay", "--plan", &plan, "--reason", "#4411"],
    );
    let person = tokio::task::spawn_blocking(move || on_terminal(100, command, ""));
    eventually(LIMIT, "the run has taken two seconds", async || {
        let waited = "SELECT coalesce(started_at < clock_timestamp() - interval '2 s', false)::text FROM replay_run";
        text(&mut connection, waited).await == "true"
    })
    .await;
    for statement in [CARRY_OUT, CARRY_OUT, END] {
        execute(&mut connection, statement).await;
    }
    let person = person.await.expect("no panic");
    assert_eq!(person.code, 0, "{}", person.screen);
    assert!(
        person
            .screen
            .contains("r-1 ---------- 0/2 handled 0, duplicate 0, failed again 0"),
        "{:?}",
        person.screen
    );
    assert!(
        person
            .screen
            .ends_with("r-1 done: handled 2, duplicate 0, failed again 0\nNext: factum status\n"),
        "{:?}",
        person.screen
    );
}

/// A run that the service stops, and one that somebody else pauses, are not well.
#[tokio::test]
async fn a_stopped_replay_is_code_1_with_its_cause() {
    let (database, mut connection) = database().await;
    letters(&mut connection, 2).await;
    instance(&mut connection).await;
    let plan = planned(&database, &mut connection, &["--consumer", CONSUMER]).await;
    let mut child = start(
        &database,
        &[
            "dlq", "replay", "--plan", &plan, "--reason", "#4411", "--json",
        ],
    );
    eventually(LIMIT, "the command ends", async || {
        execute(
            &mut connection,
            "UPDATE replay_run SET state = 'stopped', stop_cause = '10 failures in a row', ended_at = now() WHERE state = 'running'",
        )
        .await;
        child.try_wait().expect("it can be asked").is_some()
    })
    .await;
    let ended: Ended = child.wait_with_output().expect("it has ended").into();
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    let told = json_of(&ended);
    assert_eq!(
        (&told["state"], &told["stop_cause"], &told["left"]),
        (
            &json!("stopped"),
            &json!("10 failures in a row"),
            &json!("2")
        )
    );
}

#[tokio::test]
async fn on_a_terminal_the_consumers_name_confirms_more_than_ten_events() {
    let (database, mut connection) = database().await;
    letters(&mut connection, 12).await;
    let discard = [
        "dlq",
        "discard",
        "--consumer",
        CONSUMER,
        "--reason",
        "#4411",
    ];
    const OPEN: &str = "SELECT count(*)::text FROM dead_letter WHERE state = 'open'";

    let wrong = seen(&database, 120, &discard, "yes\n");
    assert_eq!(wrong.code, 4);
    assert!(
        wrong
            .screen
            .contains("Type the consumer's name to discard 12 events, billing-order-confirmed: "),
        "{}",
        wrong.screen
    );
    assert!(
        wrong
            .screen
            .contains("error[DLQ-NOT-CONFIRMED]: what was typed is not the consumer's name"),
        "{}",
        wrong.screen
    );
    assert_eq!(text(&mut connection, OPEN).await, "12");

    let right = seen(&database, 120, &discard, "billing-order-confirmed\n");
    assert_eq!(right.code, 0, "{}", right.screen);
    assert!(
        right
            .screen
            .ends_with("12 events of billing-order-confirmed discarded\n"),
        "{}",
        right.screen
    );
    assert_eq!(text(&mut connection, OPEN).await, "0");
}

#[tokio::test]
async fn discarded_letters_stay_and_open_again() {
    let (database, mut connection) = database().await;
    letters(&mut connection, 12).await;
    let group = the_group(&database);
    let one = dlq(&database, &["discard", "--id", "1", "--reason", "by hand"]);
    assert_eq!(
        (one.code, one.stdout.as_str()),
        (0, "1 event of billing-order-confirmed discarded\n")
    );
    let many = dlq(
        &database,
        &["discard", "--group", &group, "--reason", "too old"],
    );
    assert_eq!(many.code, 4, "nobody confirms it");
    let many = dlq(
        &database,
        &[
            "discard", "--group", &group, "--reason", "too old", "--yes", "--json",
        ],
    );
    assert_eq!(json_of(&many)["letters"], json!("11"));
    let counts = || {
        let stats = row_of(&dlq(&database, &["stats", "--json"]), "consumers");
        (stats["open"].clone(), stats["discarded"].clone())
    };
    assert_eq!(counts(), (json!("0"), json!("12")));
    let again = dlq(&database, &["discard", "--id", "1", "--reason", "by hand"]);
    assert_eq!(again.code, 4);
    assert!(
        again
            .stderr
            .starts_with("error[DLQ-STATE]: dead letter 1 is not open\n"),
        "{}",
        again.stderr
    );

    let back = dlq(
        &database,
        &[
            "discard",
            "--group",
            &group,
            "--undo",
            "--reason",
            "too early",
            "--yes",
        ],
    );
    assert_eq!(
        (back.code, back.stdout.as_str()),
        (0, "12 events of billing-order-confirmed open again\n")
    );
    assert_eq!(counts(), (json!("12"), json!("0")));
    assert_eq!(
        text(&mut connection, "SELECT string_agg(action || ' ' || subject || ' ' || events || ' ' || reason, '; ' ORDER BY id) FROM audit").await,
        "discard letter 1 1 by hand; discard letters 2 to 12 11 too old; discard_undo letters 1 to 12 12 too early"
    );
}

/// Names that a record's sender or a colleague chose reach no terminal as they are.
#[tokio::test]
async fn hostile_text_in_every_column_is_escaped() {
    let (database, mut connection) = database().await;
    execute(
        &mut connection,
        "INSERT INTO dead_letter (consumer, topic, partition, record_offset, key, value, header_names, header_values, event_type, reason, \
           path, path_group, error, build) \
         SELECT h, h, 0, 1, convert_to(h, 'UTF8'), convert_to('{\"a' || h || '\": 1 ' || h, 'UTF8'), ARRAY[h], ARRAY[convert_to(h, 'UTF8')], h, h, h, h, h, h \
         FROM (SELECT E'evil\\x1b[2J\\x1b]0;x\\x07\\nrow\\ttab\\u009b31m\\u202eabc' AS h) AS hostile; \
         INSERT INTO instance (id, service, build, host, process_id, consumers, seen_at) \
         SELECT gen_random_uuid(), consumer, consumer, consumer, 1, ARRAY[consumer], now() + interval '1 hour' FROM dead_letter; \
         INSERT INTO replay_run (consumer, state, created_by, good_until, started_by, reason, stop_cause) \
         SELECT consumer, 'stopped', consumer, now(), consumer, consumer, consumer FROM dead_letter; \
         INSERT INTO replay_item (run_id, dead_letter_id, topic, partition, record_offset, state, detail) \
         SELECT 1, 1, consumer, 0, 1, 'failed', consumer FROM dead_letter",
    )
    .await;
    let group = the_group(&database);
    let hostile = "evil\u{1b}[2J\u{1b}]0;x\u{7}\nrow\ttab\u{9b}31m\u{202e}abc";
    for arguments in [
        &["dlq", "list"][..],
        &["dlq", "list", "--group", &group],
        &["dlq", "stats"],
        &["dlq", "show", "1"],
        &["dlq", "runs"],
        &["dlq", "plan", "--consumer", hostile, "--wait", "1"],
        &[
            "dlq",
            "plan",
            "--consumer",
            hostile,
            "--reason-code",
            hostile,
            "--wait",
            "1",
        ],
        &["dlq", "replay", "--plan", "p-1", "--reason", hostile],
        &["status"],
    ] {
        for form in [&[][..], &["--json"]] {
            let arguments = [arguments, form].concat();
            let ended = run(&database, &arguments);
            for (what, text) in [("stdout", &ended.stdout), ("stderr", &ended.stderr)] {
                let raw = text
                    .chars()
                    .find(|c| (c.is_control() && *c != '\n' && *c != '\t') || *c == '\u{202e}');
                assert_eq!(raw, None, "{what} of {arguments:?}: {text:?}");
                assert!(
                    !text.lines().any(|line| line.starts_with("row")),
                    "{what} of {arguments:?}: {text}"
                );
            }
            let terminal = seen(&database, 80, &arguments, "");
            assert!(
                !terminal
                    .screen
                    .contains(['\u{1b}', '\u{7}', '\u{9b}', '\u{202e}']),
                "{arguments:?}: {:?}",
                terminal.screen
            );
        }
    }
    let object = row_of(&dlq(&database, &["list", "--json"]), "groups");
    assert_eq!(
        object["consumer"],
        json!(hostile),
        "a program gets it whole"
    );
}

/// A value of a payload shows in no output and no error.
#[tokio::test]
async fn a_canary_in_a_payload_shows_nowhere() {
    let (database, mut connection) = database().await;
    letters(&mut connection, 4).await;
    instance(&mut connection).await;
    execute(
        &mut connection,
        "UPDATE dead_letter SET value = convert_to('not JSON cAnArY', 'UTF8'), path = '$' WHERE id = 2; \
         UPDATE dead_letter SET value = convert_to('{\"cAnArY@b\": \"cAnArY\", \"a\": [\"cAnArY\"', 'UTF8'), path = '$.a[0]' WHERE id = 3; \
         UPDATE dead_letter SET value = decode('0000000007', 'hex') || convert_to('cAnArY', 'UTF8'), path = NULL WHERE id = 4",
    )
    .await;
    let group = the_group(&database);
    for arguments in [
        &["dlq", "list"][..],
        &["dlq", "list", "--group", &group],
        &["dlq", "stats"],
        &["dlq", "show", "1"],
        &["dlq", "show", "2"],
        &["dlq", "show", "3"],
        &["dlq", "show", "4"],
        &[
            "dlq",
            "show",
            "1",
            "--values",
            "--reason",
            "#4411",
            "--contracts",
            ".",
        ],
        &["dlq", "plan", "--consumer", CONSUMER, "--wait", "1"],
        &[
            "dlq", "discard", "--id", "1", "2", "3", "4", "--reason", "#4411",
        ],
        &["dlq", "runs"],
        &["status"],
    ] {
        for form in [&[][..], &["--json"]] {
            let ended = run(&database, &[arguments, form].concat());
            let all = format!("{}{}", ended.stdout, ended.stderr);
            assert!(
                !all.contains(CANARY) && !all.contains("17.25"),
                "{arguments:?}: {all}"
            );
        }
    }
}

#[tokio::test]
async fn a_database_without_the_tables_and_one_that_is_away_are_told_apart() {
    let database = factum_testing::database();
    let bare = dlq(&database, &["list", "--json"]);
    assert_eq!(bare.code, 1);
    assert!(bare.stderr.contains("factum migrate up"), "{}", bare.stderr);
    assert_eq!(json_of(&bare)["schema"], json!("factum.dlq.list/1"));
    database.shut_out().await;
    let away = factum(&database, &["dlq", "list"])
        .env("DATABASE_URL", "postgres://app:cAnArY@127.0.0.1:1/orders")
        .output()
        .expect("the command runs");
    let away: Ended = away.into();
    assert_eq!(away.code, 3, "{}", away.stderr);
    assert!(!away.stderr.contains(CANARY));
    // It answers, and lets nobody in.
    let server = database.url().rsplit_once('/').expect("a database").0;
    for url in [database.url().to_owned(), format!("{server}/nowhere")] {
        for arguments in [&["status"][..], &["dlq", "list"], &["migrate", "status"]] {
            let refused = factum(&database, arguments)
                .env("DATABASE_URL", &url)
                .output()
                .expect("the command runs");
            let refused: Ended = refused.into();
            assert_eq!(refused.code, 3, "{arguments:?}: {}", refused.stderr);
            assert!(
                refused
                    .stderr
                    .contains("correct user, password and database in DATABASE_URL")
                    && !refused.stderr.contains("migrate up"),
                "{}",
                refused.stderr
            );
        }
    }
    let wrong = factum(&database, &["dlq", "list"])
        .env(
            "DATABASE_URL",
            "postgres://app:cAnArY%zz@127.0.0.1:1/orders",
        )
        .output()
        .expect("the command runs");
    let wrong: Ended = wrong.into();
    assert_eq!(wrong.code, 2, "{}", wrong.stderr);
    assert!(!wrong.stderr.contains(CANARY), "{}", wrong.stderr);
    database.let_in().await;
}

#[test]
fn every_help_has_an_example_and_its_exit_codes() {
    for command in [
        &["status"][..],
        &["dlq"],
        &["dlq", "list"],
        &["dlq", "stats"],
        &["dlq", "show"],
        &["dlq", "plan"],
        &["dlq", "replay"],
        &["dlq", "runs"],
        &["dlq", "discard"],
    ] {
        let help = Command::new(env!("CARGO_BIN_EXE_factum"))
            .args(command)
            .arg("--help")
            .output()
            .expect("the command runs");
        let help: Ended = help.into();
        assert_eq!(help.code, 0);
        for part in ["Example:", "Exit codes:"] {
            assert!(help.stdout.contains(part), "{command:?}: {}", help.stdout);
        }
    }
}
