//! `factum calls` on a real PostgreSQL: what it prints, what it refuses, and its exit codes.

mod ended;

use std::process::Command;

use factum_testing::TestDatabase;
use serde_json::{Value, json};
use sqlx::Connection as _;

use ended::Ended;

fn factum(database: &TestDatabase, arguments: &[&str]) -> Ended {
    Command::new(env!("CARGO_BIN_EXE_factum"))
        .args(arguments)
        .env_remove("FACTUM_DEDUP_WINDOW_DAYS")
        .env("DATABASE_URL", database.url())
        .env("USER", "ana")
        .output()
        .expect("the command runs")
        .into()
}

/// The lines of a list, without the closing object.
fn rows_of(ended: &Ended) -> Vec<Value> {
    let mut rows: Vec<Value> = ended
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).expect("stdout is JSON alone"))
        .collect();
    rows.pop();
    rows
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

async fn text(database: &TestDatabase, sql: &'static str) -> String {
    let mut connection = database.connect().await;
    let text = sqlx::query_scalar(sql)
        .fetch_one(&mut connection)
        .await
        .expect("a text");
    connection
        .close()
        .await
        .expect("a connection can be closed");
    text
}

/// Calls 1 to 6: pending, set aside (422), unknown, set aside with an expired key, done, set aside after a good response.
/// The second and the third have ordered calls behind them.
async fn with_calls() -> TestDatabase {
    let database = factum_testing::database();
    assert_eq!(factum(&database, &["migrate", "up"]).code, 0);
    execute(
        &database,
        "INSERT INTO outbound_call (service, consumer, event_id, event_type, endpoint, method, path, body, \
           idempotency_key, aggregate_id, order_key, state, attempts, status, response_headers, response_body, error, \
           first_sent_at, key_expires_at, answered_at) \
         SELECT 'billing', 'billing-order-confirmed', ('01997044-8800-7000-8000-00000000000' || n)::uuid, \
           'order.confirmed.v1', 'payments', 'POST', '/v1/charges', '{\"card\":\"canary-body\"}', 'key-' || n, 'o1', \
           CASE WHEN n IN (1, 2) THEN 'o1' END, state, 1, status, \
           '[[\"x-note\",\"canary-header\"]]', convert_to(E'{\"why\":\"canary-response\\x1b[31m\"}', 'UTF8'), error, \
           clock_timestamp() - interval '2 hours', clock_timestamp() + life, answered \
         FROM (VALUES (1, 'set_aside', 422::smallint, '422: no', interval '1 hour', NULL::timestamptz), \
                      (2, 'pending', NULL, NULL, interval '1 hour', NULL), \
                      (3, 'unknown', 503, 'reconcile', interval '-1 hour', NULL), \
                      (4, 'set_aside', 400, '400: no', interval '-1 hour', NULL), \
                      (5, 'done', 200, NULL, interval '1 hour', clock_timestamp()), \
                      (6, 'set_aside', 200, 'the handler failed', interval '-1 hour', clock_timestamp())) \
              AS given (n, state, status, error, life, answered) ORDER BY n",
    )
    .await;
    database
}

