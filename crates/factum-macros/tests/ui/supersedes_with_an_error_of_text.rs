extern crate factum_event as factum;

use factum_macros::Event;

#[derive(Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed", unlocked)]
struct OrderConfirmedV1 {
    #[event(aggregate_id)]
    order_id: u32,
}

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

impl From<OrderConfirmedV1> for OrderConfirmed {
    fn from(older: OrderConfirmedV1) -> Self {
        OrderConfirmed { order_id: older.order_id.into() }
    }
}

impl TryFrom<&OrderConfirmed> for OrderConfirmedV1 {
    type Error = String;

    fn try_from(newer: &OrderConfirmed) -> Result<Self, String> {
        // The text might quote a value, so it is none that Factum would store.
        let order_id = u32::try_from(newer.order_id);
        Ok(OrderConfirmedV1 { order_id: order_id.map_err(|_| format!("no id {}", newer.order_id))? })
    }
}

fn main() {}
