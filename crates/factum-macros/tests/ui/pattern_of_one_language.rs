extern crate factum_event as factum;

use factum_macros::Event;

#[derive(Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed", unlocked)]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: u32,
    #[event(pattern = r"\d{4}")]
    pub a: String,
    #[event(pattern = "^a$")]
    pub b: String,
    #[event(pattern = "a.c")]
    pub c: String,
    #[event(pattern = "(?=a)b")]
    pub d: String,
    #[event(pattern = "[a")]
    pub e: String,
    #[event(pattern("a"))]
    pub f: String,
    #[event(pattern = 5)]
    pub g: String,
}

fn main() {}
