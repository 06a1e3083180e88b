extern crate factum_event as factum;

use factum_macros::Event;

#[derive(Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed")]
pub union OrderConfirmed {
    order_id: u32,
}

fn main() {}
