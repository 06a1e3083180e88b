extern crate factum_event as factum;

use factum_macros::Event;

#[derive(Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed", unlocked)]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: u32,
    #[event(range(min = 0.5))]
    pub count: u32,
    #[event(range(min = "0.01"), float = "weighed on a scale")]
    pub weight: f64,
    #[event(range(greater_than = 0))]
    pub number: Option<i32>,
}

fn main() {}