#[tokio::test]
async fn calls_in_doubt_come_first_and_end_with_exit_code_1() {
    let database = with_calls().await;
    let ended = factum(&database, &["calls", "list", "--json"]);
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    let closing = ended.json();
    assert_eq!(closing["schema"], "factum.calls.list/1");
    assert_eq!(
        (&closing["calls"], &closing["more"]),
        (&json!(5), &json!(false))
    );
    let rows = rows_of(&ended);
    let ids: Vec<&str> = rows.iter().filter_map(|call| call["id"].as_str()).collect();
    assert_eq!(ids, ["1", "3", "4", "6", "2"]);
    assert_eq!(rows[0]["waiting"], "1", "one ordered call waits behind it");
    assert_eq!(rows[0]["schema"], "factum.calls.call/1");
    assert_eq!(rows[0]["idempotency_key"], "key-1");
    assert!(!ended.stdout.contains("canary"), "{}", ended.stdout);
    let ended = factum(&database, &["calls", "list"]);
    assert!(ended.stdout.starts_with("ID\tSTATE\tENDPOINT\tCALL\tSTATUS\tTRIES\tBEHIND\tSINCE\tNEXT\tCAUSE\n1\tset_aside\tpayments\tPOST /v1/charges\t422\t1\t1\t"), "{}", ended.stdout);
    assert!(!ended.stdout.contains("canary"), "{}", ended.stdout);

    let aside = factum(
        &database,
        &[
            "calls",
            "list",
            "--state",
            "set_aside",
            "--after",
            "1",
            "--json",
        ],
    );
    assert_eq!(rows_of(&aside)[0]["id"], "4");
    let pending = factum(&database, &["calls", "list", "--state", "pending"]);
    assert_eq!(pending.code, 0, "nothing of it is in doubt");
    let elsewhere = factum(&database, &["calls", "list", "--endpoint", "warehouse"]);
    assert_eq!(
        (elsewhere.code, elsewhere.stdout.as_str()),
        (0, "No call is unfinished.\n")
    );
    assert_eq!(
        factum(&database, &["calls", "list", "--after", "1"]).code,
        2,
        "--after needs --state"
    );
    for arguments in [
        &["calls", "show", "abc"][..],
        &["calls", "list", "--state", "unknown", "--after", "x"],
    ] {
        let wrong = factum(&database, arguments);
        assert_eq!(wrong.code, 2);
        assert!(wrong.stderr.contains("such as 551"), "{}", wrong.stderr);
    }
    assert_eq!(
        factum(&database, &["calls", "show", "1", "--reason", "x"]).code,
        2,
        "a reason without --response"
    );
}

#[tokio::test]
async fn a_response_is_shown_for_a_reason_and_audited() {
    let database = with_calls().await;
    let shown = factum(&database, &["calls", "show", "1"]);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    assert!(
        shown.stdout.contains("body      22 B, hidden"),
        "{}",
        shown.stdout
    );
    assert!(
        shown.stdout.contains("response  422, 30 B, hidden"),
        "{}",
        shown.stdout
    );
    assert!(!shown.stdout.contains("canary"), "{}", shown.stdout);
    assert_eq!(
        factum(&database, &["calls", "show", "1", "--response"]).code,
        2,
        "without a reason"
    );
    assert_eq!(
        factum(
            &database,
            &["calls", "show", "1", "--response", "--reason", " "]
        )
        .code,
        2
    );

    let shown = factum(
        &database,
        &["calls", "show", "1", "--response", "--reason", "#4411"],
    );
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    assert!(
        shown.stdout.contains("canary-response") && shown.stdout.contains("x-note: canary-header"),
        "{}",
        shown.stdout
    );
    assert!(
        !shown.stdout.contains('\u{1b}'),
        "no escape sequence reaches a terminal"
    );
    assert!(!shown.stdout.contains("canary-body"));
    assert_eq!(
        text(&database, "SELECT string_agg(concat_ws('|', actor, via, action, consumer, subject, reason), ';') FROM audit").await,
        "ana|cli|calls show --response|billing-order-confirmed|call 1|#4411"
    );
    let none = factum(&database, &["calls", "show", "99"]);
    assert_eq!(none.code, 4);
    assert!(
        none.stderr.starts_with("error[CALL-NONE]: "),
        "{}",
        none.stderr
    );
}

