//! `examples/billing-node` as a process, beside a consumer in Rust and alone.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::process::{Child, Command, ExitStatus, Stdio};

use factum::sqlx::{self, Connection as _};
use factum::{
    Amount, Consumer, Currency, Envelope, Event as _, EventId, Handler, HandlerError,
    PositiveAmount, Service, Tx,
};
use factum_tests::factum_testing::{self, eventually};
use factum_tests::{LIMIT, Running, Scene, envelope, migrated_database};
use tokio::sync::OnceCell;

use crate::orders::OrderConfirmed;
use crate::project::{billing_node, built_billing_node};

/// The table of `examples/orders`, and who wrote the row.
const INVOICE: &str = "CREATE TABLE invoice (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event_id uuid NOT NULL, order_ref text NOT NULL,
    order_id bigint NOT NULL, customer_id bigint NOT NULL, total_amount numeric NOT NULL,
    currency text NOT NULL, issued_at timestamptz NOT NULL,
    writer text NOT NULL DEFAULT current_setting('application_name'))";

/// A name that no other run has: topics and groups outlive a test.
fn consumer_name() -> String {
    format!("billing-order-confirmed-{:x}", fastrand::u32(..))
}

/// The topic is the one that the contract names, so the tests of this file share it.
async fn scene() -> Scene {
    static TOPIC: OnceCell<()> = OnceCell::const_new();
    let broker = factum_testing::kafka();
    TOPIC
        .get_or_init(|| broker.create_topic(OrderConfirmed::TOPIC, 2))
        .await;
    let database = migrated_database().await;
    let scene = Scene { database, broker };
    scene.execute(INVOICE).await;
    scene
}

/// The consumer in Node.
struct Node {
    child: Child,
    log: tempfile::NamedTempFile,
}

impl Node {
    fn start(scene: &Scene, consumer: &str) -> Node {
        built_billing_node();
        let log = tempfile::NamedTempFile::new().unwrap();
        let child = Command::new("node")
            .arg(billing_node().join("dist/src/main.js"))
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .env("DATABASE_URL", scene.database.url())
            .env("KAFKA_BROKERS", scene.broker.bootstrap())
            .env("FACTUM_SERVICE", "billing")
            .env("FACTUM_PROFILE", "development")
            .env("BILLING_CONSUMER", consumer)
            .env("BILLING_GROUP", format!("{consumer}-node"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.reopen().unwrap())
            .spawn()
            .expect("node starts");
        Node { child, log }
    }

    /// Asks it to end as an orchestrator does, and gives its end and what it logged.
    fn stop(mut self) -> (ExitStatus, String) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().try_into().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        let status = self.child.wait().unwrap();
        (status, std::fs::read_to_string(self.log.path()).unwrap())
    }
}

#[expect(clippy::print_stdout, reason = "it explains a test's failure")]
impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.log.path()).unwrap_or_default();
            println!("the consumer in Node logged:\n{log}");
        }
        // Already gone where the test went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Billing in Rust.
struct Billing;

