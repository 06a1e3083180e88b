//! The services' behaviour on a real database and the embedded broker, in this process.

use std::time::Duration;

use factum::sqlx::{self, Connection as _, PgConnection};
use factum::time::OffsetDateTime;
use factum::{Config, Consumer, Database, Event as _, Outbox, Service, migration};
use factum_kafka::{EmbeddedBroker, KafkaSettings, OutgoingRecord, Producer, inspect};
use factum_testing::{TestDatabase, eventually};
use orders::billing::Billing;
use orders::events::{InvoiceIssued, OrderConfirmed};
use orders::mailer::Mailer;
use orders::orders::{NewOrder, confirm_next, place};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const LIMIT: Duration = Duration::from_secs(60);

/// Clerk 1 confirms the orders of customer 1.
const CLERK: i64 = 1;

/// A database with all tables, a broker with the topics.
struct Shop {
    database: TestDatabase,
    broker: EmbeddedBroker,
}

impl Shop {
    async fn open() -> Shop {
        let shop = Shop {
            database: factum_testing::database(),
            broker: EmbeddedBroker::start(1).unwrap(),
        };
        for topic in [OrderConfirmed::TOPIC, InvoiceIssued::TOPIC] {
            shop.broker.create_topic(topic, 2).unwrap();
        }
        let database = Database::connect(&shop.config("orders").database)
            .await
            .unwrap();
        migration::up(&database).await.unwrap();
        database.close().await;
        sqlx::raw_sql(orders::TABLES)
            .execute(&mut shop.connect().await)
            .await
            .unwrap();
        shop
    }

    async fn connect(&self) -> PgConnection {
        PgConnection::connect(self.database.url()).await.unwrap()
    }

