extern crate factum_event as factum;

use factum_macros::Event;

#[derive(Event)]
#[event(kind = "order.confirmed.v2", aggregate = "Order", topic = "orders.confirmed", unlocked)]
struct OrderConfirmed {
    #[event(aggregate_id)]
    order_id: u32,
}

/// Not newer.
#[derive(Event)]
#[event(
    kind = "order.confirmed.v2",
    aggregate = "Order",
    topic = "orders.confirmed",
    unlocked,
    supersedes = OrderConfirmed
)]
struct AgainOrderConfirmed {
    #[event(aggregate_id)]
    order_id: u32,
}

/// Another event.
#[derive(Event)]
#[event(
    kind = "order.paid.v3",
    aggregate = "Order",
    topic = "orders.paid",
    unlocked,
    supersedes = OrderConfirmed
)]
struct OrderPaid {
    #[event(aggregate_id)]
    order_id: u32,
}

/// Another aggregate.
#[derive(Event)]
#[event(
    kind = "purchase.confirmed.v3",
    aggregate = "Purchase",
    topic = "purchases.confirmed",
    unlocked,
    supersedes = OrderConfirmed
)]
struct PurchaseConfirmed {
    #[event(aggregate_id)]
    order_id: u32,
}

macro_rules! conversions {
    ($($newer:ident),*) => {$(
        impl From<OrderConfirmed> for $newer {
            fn from(older: OrderConfirmed) -> Self {
                $newer { order_id: older.order_id }
            }
        }
        impl From<&$newer> for OrderConfirmed {
            fn from(newer: &$newer) -> Self {
                OrderConfirmed { order_id: newer.order_id }
            }
        }
    )*};
}

conversions!(AgainOrderConfirmed, OrderPaid, PurchaseConfirmed);

fn main() {}
