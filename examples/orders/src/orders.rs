//! The order desk: orders are placed, and confirmed one by one.

use std::time::Duration;

use factum::bigdecimal::BigDecimal;
use factum::sqlx::{self, PgConnection, PgPool};
use factum::time::OffsetDateTime;
use factum::{Amount, Event as _, Outbox, PositiveAmount};

use crate::events::OrderConfirmed;
use crate::id;

/// Clerks confirm side by side. All orders of one customer lie with one clerk, so that they are
/// confirmed in the order in which they were placed.
const CLERKS: i64 = 4;

/// How long a clerk without work waits before looking again.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long a clerk waits after an error, such as a database that is away.
const AFTER_ERROR: Duration = Duration::from_millis(500);

/// An order as a customer places it.
#[derive(Debug, Clone, PartialEq)]
pub struct NewOrder {
    /// The reference that the customer orders under.
    pub order_ref: String,
    /// The customer.
    pub customer_id: i64,
    /// What it costs.
    pub total_amount: BigDecimal,
    /// An ISO 4217 code.
    pub currency: String,
}

/// Places orders. They get their ids in the order given.
///
/// # Errors
///
/// The database refused.
pub async fn place(conn: &mut PgConnection, orders: &[NewOrder]) -> factum::Result<()> {
    let refs: Vec<&str> = orders.iter().map(|o| o.order_ref.as_str()).collect();
    let customers: Vec<i64> = orders.iter().map(|o| o.customer_id).collect();
    let amounts: Vec<BigDecimal> = orders.iter().map(|o| o.total_amount.clone()).collect();
    let currencies: Vec<&str> = orders.iter().map(|o| o.currency.as_str()).collect();
    sqlx::query(
        "INSERT INTO orders (order_ref, customer_id, total_amount, currency)
         SELECT order_ref, customer_id, total_amount, currency
         FROM UNNEST($1::text[], $2::bigint[], $3::numeric[], $4::text[])
              WITH ORDINALITY AS o (order_ref, customer_id, total_amount, currency, place)
         ORDER BY place",
    )
    .bind(refs)
    .bind(customers)
    .bind(amounts)
    .bind(currencies)
    .execute(conn)
    .await?;
    Ok(())
}

/// Confirms the oldest open order of a clerk, in the caller's transaction. Nothing if there is
/// none.
///
/// The row stays locked until the transaction ends, so a second clerk with the same orders waits
/// instead of overtaking.
///
/// # Errors
///
/// The database refused, or the row holds what no order can.
pub async fn confirm_next(
    conn: &mut PgConnection,
    clerk: i64,
    confirmed_at: OffsetDateTime,
) -> factum::Result<Option<OrderConfirmed>> {
    let row: Option<(i64, String, i64, BigDecimal, String)> = sqlx::query_as(
        "UPDATE orders SET confirmed_at = $1
         WHERE id = (SELECT id FROM orders
                     WHERE confirmed_at IS NULL AND customer_id % $2 = $3
                     ORDER BY id LIMIT 1 FOR UPDATE)
         RETURNING id, order_ref, customer_id, total_amount, currency",
    )
    .bind(confirmed_at)
    .bind(CLERKS)
    .bind(clerk)
    .fetch_optional(conn)
    .await?;
    let Some((id, order_ref, customer_id, total_amount, currency)) = row else {
        return Ok(None);
    };
    Ok(Some(OrderConfirmed {
        order_ref,
        order_id: id::from_column(id)?,
        customer_id: id::from_column(customer_id)?,
        total_amount: PositiveAmount::new(Amount::from_decimal(&total_amount)?)?,
        currency: currency.parse()?,
    }))
}

/// Confirms what customers place, for ever.
pub async fn run_desk(pool: PgPool) {
    let clerks = (0..CLERKS).map(|clerk| tokio::spawn(run_clerk(pool.clone(), clerk)));
    for clerk in clerks.collect::<Vec<_>>() {
        // A clerk's loop has no end.
        let _ = clerk.await;
    }
}

async fn run_clerk(pool: PgPool, clerk: i64) {
    let outbox = Outbox::new();
    loop {
        let pause = match confirm_and_publish(&pool, &outbox, clerk).await {
            Ok(true) => continue,
            Ok(false) => LOOK_EVERY,
            Err(error) => {
                tracing::warn!(%error, "an order was not confirmed; it stays open");
                AFTER_ERROR
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// The business transaction: the order's new state and the event that tells of it stand together,
/// or neither does (PROD-4).
async fn confirm_and_publish(pool: &PgPool, outbox: &Outbox, clerk: i64) -> factum::Result<bool> {
    let confirmed_at = OffsetDateTime::now_utc();
    let mut tx = pool.begin().await?;
    let Some(event) = confirm_next(&mut tx, clerk, confirmed_at).await? else {
        return Ok(false);
    };
    outbox
        .publish(&mut tx, event.occurred_at(confirmed_at))
        .await?;
    tx.commit().await?;
    Ok(true)
}
