//! `factum relay` as a process: its exit codes, its end, its health endpoint, and what it says.

mod ended;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use factum_testing::{TestBroker, TestDatabase, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use sqlx::{Connection as _, PgConnection};

use ended::Ended;

const LIMIT: Duration = Duration::from_secs(60);
const TOPIC: &str = "orders.confirmed";
const TOKEN: &str = "cAnArY-health-0123456789";
/// The embedded broker drops what is beyond 5 MiB of a partition.
const PARTITIONS: u32 = 4;

/// `factum` with these words, for a stage or for nobody's servers.
fn factum(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_factum"));
    for (name, _) in std::env::vars() {
        let ours = name.starts_with("FACTUM_") || name.starts_with("KAFKA_") || name == "RUST_LOG";
        if ours || name == "DATABASE_URL" {
            command.env_remove(name);
        }
    }
    command
        .args(words)
        .env("FACTUM_SERVICE", "orders-relay")
        .env("FACTUM_PROFILE", "development")
        .stdin(Stdio::null());
    command
}

/// A database with Factum's tables, and a broker with a topic.
struct Stage {
    database: TestDatabase,
    broker: TestBroker,
}

impl Stage {
    async fn new() -> Stage {
        let stage = Stage {
            database: factum_testing::database(),
            broker: factum_testing::embedded(),
        };
        stage.broker.create_topic(TOPIC, PARTITIONS).await;
        stage.migrate(&[]);
        stage
    }

    fn migrate(&self, options: &[&str]) -> Ended {
        let ended: Ended = factum(&["migrate", "up"])
            .args(options)
            .env("DATABASE_URL", self.database.url())
            .output()
            .expect("the command runs")
            .into();
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        ended
    }

    fn relay(&self, settings: &[(&str, &str)]) -> Command {
        let mut command = factum(&["relay", "--json"]);
        command
            .env("DATABASE_URL", self.database.url())
            .env("KAFKA_BROKERS", self.broker.bootstrap())
            .envs(settings.iter().copied());
        command
    }

