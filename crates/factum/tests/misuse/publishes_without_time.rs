//! A handler publishes an event without saying when it happened.
//!
//! says: the trait `From<OrderConfirmed>` is not implemented for `Publication<_>`
//! says: `Publication<E>` implements `From<Occurred<E>>`

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
        tx.publish(OrderConfirmed { order_id: 7 }).await?;
        Ok(())
    }
}

fn main() {}
