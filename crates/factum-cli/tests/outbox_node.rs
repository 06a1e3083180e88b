//! `examples/outbox-node` writes the outbox from Node with plain SQL, and `factum relay` sends it: on real PostgreSQL and
//! Kafka, read with the contract in Rust.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use factum::{Currency, Decoded, Event, PositiveAmount, Registry};
use factum_testing::eventually;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// As `examples/orders` declares it.
#[derive(Debug, Clone, PartialEq, Event)]
#[event(
    kind = "order.confirmed.v1",
    aggregate = "Order",
    topic = "orders.confirmed",
    unlocked
)]
struct OrderConfirmed {
    #[event(aggregate_id)]
    order_ref: String,
    #[event(range(min = 1, max = 9_007_199_254_740_991))]
    order_id: NonZeroU64,
    #[event(range(min = 1, max = 9_007_199_254_740_991))]
    customer_id: NonZeroU64,
    total_amount: PositiveAmount,
    currency: Currency,
}

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/outbox-node")
}

/// The lines that the example prints: what it has committed, in order.
fn run_example(database_url: &str) -> Vec<Value> {
    let tsc = example().join("node_modules/.bin/tsc");
    assert!(
        tsc.exists(),
        "the packages are missing: run npm ci --prefix examples/outbox-node"
    );
    let compiled = Command::new(tsc)
        .args(["-p", "."])
        .current_dir(example())
        .status();
    assert!(compiled.expect("tsc starts").success());
    let output = Command::new("node")
        .arg(example().join("dist/src/main.js"))
        .env_clear()
        .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
        .env("DATABASE_URL", database_url)
        .output()
        .expect("node starts");
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words}");
    assert!(words.contains("B-1: the credit is exceeded"), "{words}");
    let text = String::from_utf8(output.stdout).expect("stdout is text");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

struct Relay(Child);

impl Relay {
    fn start(database_url: &str, brokers: &str) -> Relay {
        let child = Command::new(env!("CARGO_BIN_EXE_factum"))
            .arg("relay")
            .env_clear()
            .env("DATABASE_URL", database_url)
            .env("KAFKA_BROKERS", brokers)
            .env("FACTUM_SERVICE", "orders-relay")
            .env("FACTUM_PROFILE", "development")
            .stdin(Stdio::null())
            .spawn();
        Relay(child.expect("the command starts"))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Nothing of it is needed any more.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_node_commits_is_published_in_order_and_nothing_else() {
    let database = factum_testing::database();
    let migrated = Command::new(env!("CARGO_BIN_EXE_factum"))
        .args(["migrate", "up"])
        .env("DATABASE_URL", database.url())
        .output();
    assert!(migrated.expect("the command runs").status.success());
    let tables = std::fs::read_to_string(example().join("src/tables.sql")).expect("the tables");
    let mut conn = database.connect().await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(tables))
        .execute(&mut conn)
        .await
        .expect("the example's table");
    let broker = factum_testing::kafka();
    broker.create_topic(OrderConfirmed::TOPIC, 3).await;

    // The relay is there before the rows, as in life.
    let _relay = Relay::start(database.url(), &broker.bootstrap());
    let committed = run_example(database.url());
    assert_eq!(committed.len(), 59, "sixty, and one was rolled back");
    eventually(LIMIT, "an outbox that is sent", async || {
        let left: i64 =
            sqlx::query_scalar("SELECT count(*) FROM outbox WHERE published_at IS NULL")
                .fetch_one(&mut conn)
                .await
                .expect("a count");
        left == 0
    })
    .await;

    let registry = Registry::new().with::<OrderConfirmed>();
    let records = broker.records(OrderConfirmed::TOPIC).await;
    assert_eq!(records.len(), committed.len());
    let mut of_order = BTreeMap::<String, Vec<String>>::new();
    for record in &records {
        let value = record.value.as_deref().expect("a value");
        let Decoded::Event(found) = registry.decode(Some(value)) else {
            panic!("a record that Rust can't read");
        };
        let event = found.downcast::<OrderConfirmed>().expect("that event");
        let id = event.id().to_string();
        assert_eq!(record.header("event-id"), Some(id.as_bytes()));
        assert_eq!(
            record.header("event-type"),
            Some(&b"order.confirmed.v1"[..])
        );
        assert_eq!(record.key.as_deref(), Some(event.order_ref.as_bytes()));
        let told = committed.iter().find(|line| line["eventId"] == id.as_str());
        let told = told.expect("only what was committed is published");
        assert_eq!(told["orderRef"], event.order_ref.as_str());
        of_order
            .entry(event.order_ref.clone())
            .or_default()
            .push(id);
    }
    for (order, ids) in of_order {
        let expected: Vec<&str> = committed
            .iter()
            .filter(|line| line["orderRef"] == order.as_str())
            .filter_map(|line| line["eventId"].as_str())
            .collect();
        assert_eq!(ids, expected, "{order}");
    }
}
