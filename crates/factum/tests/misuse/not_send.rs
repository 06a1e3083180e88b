//! A handler holds something across an await that can't move to another thread.
//!
//! says: future cannot be sent between threads safely
//! says: `Rc<i32>`

use std::rc::Rc;

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
        let count = Rc::new(1);
        sqlx::query("INSERT INTO invoice DEFAULT VALUES").execute(tx.conn()).await?;
        drop(count);
        Ok(())
    }
}

fn main() {}
