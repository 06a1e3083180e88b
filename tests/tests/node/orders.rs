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
    #[event(range(min = 1, max = 9_007_199_254_740_991))]
    pub(crate) order_id: NonZeroU64,
    #[event(range(min = 1, max = 9_007_199_254_740_991))]
    pub(crate) customer_id: NonZeroU64,
    pub(crate) total_amount: PositiveAmount,
    pub(crate) currency: Currency,
}
