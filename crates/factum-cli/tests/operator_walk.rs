//! The page `docs/operate/dead-letters.md`, walked against a real service, database and broker: each command of the page is
//! run, and prints what the page says. `UPDATE_DOCS=1` writes the page anew.

mod ended;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use factum::sqlx;
use factum::{Config, Consumer, Envelope, Event as _, Handler, HandlerError, Service, Tx};
use factum_testing::{TestBroker, TestDatabase, eventually};
use tokio::sync::oneshot;

use ended::Ended;
use ended::terminal::on_terminal;

const LIMIT: Duration = Duration::from_secs(60);
const CONSUMER: &str = "billing-order-confirmed";
const TOPIC: &str = "orders.confirmed";
/// Orders without a currency.
const ORDERS: usize = 12;

/// As the service reads orders before the fix, and as they are published.
mod before {
    #[derive(Debug, Clone, factum::Snapshot)]
    pub(super) struct Total {
        pub(super) amount: u32,
        pub(super) currency: String,
    }

    #[derive(Debug, Clone, factum::Event)]
    #[event(
        kind = "order.confirmed.v1",
        aggregate = "Order",
        topic = "orders.confirmed",
        unlocked
    )]
    pub(super) struct OrderConfirmed {
        #[event(aggregate_id)]
        pub(super) order_ref: String,
        pub(super) total: Total,
    }
}

/// As it reads them with the fix.
mod after {
    #[derive(Debug, Clone, factum::Snapshot)]
    pub(super) struct Total {
        pub(super) amount: u32,
        pub(super) currency: Option<String>,
    }

    #[derive(Debug, Clone, factum::Event)]
    #[event(
        kind = "order.confirmed.v1",
        aggregate = "Order",
        topic = "orders.confirmed",
        unlocked
    )]
    pub(super) struct OrderConfirmed {
        #[event(aggregate_id)]
        pub(super) order_ref: String,
        pub(super) total: Total,
    }
}

#[derive(Clone)]
struct Billing;

impl Billing {
    async fn bill(
        tx: &mut Tx<'_>,
        order: &str,
        amount: u32,
        currency: &str,
    ) -> Result<(), HandlerError> {
        sqlx::query("INSERT INTO invoice (order_ref, amount, currency) VALUES ($1, $2, $3)")
            .bind(order)
            .bind(i64::from(amount))
            .bind(currency)
            .execute(tx.conn())
            .await?;
        Ok(())
    }
}

impl Handler<before::OrderConfirmed> for Billing {
    async fn handle(
        &self,
        event: &Envelope<before::OrderConfirmed>,
        tx: &mut Tx<'_>,
    ) -> Result<(), HandlerError> {
        Billing::bill(
            tx,
            &event.order_ref,
            event.total.amount,
            &event.total.currency,
        )
        .await
    }
}

impl Handler<after::OrderConfirmed> for Billing {
    async fn handle(
        &self,
        event: &Envelope<after::OrderConfirmed>,
        tx: &mut Tx<'_>,
    ) -> Result<(), HandlerError> {
        let currency = event.total.currency.as_deref().unwrap_or("EUR");
        Billing::bill(tx, &event.order_ref, event.total.amount, currency).await
    }
}

/// A service that runs until it is told to stop.
struct Running {
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<Result<(), factum::ServiceError>>,
}

impl Running {
    fn start(
        database: &TestDatabase,
        broker: &TestBroker,
        build: &str,
        consumer: Consumer,
    ) -> Running {
        let variables = [
            ("DATABASE_URL", database.url().to_owned()),
            ("KAFKA_BROKERS", broker.bootstrap()),
            ("KAFKA_SECURITY_PROTOCOL", "PLAINTEXT".to_owned()),
            ("FACTUM_SERVICE", "billing".to_owned()),
            ("FACTUM_BUILD", build.to_owned()),
            ("FACTUM_PROFILE", "development".to_owned()),
        ];
        let config = Config::from_vars(variables.map(|(name, value)| (name.to_owned(), value)))
            .expect("the configuration is right");
        let (stop, stopped) = oneshot::channel();
        let service = Service::builder(config).consumer(consumer).relay();
        let task = tokio::spawn(service.run_until(async {
            let _ = stopped.await;
        }));
        Running { stop, task }
    }

    async fn stop(self) {
        self.stop.send(()).expect("it runs");
        self.task.await.expect("no panic").expect("a clean end");
    }
}

