//! The event that `examples/billing-node` handles, as `examples/orders` declares it.

use std::num::NonZeroU64;

use factum::{Currency, Event, PositiveAmount};

#[derive(Debug, Clone, PartialEq, Event)]
#[event(
    kind = "order.confirmed.v1",
    aggregate = "Order",
    topic = "orders.confirmed",
    unlocked
)]
pub(crate) struct OrderConfirmed {
    #[event(aggregate_id)]
    pub(crate) order_ref: String,
    pub(crate) order_id: NonZeroU64,
    pub(crate) customer_id: NonZeroU64,
    pub(crate) total_amount: PositiveAmount,
    pub(crate) currency: Currency,
}
