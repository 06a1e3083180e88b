extern crate factum_event as factum;

use factum_macros::Event;

struct OrderConfirmedV1;

#[derive(Event)]
#[event(
    kind = "order.confirmed.v2",
    aggregate = "Order",
    topic = "orders.confirmed",
    unlocked,
    supersedes = OrderConfirmedV1
)]
struct OrderConfirmed {
    #[event(aggregate_id)]
    order_id: u32,
}

fn main() {}