fn factum(database: &TestDatabase, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_factum"));
    command
        .args(arguments)
        .env("DATABASE_URL", database.url())
        .env("USER", "ana")
        .stdin(Stdio::null());
    command
}

/// Commands that were run, with what they printed.
struct Walk<'a> {
    database: &'a TestDatabase,
    steps: Vec<(String, String)>,
}

impl Walk<'_> {
    /// A command as a person of 100 columns sees it.
    fn look(&mut self, code: i32, arguments: &[&str]) -> String {
        let seen = on_terminal(100, factum(self.database, arguments), "");
        assert_eq!(seen.code, code, "{arguments:?}: {}", seen.screen);
        self.step(arguments, code, &seen.screen);
        seen.screen
    }

    /// A command without a terminal: no bar.
    async fn act(&mut self, arguments: &[&str]) -> String {
        let mut command = factum(self.database, arguments);
        let ended = tokio::task::spawn_blocking(move || command.output()).await;
        let ended: Ended = ended.expect("no panic").expect("the command runs").into();
        assert_eq!(
            ended.code, 0,
            "{arguments:?}: {}{}",
            ended.stdout, ended.stderr
        );
        self.step(arguments, 0, &ended.stdout);
        ended.stdout
    }

    fn step(&mut self, arguments: &[&str], code: i32, printed: &str) {
        let mut line = String::from("$ factum");
        for argument in arguments {
            match argument.contains(' ') {
                true => line.push_str(&format!(" \"{argument}\"")),
                false => line.push_str(&format!(" {argument}")),
            }
        }
        if code != 0 {
            line.push_str(&format!("   # exit {code}"));
        }
        let printed = printed.replace(self.database.name(), "billing-db");
        self.steps.push((line, same_moments(&printed)));
    }

    /// The page with these steps in the place of its blocks.
    fn page(&self, page: &str) -> String {
        let mut steps = self.steps.iter();
        let mut parts = page.split("```console\n");
        let mut written = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (_, text) = part.split_once("```\n").expect("a block ends");
            let (line, printed) = steps
                .next()
                .expect("the page has no block that the walk hasn't");
            written.push_str(&format!(
                "```console\n{line}\n{}\n```\n{text}",
                printed.trim_end()
            ));
        }
        assert!(
            steps.next().is_none(),
            "the walk has no step that the page hasn't"
        );
        written
    }
}

/// Each moment becomes the same one, so that two walks print the same.
fn same_moments(text: &str) -> String {
    const MOMENT: &str = "2026-11-30T14:20:05";
    let is_like = |part: &[u8], form: &str| {
        part.len() == form.len()
            && part.iter().zip(form.bytes()).all(|(byte, like)| {
                if like.is_ascii_digit() {
                    byte.is_ascii_digit()
                } else {
                    *byte == like
                }
            })
    };
    let bytes = text.as_bytes();
    let mut same = String::new();
    let mut at = 0;
    while at < bytes.len() {
        let form = [MOMENT, &MOMENT[11..]].into_iter().find(|form| {
            bytes
                .get(at..at + form.len())
                .is_some_and(|part| is_like(part, form))
        });
        match form {
            Some(form) => {
                same.push_str(form);
                at += form.len();
            }
            None => {
                let c = text[at..].chars().next().expect("within the text");
                same.push(c);
                at += c.len_utf8();
            }
        }
    }
    same
}

async fn number(database: &TestDatabase, sql: &'static str) -> i64 {
    let mut connection = database.connect().await;
    sqlx::query_scalar(sql)
        .fetch_one(&mut connection)
        .await
        .expect("a number")
}

