extern crate factum_event as factum;

use factum_macros::Event;

#[derive(Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed", unlocked)]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: u64,
    #[event(range(min = 0.5))]
    pub count: u32,
    #[event(range(min = "0.01"))]
    pub weight: f64,
    #[event(range(greater_than = 0))]
    pub number: Option<i64>,
}

fn main() {}