impl Handler<OrderConfirmed> for Billing {
    async fn handle(
        &self,
        event: &Envelope<OrderConfirmed>,
        tx: &mut Tx<'_>,
    ) -> Result<(), HandlerError> {
        sqlx::query(
            "INSERT INTO invoice (event_id, order_ref, order_id, customer_id, total_amount, currency, issued_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(event.id().as_uuid())
        .bind(&event.order_ref)
        .bind(event.order_id.get() as i64)
        .bind(event.customer_id.get() as i64)
        .bind(event.total_amount.amount().as_decimal())
        .bind(event.currency.code())
        .bind(event.occurred_at())
        .execute(tx.conn())
        .await?;
        Ok(())
    }
}

fn order(order_ref: &str, amount: &str, currency: Currency) -> Envelope<OrderConfirmed> {
    let amount: Amount = amount.parse().unwrap();
    envelope(OrderConfirmed {
        order_ref: order_ref.to_owned(),
        order_id: NonZeroU64::new(7).unwrap(),
        customer_id: NonZeroU64::new(8).unwrap(),
        total_amount: PositiveAmount::new(amount).unwrap(),
        currency,
    })
}

async fn produce(scene: &Scene, partition: i32, events: &[(&str, Option<&[u8]>)]) {
    scene
        .broker
        .produce(OrderConfirmed::TOPIC, partition, events)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_in_rust_and_in_node_of_one_name_have_one_effect_for_each_event() {
    let scene = scene().await;
    let name = consumer_name();
    let node = Node::start(&scene, &name);
    let config = scene.config(&[("FACTUM_SERVICE", "billing")]);
    let rust = Running::start(
        Service::builder(config)
            .consumer(Consumer::named(&*name).handler::<OrderConfirmed>(Billing)),
    );

    // Each gets every event, and each event twice. Waves, until both were first with some.
    const WAVE: usize = 100;
    const MOST_WAVES: i32 = 30;
    let mut ids: Vec<EventId> = Vec::new();
    for wave in 0..MOST_WAVES {
        let events: Vec<_> = (0..WAVE)
            .map(|place| order(&format!("A-{place}"), "10.5", Currency::EUR))
            .collect();
        let values: Vec<Vec<u8>> = events.iter().map(|e| e.encode().unwrap()).collect();
        let twice: Vec<(&str, Option<&[u8]>)> = events
            .iter()
            .zip(&values)
            .flat_map(|(event, value)| [(event.order_ref.as_str(), Some(value.as_slice())); 2])
            .collect();
        produce(&scene, wave % 2, &twice).await;
        ids.extend(events.iter().map(Envelope::id));
        let wanted = i64::try_from(ids.len()).unwrap();
        eventually(LIMIT, "every event has its effect", async || {
            effects(&scene, &ids).await.0 >= wanted
        })
        .await;
        if effects(&scene, &ids).await.2 == 2 {
            break;
        }
    }
    // Both have come to the end, so nobody has a second effect in hand.
    let ends = scene.broker.end_offsets(OrderConfirmed::TOPIC).await;
    for group in [name.clone(), format!("{name}-node")] {
        reached(&scene, &group, &ends).await;
    }
    let (rows, events, writers) = effects(&scene, &ids).await;
    assert_eq!(rows, i64::try_from(ids.len()).unwrap());
    assert_eq!(events, rows);
    assert_eq!(writers, 2, "both were first with some");
    rust.stop().await;
    let (status, log) = node.stop();
    assert!(status.success(), "{status}: {log}");
}

/// Waits until a group has committed all that lay before these offsets.
async fn reached(scene: &Scene, group: &str, ends: &BTreeMap<i32, i64>) {
    eventually(LIMIT, &format!("{group} has come to the end"), async || {
        let committed = scene.broker.committed(group, OrderConfirmed::TOPIC).await;
        ends.iter()
            .all(|(partition, end)| *end == 0 || committed.get(partition) >= Some(end))
    })
    .await;
}

/// Rows, different events, and different writers of these events' invoices.
async fn effects(scene: &Scene, ids: &[EventId]) -> (i64, i64, i64) {
    let ids: Vec<uuid::Uuid> = ids.iter().map(|id| id.as_uuid()).collect();
    let mut connection = scene.database.connect().await;
    let counts = sqlx::query_as(
        "SELECT count(*), count(DISTINCT event_id), count(DISTINCT writer) FROM invoice WHERE event_id = ANY($1)",
    )
    .bind(ids)
    .fetch_one(&mut connection)
    .await
    .unwrap();
    connection.close().await.unwrap();
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn the_consumer_in_node_sets_aside_what_it_cant_handle_and_goes_on() {
    const CANARY: &str = "canary-7f3a";
    let scene = scene().await;
    let name = consumer_name();
    let exact = order("A-1", "10.5", Currency::EUR);
    let last = order("A-2", "1", Currency::JPY);
    let no_account = order("A-3", "1", "CHF".parse().unwrap());
    let of_1970 = order("A-4", "1", Currency::EUR).into_event_of_1970();
    let [exact_value, last_value, no_account_value] =
        [&exact, &last, &no_account].map(|event| event.encode().unwrap());
    // Rust writes no number that a double would change; another producer may.
    let exact_value = String::from_utf8(exact_value)
        .unwrap()
        .replace("10.5", "90071992547409.93")
        .into_bytes();
    let unknown = String::from_utf8(last_value.clone())
        .unwrap()
        .replace("confirmed.v1", "confirmed.v2");
    let poison = format!("{{\"eventType\":\"order.confirmed.v1\",\"eventId\":\"{CANARY}\"}}");
    produce(
        &scene,
        0,
        &[
            ("A-1", Some(&exact_value)),
            ("A-1", Some(&exact_value)),
            ("A-5", Some(b"{not JSON")),
            ("A-5", Some(poison.as_bytes())),
            ("A-4", Some(&of_1970)),
            ("A-3", Some(&no_account_value)),
            ("A-6", None),
            ("A-2", Some(unknown.as_bytes())),
            ("A-2", Some(&last_value)),
        ],
    )
    .await;

    // The partitions of the dedup table are the work of a service in Rust: `factum relay` is enough. Until
    // today has one, the consumer waits.
    let relay = scene.start_relay();
    let node = Node::start(&scene, &name);
    let group = format!("{name}-node");
    let ends = scene.broker.end_offsets(OrderConfirmed::TOPIC).await;
    reached(&scene, &group, &ends).await;
    let (status, log) = node.stop();
    assert!(status.success(), "{status}: {log}");
    relay.stop().await;

    let (rows, events, _) = effects(&scene, &[exact.id(), last.id(), no_account.id()]).await;
    assert_eq!((rows, events), (2, 2));
    let exact_rows = "SELECT count(*) FROM invoice WHERE total_amount = 90071992547409.93";
    assert_eq!(scene.count(exact_rows).await, 1);
    assert_eq!(
        scene.dead_letters(&name).await,
        [
            "malformed_json",
            "event_id",
            "out_of_window",
            "permanent",
            "tombstone"
        ]
    );
    let kept =
        "SELECT count(*) FROM dead_letter WHERE value = '{not JSON'::bytea AND key = 'A-5'::bytea";
    assert_eq!(scene.count(kept).await, 1);
    // What was set aside is not remembered as handled: a replay must not be a duplicate.
    let remembered = "SELECT count(*) FROM processed_event p JOIN dead_letter d USING (event_id)";
    assert_eq!(scene.count(remembered).await, 0);
    let password = scene.database.url().split('@').next().unwrap_or_default();
    assert!(!log.contains(CANARY) && !log.contains(password), "{log}");
}

/// An event whose id no partition holds.
trait Of1970 {
    fn into_event_of_1970(self) -> Vec<u8>;
}

impl Of1970 for Envelope<OrderConfirmed> {
    fn into_event_of_1970(self) -> Vec<u8> {
        let text = String::from_utf8(self.encode().unwrap()).unwrap();
        let id = EventId::floor(1_000).to_string();
        text.replace(&self.id().to_string(), &id).into_bytes()
    }
}
