extern crate factum_event as factum;

use factum_macros::Event;

#[derive(Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed", unlocked)]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: u64,
    #[event(range(max = 300))]
    pub level: u8,
    #[event(range(min = -1))]
    pub count: u32,
    #[event(range(max = 9_007_199_254_740_992))]
    pub number: Option<u64>,
}

fn main() {}
