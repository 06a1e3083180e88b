extern crate factum_event as factum;

use factum_macros::Event;

#[derive(Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed", unlocked)]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: u32,
    #[event(range(min = 10, max = 9))]
    pub count: u32,
    #[event(range(min = 1.5, max = 1), float = "weighed on a scale")]
    pub weight: f64,
    #[event(range(min = "0.10", max = "0.09"))]
    pub price: factum::Amount,
    #[event(range(greater_than = "0.10", max = "0.1"))]
    pub fee: factum::Amount,
    #[event(length(min = 3, max = 2))]
    pub note: String,
}

fn main() {}
