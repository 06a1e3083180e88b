extern crate factum_event as factum;

use factum_macros::{Event, Snapshot};

use uuid::Uuid;

use std::collections::HashMap;

use factum::Personal;

#[derive(Event)]
#[event(kind = "order.confirm.v2", aggregate = "Order", topic = "orders.confirmed")]
pub struct ConfirmOrder {
    #[event(aggregate_id)]
    pub order_id: Uuid,
    pub customer_email: String,
    pub phone: Personal<String>,
    pub total: f64,
    pub serial: u64,
    pub labels: HashMap<String, String>,
    pub recipient: Recipient,
    pub customer: CustomerEntity,
}

#[derive(Snapshot)]
pub struct Recipient {
    pub email: Personal<String>,
}

pub struct CustomerEntity;

fn main() {}
