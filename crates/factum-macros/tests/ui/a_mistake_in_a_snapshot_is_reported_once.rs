extern crate factum_event as factum;

use factum_macros::{Event, Snapshot};

use uuid::Uuid;

#[derive(Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed", restricted)]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: Uuid,
    pub address: Address,
}

#[derive(Snapshot)]
pub struct Address {
    pub street: String,
}

fn main() {}
