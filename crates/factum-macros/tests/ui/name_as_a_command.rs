extern crate factum_event as factum;

use factum_macros::Event;

use uuid::Uuid;

#[derive(Event)]
#[event(kind = "order.confirm.v1", aggregate = "Order", topic = "orders.confirmed")]
pub struct ConfirmOrder {
    #[event(aggregate_id)]
    pub order_id: Uuid,
}

fn main() {}