    fn config(&self, service: &str) -> Config {
        Config::from_vars(
            [
                ("DATABASE_URL", self.database.url()),
                ("KAFKA_BROKERS", self.broker.bootstrap_servers()),
                ("FACTUM_SERVICE", service),
                ("FACTUM_PROFILE", "development"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
        )
        .unwrap()
    }

    fn kafka(&self) -> KafkaSettings {
        KafkaSettings::new(self.broker.bootstrap_servers(), "test")
    }

    fn billing(&self) -> Running {
        let consumer = Consumer::named("billing-order-confirmed")
            .handler::<OrderConfirmed>(Billing::with_accounts(orders::BILLED_CURRENCIES));
        let (stop, stopped) = oneshot::channel();
        let service = Service::builder(self.config("billing"))
            .relay()
            .consumer(consumer);
        Running {
            stop,
            service: tokio::spawn(async move {
                service
                    .run_until(async { stopped.await.unwrap_or(()) })
                    .await
                    .unwrap();
            }),
        }
    }

    fn mailer(&self) -> Running {
        let consumer =
            Consumer::named("mailer-invoice-issued").batch_handler::<InvoiceIssued>(Mailer);
        let (stop, stopped) = oneshot::channel();
        let service = Service::builder(self.config("mailer")).consumer(consumer);
        Running {
            stop,
            service: tokio::spawn(async move {
                service
                    .run_until(async { stopped.await.unwrap_or(()) })
                    .await
                    .unwrap();
            }),
        }
    }

    /// Places and confirms orders of customer 1, each in a transaction of its own.
    async fn confirm(&self, orders: &[(&str, i64, &str)]) {
        let orders: Vec<NewOrder> = orders
            .iter()
            .map(|&(order_ref, amount, currency)| NewOrder {
                order_ref: order_ref.to_owned(),
                customer_id: 1,
                total_amount: amount.into(),
                currency: currency.to_owned(),
            })
            .collect();
        let mut conn = self.connect().await;
        place(&mut conn, &orders).await.unwrap();
        for _ in &orders {
            let mut tx = conn.begin().await.unwrap();
            let now = OffsetDateTime::now_utc();
            let event = confirm_next(&mut tx, CLERK, now).await.unwrap().unwrap();
            Outbox::new()
                .publish(&mut tx, event.occurred_at(now))
                .await
                .unwrap();
            tx.commit().await.unwrap();
        }
    }

    async fn eventually(&self, what: &str, count: &'static str, expected: i64) {
        let mut conn = self.connect().await;
        eventually(LIMIT, what, async || {
            sqlx::query_scalar::<_, i64>(count)
                .fetch_one(&mut conn)
                .await
                .unwrap()
                == expected
        })
        .await;
    }
}

struct Running {
    stop: oneshot::Sender<()>,
    service: JoinHandle<()>,
}

impl Running {
    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.service.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confirmed_order_is_invoiced_and_mailed_once_however_often_it_is_delivered() {
    let shop = Shop::open().await;
    let (billing, mailer) = (shop.billing(), shop.mailer());
    shop.confirm(&[("A", 30, "EUR"), ("B", 10, "USD"), ("A", 20, "EUR")])
        .await;
    shop.eventually("three mails", "SELECT count(*) FROM mail", 3)
        .await;

    // The whole topic once more.
    let records = inspect::read_topic(&shop.kafka(), OrderConfirmed::TOPIC, LIMIT)
        .await
        .unwrap();
    let again: Vec<OutgoingRecord<'_>> = records
        .iter()
        .map(|record| OutgoingRecord {
            topic: OrderConfirmed::TOPIC,
            key: record.key.as_deref(),
            value: record.value.as_deref(),
            headers: Vec::new(),
            partition: Some(record.partition),
        })
        .collect();
    assert_eq!(again.len(), 3);
    let producer = Producer::connect(&shop.kafka(), LIMIT).unwrap();
    for sent in producer.send_all(&again).await {
        sent.unwrap();
    }
    // And a new order behind them: once it is there, the repeats have been dealt with.
    shop.confirm(&[("A", 40, "EUR"), ("B", 50, "EUR")]).await;
    shop.eventually("all of five mails", "SELECT count(*) FROM mail", 5)
        .await;

    let mut conn = shop.connect().await;
    let invoices: Vec<(String, i64, String)> = sqlx::query_as(
        "SELECT order_ref, total_amount::bigint, currency FROM invoice ORDER BY order_ref, id",
    )
    .fetch_all(&mut conn)
    .await
    .unwrap();
    let expected = [
        ("A", 30, "EUR"),
        ("A", 20, "EUR"),
        ("A", 40, "EUR"),
        ("B", 10, "USD"),
        ("B", 50, "EUR"),
    ];
    assert_eq!(
        invoices,
        expected.map(|(r, n, c)| (r.to_owned(), n, c.to_owned()))
    );
    let subjects: Vec<String> =
        sqlx::query_scalar("SELECT subject FROM mail WHERE invoice_ref = 'INV-B' ORDER BY id")
            .fetch_all(&mut conn)
            .await
            .unwrap();
    assert!(
        subjects[0].starts_with("Your invoice INV-B/"),
        "{subjects:?}"
    );
    assert!(subjects[0].ends_with(" of 10 USD"), "{subjects:?}");
    billing.stop().await;
    mailer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_in_a_currency_without_an_account_is_set_aside_and_stops_nobody() {
    let shop = Shop::open().await;
    let billing = shop.billing();
    shop.confirm(&[("A", 1, "EUR"), ("A", 2, "NOK"), ("A", 3, "EUR")])
        .await;
    shop.eventually("two invoices", "SELECT count(*) FROM invoice", 2)
        .await;
    let (reason, attempts, error): (String, i32, String) =
        sqlx::query_as("SELECT reason, attempts, error FROM dead_letter")
            .fetch_one(&mut shop.connect().await)
            .await
            .unwrap();
    assert_eq!((reason.as_str(), attempts), ("permanent", 1));
    assert!(
        error.contains("no account in the order's currency"),
        "{error}"
    );
    billing.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_is_rolled_back_tells_nobody() {
    let shop = Shop::open().await;
    let mut conn = shop.connect().await;
    let order = NewOrder {
        order_ref: "A".to_owned(),
        customer_id: 1,
        total_amount: 5.into(),
        currency: "EUR".to_owned(),
    };
    place(&mut conn, &[order]).await.unwrap();
    let mut tx = conn.begin().await.unwrap();
    let now = OffsetDateTime::now_utc();
    let event = confirm_next(&mut tx, CLERK, now).await.unwrap().unwrap();
    Outbox::new()
        .publish(&mut tx, event.occurred_at(now))
        .await
        .unwrap();
    tx.rollback().await.unwrap();

    let (confirmed, published): (i64, i64) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM orders WHERE confirmed_at IS NOT NULL),
                (SELECT count(*) FROM outbox)",
    )
    .fetch_one(&mut conn)
    .await
    .unwrap();
    assert_eq!((confirmed, published), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clerk_confirms_the_oldest_of_his_own_orders() {
    let shop = Shop::open().await;
    let mut conn = shop.connect().await;
    let order = |order_ref: &str, customer_id| NewOrder {
        order_ref: order_ref.to_owned(),
        customer_id,
        total_amount: 5.into(),
        currency: "EUR".to_owned(),
    };
    // Customer 2 lies with another clerk, customer 5 with the same one as customer 1.
    let orders = [
        order("two", 2),
        order("one", 1),
        order("five", 5),
        order("one", 1),
    ];
    place(&mut conn, &orders).await.unwrap();
    let mut confirmed = Vec::new();
    while let Some(event) = confirm_next(&mut conn, CLERK, OffsetDateTime::now_utc())
        .await
        .unwrap()
    {
        confirmed.push(event.order_ref);
    }
    assert_eq!(confirmed, ["one", "five", "one"]);
}
