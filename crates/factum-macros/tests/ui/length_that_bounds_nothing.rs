extern crate factum_event as factum;

use factum_macros::Event;

#[derive(Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed", unlocked)]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: u32,
    #[event(length(min = 0))]
    pub a: String,
    #[event(items(max = 0))]
    pub b: Vec<String>,
    #[event(length())]
    pub c: String,
    #[event(length(min = -1))]
    pub d: String,
    #[event(length(max = "4"))]
    pub e: String,
    #[event(length(max = 5_000_000_000))]
    pub f: String,
    #[event(length = 5)]
    pub g: String,
}

fn main() {}