    fn password(&self) -> String {
        let url = self.database.url();
        let login = url.split_once("://").expect("a URL").1;
        let login = login.split_once('@').expect("a login").0;
        login.split_once(':').expect("a password").1.to_owned()
    }
}

/// Rows of 200 keys, in order within each.
async fn insert(conn: &mut PgConnection, rows: i64) {
    sqlx::query(
        "INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, topic, key, payload, occurred_at) \
         SELECT gen_random_uuid(), 'order.confirmed.v1', 'Order', 'O-' || n % 200, $2, 'O-' || n % 200, \
                convert_to(n::text, 'UTF8'), now() \
         FROM generate_series(1, $1) AS n ORDER BY n",
    )
    .bind(rows)
    .bind(TOPIC)
    .execute(conn)
    .await
    .expect("rows");
}

async fn count(conn: &mut PgConnection, sql: &'static str) -> i64 {
    let count = sqlx::query_scalar(sql).fetch_one(conn).await;
    count.expect("a count")
}

const UNPUBLISHED: &str = "SELECT count(*) FROM outbox WHERE published_at IS NULL";
const PUBLISHED: &str = "SELECT count(*) FROM outbox WHERE published_at IS NOT NULL";

/// A relay that runs, and what it says on stderr.
struct Running {
    child: Child,
    words: Arc<Mutex<String>>,
}

impl Running {
    fn start(mut command: Command) -> Running {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let words = Arc::new(Mutex::new(String::new()));
        let stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let heard = Arc::clone(&words);
        // It ends with the pipe.
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let mut heard = heard.lock().expect("no poison");
                heard.push_str(&line);
                heard.push('\n');
            }
        });
        Running { child, words }
    }

    fn words(&self) -> String {
        self.words.lock().expect("no poison").clone()
    }

    async fn says(&self, what: &str) {
        eventually(LIMIT, what, async || self.words().contains(what)).await;
    }

    /// Where the health endpoint listens.
    async fn address(&self) -> String {
        self.says("the health endpoint listens").await;
        let words = self.words();
        let line = words.lines().find(|line| line.contains("endpoint listens"));
        let (_, address) = line.and_then(|l| l.split_once("address=")).expect("it");
        address.trim().to_owned()
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).expect("a process id is a pid_t");
        kill(Pid::from_raw(id), signal).expect("the process is there");
    }

    /// Waits for its end, and gives code, stdout and stderr.
    async fn ended(mut self) -> Ended {
        let mut status = None;
        eventually(LIMIT, "the end of the process", async || {
            status = self.child.try_wait().expect("a child can be waited for");
            status.is_some()
        })
        .await;
        let mut stdout = String::new();
        let mut pipe = self.child.stdout.take().expect("stdout is piped");
        pipe.read_to_string(&mut stdout).expect("stdout is text");
        Ended {
            code: status.and_then(|s| s.code()).expect("it ended by itself"),
            stdout,
            stderr: self.words(),
        }
    }

    async fn stop(self) -> Ended {
        self.signal(Signal::SIGTERM);
        let ended = self.ended().await;
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        ended
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended by itself where the test went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Status and body of a GET, with these header lines. HTTP by hand: the test sends what a client wouldn't.
fn get(address: &str, path: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("the endpoint listens");
    stream.set_read_timeout(Some(LIMIT)).expect("a time limit");
    let request = format!("GET {path} HTTP/1.1\r\nHost: health\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).expect("a request");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    let (head, body) = response.split_once("\r\n\r\n").expect("head and body");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.expect("a status"), body.to_owned())
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

fn ready(address: &str) -> (u16, Value) {
    let (status, body) = get(address, "/ready", &bearer(TOKEN));
    (status, serde_json::from_str(&body).expect("JSON"))
}

/// The value of a metric whose line begins so; nothing is 0.
fn metric(address: &str, line: &str) -> f64 {
    let (status, text) = get(address, "/metrics", &bearer(TOKEN));
    assert_eq!(status, 200);
    let found = text.lines().find_map(|l| l.strip_prefix(line));
    found.map_or(0.0, |value| value.trim().parse().expect("a number"))
}

fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it has an address");
    address.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_are_away_at_the_start_have_their_exit_codes() {
    let stage = Stage::new().await;
    let nobody = nobody();
    let url = format!("postgres://orders:cAnArY-password@{nobody}/orders");
    let away = Running::start(stage.relay(&[("DATABASE_URL", &url)]))
        .ended()
        .await;
    assert_eq!(away.code, 3, "{}", away.stderr);
    assert_eq!(away.json()["ok"], false);
    let error = away.json()["error"].as_str().unwrap_or("").to_owned();
    assert!(
        error.contains(&nobody) && error.contains("mend:"),
        "{error}"
    );
    assert!(!away.stderr.contains("cAnArY") && !away.stdout.contains("cAnArY"));

    // A login that the server refuses is away, too, as for every other command.
    let wrong = stage.database.url().replace(&stage.password(), "cAnArY");
    let refused = Running::start(stage.relay(&[("DATABASE_URL", &wrong)]))
        .ended()
        .await;
    assert_eq!(refused.code, 3, "{}", refused.stderr);

    let alone = Running::start(stage.relay(&[("KAFKA_BROKERS", &nobody)]))
        .ended()
        .await;
    assert_eq!(alone.code, 1, "{}", alone.stderr);

    let open = Running::start(stage.relay(&[("FACTUM_HEALTH_LISTEN", "0")]))
        .ended()
        .await;
    assert_eq!(open.code, 2, "{}", open.stderr);
    assert!(open.stderr.contains("error[SEC-2]"), "{}", open.stderr);
    assert!(open.stderr.contains("FACTUM_HEALTH_TOKEN"));
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_in_the_middle_of_a_backlog_ends_in_time_and_loses_nothing() {
    const ROWS: i64 = 30_000;
    let stage = Stage::new().await;
    let mut conn = stage.database.connect().await;
    insert(&mut conn, ROWS).await;
    let relay = Running::start(stage.relay(&[("FACTUM_SHUTDOWN_DEADLINE_SECONDS", "20")]));
    eventually(LIMIT, "the first rows", async || {
        count(&mut conn, PUBLISHED).await > 0
    })
    .await;
    let ended = relay.stop().await;
    let left = count(&mut conn, UNPUBLISHED).await;
    assert!(
        left > 0,
        "the backlog was over before the signal: give it more rows"
    );
    let published = (ROWS - left).to_string();
    assert_eq!(ended.json()["published"], Value::String(published));
    // All that was sent is marked, and nothing is marked that wasn't sent.
    assert_eq!(
        i64::try_from(stage.broker.records(TOPIC).await.len()),
        Ok(ROWS - left)
    );
    let free = "SELECT count(*) FROM relay_lease WHERE expires_at > now()";
    assert_eq!(
        count(&mut conn, free).await,
        0,
        "another relay need not wait"
    );

    let relay = Running::start(stage.relay(&[]));
    eventually(LIMIT, "the rest", async || {
        count(&mut conn, UNPUBLISHED).await == 0
    })
    .await;
    relay.stop().await;
    let records = stage.broker.records(TOPIC).await;
    let ids: BTreeSet<&[u8]> = records
        .iter()
        .filter_map(|r| r.header("event-id"))
        .collect();
    assert_eq!((records.len(), ids.len()), (30_000, 30_000), "each once");
    let mut last: BTreeMap<&[u8], i64> = BTreeMap::new();
    for record in &records {
        let text = std::str::from_utf8(record.value.as_deref().expect("a value"));
        let place: i64 = text.expect("a text").parse().expect("a number");
        let key = record.key.as_deref().expect("a key");
        let before = last.insert(key, place).unwrap_or(0);
        assert!(before < place, "{place} after {before}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_says_the_token_learns_how_the_relay_is() {
    let stage = Stage::new().await;
    let mut conn = stage.database.connect().await;
    insert(&mut conn, 10).await;
    let relay = Running::start(stage.relay(&[
        ("FACTUM_HEALTH_LISTEN", "0"),
        ("FACTUM_HEALTH_TOKEN", TOKEN),
        // So much is said only to look for secrets in it.
        ("RUST_LOG", "debug"),
    ]));
    let address = relay.address().await;
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    relay.says("the relay has the lease").await;

    for path in ["/live", "/ready", "/metrics", "/"] {
        for headers in ["", &bearer("wrong"), &bearer(&TOKEN[1..])] {
            assert_eq!(get(&address, path, headers).0, 401, "{path} {headers}");
        }
    }
    assert_eq!(get(&address, "/live", &bearer(TOKEN)).0, 200);
    eventually(LIMIT, "a relay that is ready", async || {
        ready(&address).0 == 200
    })
    .await;
    assert_eq!(ready(&address).1["relay"]["state"], "holds slots");
    eventually(LIMIT, "ten published rows", async || {
        metric(
            &address,
            "factum_relay_published_total{service=\"orders-relay\"} ",
        ) == 10.0
            && metric(
                &address,
                "factum_outbox_unpublished{service=\"orders-relay\"} ",
            ) == 0.0
    })
    .await;

    conn.close().await.expect("a connection can be closed");
    stage.database.shut_out().await;
    eventually(LIMIT, "a relay that isn't ready", async || {
        let (status, body) = ready(&address);
        status == 503 && body["database"]["ready"] == false && body["relay"]["ready"] == false
    })
    .await;
    let (_, body) = ready(&address);
    assert_eq!(body["kafka"]["ready"], true, "it says which part isn't");
    assert_eq!(get(&address, "/live", &bearer(TOKEN)).0, 200, "it lives");
    stage.database.let_in().await;
    eventually(LIMIT, "a relay that is ready again", async || {
        ready(&address).0 == 200
    })
    .await;

    // A client that sends nothing, or half a head, keeps no other out.
    let idle: Vec<TcpStream> = (0..40)
        .map(|_| TcpStream::connect(&address).expect("the endpoint listens"))
        .collect();
    assert_eq!(get(&address, "/live", &bearer(TOKEN)).0, 200);
    drop(idle);

    let words = relay.stop().await.stderr;
    assert!(words.contains("the relay's settings"), "{words}");
    for secret in [TOKEN, &stage.password()] {
        assert!(!words.contains(secret), "a secret in the log");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_listens_is_notified_and_asks_for_the_trigger_first() {
    let stage = Stage::new().await;
    let listening = [
        ("FACTUM_RELAY_WAKE", "listen"),
        ("FACTUM_HEALTH_LISTEN", "0"),
        ("FACTUM_HEALTH_TOKEN", TOKEN),
    ];
    let refused = Running::start(stage.relay(&listening)).ended().await;
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    assert!(
        refused.stderr.contains("--relay-wake listen"),
        "{}",
        refused.stderr
    );

    let switched = stage.migrate(&["--relay-wake", "listen", "--json"]);
    assert_eq!(switched.json()["relay_wake"], "listen");
    let again = stage.migrate(&["--relay-wake", "listen"]);
    assert!(
        again.stdout.contains("notify relays already"),
        "{}",
        again.stdout
    );
    let relay = Running::start(stage.relay(&listening));
    let address = relay.address().await;
    let mut conn = stage.database.connect().await;
    let woken = "factum_relay_wakeups_total{service=\"orders-relay\",by=\"notification\"} ";
    // A row that comes while the relay looks by itself is no proof: more come until one was told of.
    let mut rows = 0;
    eventually(LIMIT, "a row that was told of", async || {
        insert(&mut conn, 1).await;
        rows += 1;
        eventually(LIMIT, "its publication", async || {
            count(&mut conn, PUBLISHED).await == rows
        })
        .await;
        // Between rows there is time to fall asleep: the sleeper's lock says so.
        eventually(LIMIT, "a sleeping relay", async || {
            let sleepers = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1717658484 \
                            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
            count(&mut conn, sleepers).await == 1
        })
        .await;
        metric(&address, woken) >= 3.0
    })
    .await;
    relay.stop().await;
    let off = stage.migrate(&["--relay-wake", "poll"]);
    assert!(off.stdout.contains("don't notify relays"), "{}", off.stdout);
}

/// The rights that docs/operate/relay.md lists are enough for a relay without the tables' upkeep, and `INSERT` is
/// enough for a writer.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_needs_only_the_rights_that_the_page_lists() {
    let page = include_str!("../../../docs/operate/relay.md");
    let grants = page
        .split("```sql")
        .find(|block| block.contains("GRANT"))
        .and_then(|block| block.split("```").next())
        .expect("the page has the rights");
    let stage = Stage::new().await;
    let mut conn = stage.database.connect().await;
    // Roles are the server's, and tests share it.
    let role = format!("relay_{}", stage.database.name());
    let setup = format!(
        "REVOKE CREATE ON SCHEMA public FROM public; \
         CREATE ROLE {role} LOGIN PASSWORD 'relays'; {}",
        grants.replace("orders_relay", &role)
    );
    run(&mut conn, &setup).await;
    insert(&mut conn, 5).await;
    let (_, server) = stage.database.url().split_once('@').expect("a login");
    let url = format!("postgres://{role}:relays@{server}");
    let mut command = stage.relay(&[("DATABASE_URL", &url)]);
    command.arg("--no-maintenance");
    let relay = Running::start(command);
    eventually(LIMIT, "the rows", async || {
        count(&mut conn, PUBLISHED).await == 5 || relay.words().contains("error[")
    })
    .await;
    let ended = relay.stop().await;
    assert_eq!(count(&mut conn, PUBLISHED).await, 5, "{}", ended.stderr);
    let words = &ended.stderr;
    assert!(!words.contains("42501"), "a right is missing: {words}");
    run(
        &mut conn,
        &format!("DROP OWNED BY {role}; DROP ROLE {role}"),
    )
    .await;
}

/// docs/outbox-table.md: its SQL is run as it stands there, the INSERT by a role that has the page's right alone.
#[tokio::test(flavor = "multi_thread")]
async fn the_sql_of_the_page_about_the_outbox_does_what_the_page_says() {
    let page = include_str!("../../../docs/outbox-table.md");
    let blocks: Vec<&str> = page
        .split("```sql\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    let [grant, write, given_up, again] = blocks[..] else {
        panic!("the page has {} blocks of SQL", blocks.len());
    };
    let stage = Stage::new().await;
    let mut owner = stage.database.connect().await;
    let role = format!("writer_{}", stage.database.name());
    let setup = format!(
        "CREATE ROLE {role} LOGIN PASSWORD 'writers'; {} \
         CREATE TABLE customer_order (order_ref text PRIMARY KEY, state text NOT NULL); \
         INSERT INTO customer_order VALUES ('A-1', 'new'); GRANT SELECT, UPDATE ON customer_order TO {role}",
        grant.replace("orders_app", &role)
    );
    run(&mut owner, &setup).await;
    let (_, server) = stage.database.url().split_once('@').expect("a login");
    let url = format!("postgres://{role}:writers@{server}");
    let mut writer = PgConnection::connect(&url).await.expect("the role logs in");
    run(&mut writer, write).await;
    let code = |error: sqlx::Error| {
        let answer = error.into_database_error().expect("the server's answer");
        answer
            .code()
            .map(|code| code.into_owned())
            .unwrap_or_default()
    };
    // What the page says of errors.
    for (change, expected) in [
        (("", ""), "23505"),
        (("-000000000001', 'order", "-000000000002', 'order"), ""),
        (("'A-1',\n", "'',\n"), "23514"),
        (("INTO outbox (", "INTO outbox (slot, "), "428C9"),
    ] {
        let mut changed = write.replacen(change.0, change.1, 1);
        if change.1.contains("slot") {
            changed = changed.replacen("VALUES (", "VALUES (1, ", 1);
        }
        let found = match sqlx::raw_sql(sqlx::AssertSqlSafe(changed))
            .execute(&mut writer)
            .await
        {
            Ok(_) => String::new(),
            Err(error) => code(error),
        };
        assert_eq!(found, expected, "{change:?}");
        run(&mut writer, "ROLLBACK").await;
    }
    let read = sqlx::raw_sql("SELECT FROM outbox")
        .execute(&mut writer)
        .await;
    assert_eq!(code(read.expect_err("only INSERT is granted")), "42501");
    writer.close().await.expect("a connection can be closed");

    // One of the two rows is given up, as if its topic had been missing.
    run(
        &mut owner,
        "UPDATE outbox SET set_aside_at = now(), attempts = 10, last_error = 'no such topic' WHERE id = 1",
    )
    .await;
    let relay = Running::start(stage.relay(&[]));
    eventually(LIMIT, "the other row", async || {
        count(&mut owner, PUBLISHED).await == 1
    })
    .await;
    let listed = sqlx::raw_sql(given_up).fetch_all(&mut owner).await;
    assert_eq!(listed.expect("the page's look").len(), 1);
    run(&mut owner, again).await;
    eventually(LIMIT, "the row that was given up", async || {
        count(&mut owner, PUBLISHED).await == 2
    })
    .await;
    relay.stop().await;
    let records = stage.broker.records(TOPIC).await;
    let ids: Vec<&[u8]> = records
        .iter()
        .filter_map(|r| r.header("event-id"))
        .collect();
    assert_eq!(
        ids,
        [
            &b"01935c3e-7c1a-7000-8000-000000000002"[..],
            b"01935c3e-7c1a-7000-8000-000000000001"
        ]
    );
    for record in records {
        assert_eq!(
            record.header("event-type"),
            Some(&b"order.confirmed.v1"[..])
        );
        assert_eq!(record.key.as_deref(), Some(&b"A-1"[..]));
    }
    run(
        &mut owner,
        &format!("DROP OWNED BY {role}; DROP ROLE {role}"),
    )
    .await;
}

async fn run(conn: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()))
        .execute(conn)
        .await
        .unwrap_or_else(|error| panic!("{error}: {sql}"));
}
