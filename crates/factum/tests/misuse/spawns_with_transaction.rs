//! A handler tries to work with the transaction in a task of its own.
//!
//! says: borrowed data escapes outside of method

use factum::sqlx;
use factum::{Envelope, Event, Handler, HandlerError, Tx};

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
        _event: &Envelope<OrderConfirmed>,
        tx: &mut Tx<'_>,
    ) -> Result<(), HandlerError> {
        tokio::spawn(async move {
            sqlx::query("INSERT INTO invoice DEFAULT VALUES").execute(tx.conn()).await
        });
        Ok(())
    }
}

fn main() {}
