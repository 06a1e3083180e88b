extern crate factum_event as factum;

use factum_macros::{Event, Snapshot};

#[derive(Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed")]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: u32,
    pub email: Email,
    pub serial: Serial,
}

#[derive(Snapshot)]
pub struct Email(factum::Personal<String>);

#[derive(Snapshot)]
pub struct Serial(u64);

fn main() {}
