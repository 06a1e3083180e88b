//! What an event does to the database, and the statements for it: the same for Factum and for the raw loops.

use bigdecimal::BigDecimal;
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

/// The table of effects. Nothing in it forbids a second effect of one event: the check must be able to see it.
pub(crate) const TABLE: &str = "CREATE TABLE effect ( \
     id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, \
     event_id    uuid NOT NULL, \
     order_id    uuid NOT NULL, \
     customer_id uuid NOT NULL, \
     amount      numeric NOT NULL, \
     currency    text NOT NULL, \
     items       integer NOT NULL, \
     occurred_at timestamptz NOT NULL, \
     handled_at  timestamptz NOT NULL DEFAULT clock_timestamp())";

/// One row.
#[derive(Debug)]
pub(crate) struct Effect<'a> {
    pub(crate) event_id: Uuid,
    pub(crate) order_id: Uuid,
    pub(crate) customer_id: Uuid,
    pub(crate) amount: &'a BigDecimal,
    pub(crate) currency: &'a str,
    pub(crate) items: usize,
    pub(crate) occurred_at: OffsetDateTime,
}

impl Effect<'_> {
    /// Writes this one row.
    pub(crate) async fn write(&self, conn: &mut PgConnection) -> Result<(), sqlx::Error> {
        sqlx::query(
            "INSERT INTO effect (event_id, order_id, customer_id, amount, currency, items, occurred_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(self.event_id)
        .bind(self.order_id)
        .bind(self.customer_id)
        .bind(self.amount)
        .bind(self.currency)
        .bind(self.items as i32)
        .bind(self.occurred_at)
        .execute(conn)
        .await?;
        Ok(())
    }
}

/// Writes all rows with one statement.
pub(crate) async fn write_all<'a>(
    conn: &mut PgConnection,
    effects: impl ExactSizeIterator<Item = Effect<'a>>,
) -> Result<(), sqlx::Error> {
    let count = effects.len();
    let mut event_ids = Vec::with_capacity(count);
    let mut order_ids = Vec::with_capacity(count);
    let mut customer_ids = Vec::with_capacity(count);
    let mut amounts: Vec<&BigDecimal> = Vec::with_capacity(count);
    let mut currencies: Vec<&str> = Vec::with_capacity(count);
    let mut items = Vec::with_capacity(count);
    let mut times = Vec::with_capacity(count);
    for effect in effects {
        event_ids.push(effect.event_id);
        order_ids.push(effect.order_id);
        customer_ids.push(effect.customer_id);
        amounts.push(effect.amount);
        currencies.push(effect.currency);
        items.push(effect.items as i32);
        times.push(effect.occurred_at);
    }
    sqlx::query(
        "INSERT INTO effect (event_id, order_id, customer_id, amount, currency, items, occurred_at) \
         SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::numeric[], $5::text[], \
                              $6::integer[], $7::timestamptz[])",
    )
    .bind(event_ids)
    .bind(order_ids)
    .bind(customer_ids)
    .bind(amounts)
    .bind(currencies)
    .bind(items)
    .bind(times)
    .execute(conn)
    .await?;
    Ok(())
}
