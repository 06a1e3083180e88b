extern crate factum_event as factum;

use factum_macros::Event;

#[derive(Event)]
#[event(kind = "OrderConfirmed", aggregate = "The Order", topic = "orders/confirmed", key = "order_id")]
pub struct OrderConfirmed {
    pub order_id: u32,
    pub event_id: u32,
    #[event(rename = "remark")]
    pub note: String,
}

fn main() {}
