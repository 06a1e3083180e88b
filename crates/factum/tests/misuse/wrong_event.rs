//! A handler is given to a consumer for an event that it does not handle.
//!
//! says: `Billing` is not a handler for `OrderCancelled`
//! says: write `impl Handler<OrderCancelled> for Billing`

use factum::{Consumer, Envelope, Event, Handler, HandlerError, Tx};

#[derive(Debug, Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed")]
struct OrderConfirmed {
    #[event(aggregate_id)]
    order_id: u32,
}

#[derive(Debug, Event)]
#[event(kind = "order.cancelled.v1", aggregate = "Order", topic = "orders.cancelled")]
struct OrderCancelled {
    #[event(aggregate_id)]
    order_id: u32,
}

struct Billing;

impl Handler<OrderConfirmed> for Billing {
    async fn handle(
        &self,
        _event: &Envelope<OrderConfirmed>,
        _tx: &mut Tx<'_>,
    ) -> Result<(), HandlerError> {
        Ok(())
    }
}

fn main() {
    let _ = Consumer::named("billing-order-cancelled").handler::<OrderCancelled>(Billing);
}
