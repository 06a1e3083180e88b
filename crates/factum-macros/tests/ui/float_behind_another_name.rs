extern crate factum_event as factum;

use factum_macros::Event;

use uuid::Uuid;

pub type Kilograms = f64;

#[derive(Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed")]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: Uuid,
    pub weight: Option<Kilograms>,
}

fn main() {}
