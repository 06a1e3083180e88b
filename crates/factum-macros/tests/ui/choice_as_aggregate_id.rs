extern crate factum_event as factum;

use factum_macros::{Event, Snapshot};

#[derive(Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed", unlocked)]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub status: Status,
}

#[derive(Snapshot)]
pub enum Status {
    Paid,
}

fn main() {}
