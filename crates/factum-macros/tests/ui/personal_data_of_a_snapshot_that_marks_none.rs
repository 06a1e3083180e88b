extern crate factum_event as factum;

use factum_macros::{Event, Snapshot};

use uuid::Uuid;

#[derive(Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed", restricted)]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: Uuid,
    pub delivery_address: Address,
}

#[derive(Snapshot)]
pub struct Address {
    pub lines_of_text: Vec<String>,
    pub city: String,
}

fn main() {}
