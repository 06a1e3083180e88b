extern crate factum_event as factum;

use factum_macros::Event;

use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed")]
#[serde(rename_all = "camelCase")]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: u32,
    #[serde(rename = "remark")]
    pub note: String,
}

fn main() {}
