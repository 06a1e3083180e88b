extern crate factum_event as factum;

use factum_macros::{Event, Snapshot};

use factum::Personal;

pub type Contact = Option<Personal<String>>;

#[derive(Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed")]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: u32,
    pub contact: Contact,
    pub recipient: Recipient,
}

#[derive(Snapshot)]
pub struct Recipient {
    pub contact: Contact,
}

fn main() {}
