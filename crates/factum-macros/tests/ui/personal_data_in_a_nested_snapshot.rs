extern crate factum_event as factum;

use factum_macros::{Event, Snapshot};

use uuid::Uuid;

use factum::Personal;

#[derive(Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed")]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: Uuid,
    pub recipients: Vec<Recipient>,
}

#[derive(Snapshot)]
pub struct Recipient {
    pub country: String,
    pub contact: Contact,
}

#[derive(Snapshot)]
pub struct Contact {
    pub email: Personal<String>,
}

fn main() {}
