//! What a handler may do: this one compiles, so the others fail for what they are about.

use factum::sqlx::{self, Connection as _};
use factum::{Consumer, Envelope, Event, Handler, HandlerError, Retry, Tx};

#[derive(Debug, Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed")]
struct OrderConfirmed {
    #[event(aggregate_id)]
    order_id: u32,
}

struct Billing;

impl Handler<OrderConfirmed> for Billing {
    async fn handle(
        &self,
        event: &Envelope<OrderConfirmed>,
        tx: &mut Tx<'_>,
    ) -> Result<(), HandlerError> {
        let mut inner = tx.conn().begin().await?;
        sqlx::query("INSERT INTO invoice (id) VALUES ($1)")
            .bind(event.id().as_uuid())
            .execute(&mut *inner)
            .await?;
        inner.commit().await?;
        let again = OrderConfirmed {
            order_id: event.order_id,
        };
        tx.publish(again.occurred_at(event.occurred_at())).await?;
        Ok(())
    }
}

fn main() {
    let _ = Consumer::named("billing-order-confirmed")
        .handler::<OrderConfirmed>(Billing)
        .retry(Retry::park().attempts(8));
}
