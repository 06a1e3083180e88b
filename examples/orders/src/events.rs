//! What the services tell each other.

use std::num::NonZeroU64;

use factum::{Currency, Event, PositiveAmount};

/// An order was confirmed: the customer will get it, and has to pay for it.
#[derive(Debug, Clone, PartialEq, Event)]
#[event(
    kind = "order.confirmed.v1",
    aggregate = "Order",
    topic = "orders.confirmed"
)]
pub struct OrderConfirmed {
    /// The reference that the customer orders under. Kafka's key: what is confirmed under one
    /// reference stays in order.
    #[event(aggregate_id)]
    pub order_ref: String,
    /// The order.
    #[event(range(min = 1, max = 9_007_199_254_740_991))]
    pub order_id: NonZeroU64,
    /// The customer.
    #[event(range(min = 1, max = 9_007_199_254_740_991))]
    pub customer_id: NonZeroU64,
    /// What the order costs, more than zero.
    pub total_amount: PositiveAmount,
    /// The currency of the amount.
    pub currency: Currency,
}

/// An invoice was issued: the customer can be told.
#[derive(Debug, Clone, PartialEq, Event)]
#[event(
    kind = "invoice.issued.v1",
    aggregate = "Invoice",
    topic = "invoices.issued"
)]
pub struct InvoiceIssued {
    /// The series that the invoice belongs to: one for each order reference. Kafka's key.
    #[event(aggregate_id)]
    pub invoice_ref: String,
    /// The invoice; ascending in its series.
    #[event(range(min = 1, max = 9_007_199_254_740_991))]
    pub invoice_id: NonZeroU64,
    /// The order that it asks money for.
    #[event(range(min = 1, max = 9_007_199_254_740_991))]
    pub order_id: NonZeroU64,
    /// The customer who gets it.
    #[event(range(min = 1, max = 9_007_199_254_740_991))]
    pub customer_id: NonZeroU64,
    /// What is to be paid, more than zero.
    pub total_amount: PositiveAmount,
    /// The currency of the amount.
    pub currency: Currency,
}
