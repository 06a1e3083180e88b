extern crate factum_event as factum;

use factum_macros::Event;

use uuid::Uuid;

#[derive(Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed")]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: Uuid,
    pub total: f64,
    pub weights: Vec<Option<f64>>,
    #[event(float = "")]
    pub height: f64,
}

fn main() {}