/// What orders writes into the outbox: the first events without a currency, the last one without a total.
async fn publish(database: &TestDatabase) {
    let mut connection = database.connect().await;
    for n in 1..=ORDERS + 1 {
        let order = before::OrderConfirmed {
            order_ref: format!("order-7c1e-{n:02}"),
            total: before::Total {
                amount: 1725,
                currency: "EUR".to_owned(),
            },
        };
        let key = order.order_ref.clone();
        let event = order
            .occurred_at(factum::time::OffsetDateTime::now_utc())
            .with_id(factum::new_event_id());
        let whole = String::from_utf8(event.encode().expect("it can be written")).expect("JSON");
        let forgotten = match n {
            n if n <= ORDERS => ",\"currency\":\"EUR\"",
            _ => ",\"total\":{\"amount\":1725,\"currency\":\"EUR\"}",
        };
        let payload = whole.replace(forgotten, "");
        assert!(payload.len() < whole.len(), "a part is left out of {whole}");
        sqlx::query(
            "INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, topic, key, payload, occurred_at) \
             VALUES ($1, 'order.confirmed.v1', 'Order', $2, $3, $2, $4, now())",
        )
        .bind(event.id().as_uuid())
        .bind(&key)
        .bind(TOPIC)
        .bind(payload.into_bytes())
        .execute(&mut connection)
        .await
        .expect("a row of the outbox");
        // One after the other: letters have the same numbers each time.
        eventually(LIMIT, "the outbox knows that it has left", async || {
            number(
                database,
                "SELECT count(*) FROM outbox WHERE published_at IS NULL",
            )
            .await
                == 0
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operators_walk_ends_with_a_green_status() {
    let database = factum_testing::database();
    let up = factum(&database, &["migrate", "up"])
        .output()
        .expect("the command runs");
    assert!(up.status.success());
    let mut connection = database.connect().await;
    sqlx::raw_sql("CREATE TABLE invoice (order_ref text NOT NULL, amount bigint NOT NULL, currency text NOT NULL)")
        .execute(&mut connection)
        .await
        .expect("a table");
    let broker = factum_testing::embedded();
    broker.create_topic(TOPIC, 1).await;

    // The service before the fix sets all of them aside.
    let old = Consumer::named(CONSUMER).handler::<before::OrderConfirmed>(Billing);
    let service = Running::start(&database, &broker, "1.4.2", old);
    publish(&database).await;
    let letters = i64::try_from(ORDERS + 1).expect("few");
    eventually(LIMIT, "every record is a dead letter", async || {
        number(&database, "SELECT count(*) FROM dead_letter").await == letters
    })
    .await;
    let alive = async |build: &'static str| {
        eventually(LIMIT, "the service says that it lives", async || {
            let mut connection = database.connect().await;
            let found: i64 = sqlx::query_scalar("SELECT count(*) FROM instance WHERE build = $1")
                .bind(build)
                .fetch_one(&mut connection)
                .await
                .expect("a count");
            found == 1
        })
        .await;
    };
    alive("1.4.2").await;

    let mut walk = Walk {
        database: &database,
        steps: Vec::new(),
    };
    walk.look(1, &["status"]);
    let listed = walk.look(0, &["dlq", "list"]);
    let group = listed
        .lines()
        .find(|line| line.contains("currency"))
        .and_then(|line| line.split_whitespace().next())
        .expect("a group")
        .to_owned();
    walk.look(0, &["dlq", "show", "1"]);

    // The fix is shipped.
    service.stop().await;
    let new = Consumer::named(CONSUMER).handler::<after::OrderConfirmed>(Billing);
    let service = Running::start(&database, &broker, "1.5.0", new);
    alive("1.5.0").await;

    walk.act(&["dlq", "plan", "--group", &group]).await;
    const REASON: &str = "currency is optional since 1.5.0, #4411";
    walk.act(&[
        "dlq", "replay", "--plan", "p-1", "--first", "1", "--reason", REASON,
    ])
    .await;
    assert_eq!(
        number(&database, "SELECT count(*) FROM invoice").await,
        1,
        "one was tried first"
    );
    walk.act(&[
        "dlq", "replay", "--plan", "p-1", "--reason", REASON, "--yes",
    ])
    .await;
    assert_eq!(
        number(
            &database,
            "SELECT count(DISTINCT order_ref) FROM invoice WHERE currency = 'EUR'"
        )
        .await,
        i64::try_from(ORDERS).expect("few")
    );
    assert_eq!(
        number(&database, "SELECT count(*) FROM invoice").await,
        i64::try_from(ORDERS).expect("few")
    );

    walk.look(0, &["dlq", "list"]);
    walk.act(&[
        "dlq",
        "discard",
        "--id",
        "13",
        "--reason",
        "no total; orders publishes a correction, #4412",
    ])
    .await;
    walk.look(0, &["status"]);
    service.stop().await;

    let file = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/operate/dead-letters.md"
    ));
    let page = std::fs::read_to_string(&file).expect("the page is there");
    let walked = walk.page(&page);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&file, walked).expect("the page can be written");
    } else {
        let mut lines = page.lines().zip(walked.lines());
        let differs = lines.find(|(page, walked)| page != walked);
        assert_eq!(
            differs, None,
            "UPDATE_DOCS=1 writes docs/operate/dead-letters.md anew"
        );
        assert_eq!(page, walked);
    }
}