#[tokio::test]
async fn a_call_is_sent_again_only_while_its_key_lives() {
    let database = with_calls().await;
    let retry = |id| {
        factum(
            &database,
            &["calls", "retry", id, "--reason", "#4411", "--json"],
        )
    };
    for (id, code) in [
        ("3", "CALL-UNKNOWN"),
        ("4", "CALL-KEY-EXPIRED"),
        ("5", "CALL-STATE"),
        ("2", "CALL-STATE"),
        ("99", "CALL-NONE"),
    ] {
        let refused = retry(id);
        assert_eq!(refused.code, 4, "{id}: {}", refused.stderr);
        assert!(
            refused.stderr.starts_with(&format!("error[{code}]: ")),
            "{}",
            refused.stderr
        );
        for part in ["\n  where: ", "\n  why:   ", "\n  mend:  "] {
            assert!(refused.stderr.contains(part), "{}", refused.stderr);
        }
        assert_eq!(refused.json()["code"], code);
    }
    assert_eq!(
        text(&database, "SELECT count(*)::text FROM audit").await,
        "0",
        "nothing was done"
    );
    let done = retry("1");
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert_eq!(done.json()["id"], json!("1"));
    let shown = factum(&database, &["calls", "show", "1"]).stdout;
    assert!(
        shown.contains("\ncause     last try, 422: no\n")
            && shown.contains("\nresponse  last try, 422"),
        "{shown}"
    );
    // Its response is there already, so that the key's end is none: its handler is called again.
    assert_eq!(retry("6").code, 0);
    assert_eq!(
        text(
            &database,
            "SELECT string_agg(id || state, ' ' ORDER BY id) FROM outbound_call"
        )
        .await,
        "1pending 2pending 3unknown 4set_aside 5done 6answered"
    );
    assert_eq!(
        text(&database, "SELECT string_agg(concat_ws('|', actor, via, action, subject, events, reason), ';' ORDER BY id) FROM audit").await,
        "ana|cli|calls retry|call 1|1|#4411;ana|cli|calls retry|call 6|1|#4411"
    );
}

#[tokio::test]
async fn a_call_in_doubt_is_resolved_with_its_evidence() {
    let database = with_calls().await;
    let resolve = |id| {
        factum(
            &database,
            &[
                "calls",
                "resolve",
                id,
                "--outcome",
                "charged",
                "--reason",
                "their ledger has ch_81",
                "--actor",
                "bo",
            ],
        )
    };
    for id in ["1", "3"] {
        let done = resolve(id);
        assert_eq!(
            (done.code, done.stdout),
            (0, format!("call {id} is resolved: charged\n"))
        );
    }
    for id in ["1", "2", "5"] {
        assert_eq!(resolve(id).code, 4, "{id}");
    }
    let shown = factum(&database, &["calls", "show", "1"]);
    assert!(
        shown
            .stdout
            .contains("\nresolved  charged: their ledger has ch_81\n"),
        "{}",
        shown.stdout
    );
    let shown = factum(&database, &["calls", "show", "1", "--json"]);
    assert_eq!(rows_of(&shown).len(), 0, "{}", shown.stdout);
    assert_eq!(
        shown.json()["resolution"],
        "charged: their ledger has ch_81"
    );
    assert_eq!(
        text(
            &database,
            "SELECT string_agg(id || state, ' ' ORDER BY id) FROM outbound_call"
        )
        .await,
        "1resolved 2pending 3resolved 4set_aside 5done 6set_aside"
    );
    assert_eq!(
        text(&database, "SELECT string_agg(concat_ws('|', actor, action, subject, reason), ';' ORDER BY id) FROM audit").await,
        "bo|calls resolve|call 1|charged: their ledger has ch_81;bo|calls resolve|call 3|charged: their ledger has ch_81"
    );
    assert_eq!(
        factum(
            &database,
            &["calls", "resolve", "4", "--outcome", "charged"]
        )
        .code,
        2,
        "without evidence"
    );
}

#[tokio::test]
async fn without_the_tables_it_says_what_to_do() {
    let database = factum_testing::database();
    let ended = factum(&database, &["calls", "list"]);
    assert_eq!(ended.code, 1);
    assert!(
        ended.stderr.contains("factum migrate up"),
        "{}",
        ended.stderr
    );
}
