extern crate factum_event as factum;

use factum_macros::Event;

use uuid::Uuid;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

mod chrono {
    pub struct DateTime<Tz>(pub Tz);
    pub struct Utc;
    pub struct NaiveDate;
}
mod serde_json {
    pub enum Value {}
}
pub struct PgRow;

#[derive(Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed")]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: Uuid,
    pub weight: f32,
    pub count: usize,
    pub trace: Option<u128>,
    pub grade: char,
    pub labels: HashMap<String, String>,
    pub tags: Vec<HashSet<String>>,
    pub prices: BTreeMap<u32, String>,
    pub pair: (u32, u32),
    pub digits: [u8; 4],
    pub note: &'static str,
    pub shared: Arc<String>,
    pub seen_at: std::time::SystemTime,
    pub timeout: std::time::Duration,
    pub placed_at: chrono::DateTime<chrono::Utc>,
    pub due_on: chrono::NaiveDate,
    pub extra: serde_json::Value,
    pub row: PgRow,
}

fn main() {}
