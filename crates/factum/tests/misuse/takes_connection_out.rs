//! A handler tries to move the connection out of the transaction, to commit it itself.
//!
//! says: cannot move out of a mutable reference

use factum::sqlx::PgConnection;
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
        let owned: PgConnection = *tx.conn();
        drop(owned);
        Ok(())
    }
}

fn main() {}
