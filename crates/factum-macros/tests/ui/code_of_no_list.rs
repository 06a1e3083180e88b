extern crate factum_event as factum;

use factum_macros::Event;

#[derive(Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed", unlocked)]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: u32,
    #[event(code = "iban")]
    pub a: String,
    #[event(code("country"))]
    pub b: String,
    #[event(code = "country", length(max = 2), pattern = "[A-Z]+")]
    pub c: String,
}

fn main() {}
