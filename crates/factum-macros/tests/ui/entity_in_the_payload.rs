extern crate factum_event as factum;

use factum_macros::Event;

pub struct CustomerEntity {
    pub name: String,
}

#[derive(Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed")]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: u32,
    pub customer: CustomerEntity,
}

fn main() {}
