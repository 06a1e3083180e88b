extern crate factum_event as factum;

use factum_macros::Event;

use uuid::Uuid;

#[derive(Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed")]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: Uuid,
    pub serial: u64,
    pub balance_cents: Option<i64>,
    #[event(range(min = 1, max = 9_007_199_254_740_992))]
    pub position: u64,
    #[event(range(max = 100))]
    pub difference: i64,
}

fn main() {}
