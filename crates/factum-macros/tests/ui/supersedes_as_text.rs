extern crate factum_event as factum;

use factum_macros::Event;

#[derive(Event)]
#[event(
    kind = "order.confirmed.v2",
    aggregate = "Order",
    topic = "orders.confirmed",
    unlocked,
    supersedes = "order.confirmed.v1"
)]
struct OrderConfirmed {
    #[event(aggregate_id)]
    order_id: u32,
}

#[derive(Event)]
#[event(kind = "order.paid.v2", aggregate = "Order", topic = "orders.paid", unlocked, supersedes)]
struct OrderPaid {
    #[event(aggregate_id)]
    order_id: u32,
}

#[derive(Event)]
#[event(
    kind = "order.cancelled.v2",
    aggregate = "Order",
    topic = "orders.cancelled",
    unlocked,
    supersedes = OrderCancelled
)]
struct OrderCancelled {
    #[event(aggregate_id)]
    order_id: u32,
}

fn main() {}
