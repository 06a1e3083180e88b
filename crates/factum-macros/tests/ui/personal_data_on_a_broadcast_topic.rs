extern crate factum_event as factum;

use factum_macros::Event;

use uuid::Uuid;

use factum::Personal;

#[derive(Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed")]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: Uuid,
    pub email: Option<Personal<String>>,
}

fn main() {}
