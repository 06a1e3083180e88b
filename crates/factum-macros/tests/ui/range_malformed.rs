extern crate factum_event as factum;

use factum_macros::Event;

#[derive(Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed", unlocked)]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: u32,
    #[event(range)]
    pub a: u32,
    #[event(range())]
    pub b: u32,
    #[event(range(1, 2))]
    pub c: u32,
    #[event(range(min = LIMIT))]
    pub d: u32,
    #[event(range(min = 1u32))]
    pub e: u32,
    #[event(range(min = 1, greater_than = 0))]
    pub f: factum::Amount,
    #[event(range(min = "one"))]
    pub g: factum::Amount,
    #[event(range(min = "0.1", max = 0.5))]
    pub h: factum::Amount,
    #[event(range(least = 1))]
    pub i: u32,
    #[event(range(min = 1, min = 2))]
    pub j: u32,
    #[event(range(min))]
    pub k: u32,
    #[event(range = 1)]
    pub l: u32,
}

fn main() {}
