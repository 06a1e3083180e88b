//! A handler tries to commit the transaction that it was lent.
//!
//! says: no method named `commit` found for mutable reference `&mut Tx<'_>`

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
        tx.commit().await?;
        Ok(())
    }
}

fn main() {}
