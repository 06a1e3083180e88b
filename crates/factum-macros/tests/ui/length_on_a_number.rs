extern crate factum_event as factum;

use factum_macros::Event;

#[derive(Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed", unlocked)]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: u32,
    #[event(length(max = 4))]
    pub count: u32,
    #[event(pattern = "[a-z]+")]
    pub items: Vec<u32>,
    #[event(code = "currency")]
    pub currency: factum::Currency,
}

fn main() {}
