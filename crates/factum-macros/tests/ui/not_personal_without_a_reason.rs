extern crate factum_event as factum;

use factum_macros::Event;

use uuid::Uuid;

#[derive(Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed")]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: Uuid,
    #[event(not_personal)]
    pub shop_address: String,
    #[event(not_personal = "no")]
    pub shop_phone: String,
}

fn main() {}
