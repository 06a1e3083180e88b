//! A handler tries to keep the transaction for later.
//!
//! says: borrowed data escapes outside of method
//! says: `tx` escapes the method body here

use std::sync::Mutex;
use factum::{Envelope, Event, Handler, HandlerError, Tx};

#[derive(Debug, Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed")]
struct OrderConfirmed {
    #[event(aggregate_id)]
    order_id: u32,
}

struct Billing {
    kept: Mutex<Option<&'static mut Tx<'static>>>,
}

impl Handler<OrderConfirmed> for Billing {
    async fn handle(
        &self,
        _event: &Envelope<OrderConfirmed>,
        tx: &mut Tx<'_>,
    ) -> Result<(), HandlerError> {
        *self.kept.lock().unwrap() = Some(tx);
        Ok(())
    }
}

fn main() {}
