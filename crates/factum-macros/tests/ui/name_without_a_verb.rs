extern crate factum_event as factum;

use factum_macros::Event;

use uuid::Uuid;

#[derive(Event)]
#[event(kind = "order.need.v1", aggregate = "Order", topic = "orders.confirmed")]
pub struct OrderNeed {
    #[event(aggregate_id)]
    pub order_id: Uuid,
}

fn main() {}
