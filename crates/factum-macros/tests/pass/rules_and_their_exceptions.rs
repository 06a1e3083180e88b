extern crate factum_event as factum;

use std::collections::BTreeMap;

use factum_macros::{Event, Snapshot};

use factum::{Amount, Event as _, Personal, Snapshot as _};
use uuid::Uuid;

// A topic that few may read carries personal data, also of nested snapshots.
#[derive(Debug, Event)]
#[event(
    kind = "customer.signed-up.v2",
    aggregate = "Customer",
    topic = "customers.signed-up",
    restricted,
    unlocked
)]
struct CustomerSignedUpV2Event {
    #[event(aggregate_id)]
    customer_id: Uuid,
    email: Personal<String>,
    phone_numbers: Vec<Personal<String>>,
    billing_address: Address,
    addresses: BTreeMap<String, Address>,
    #[event(text)]
    tax_id: Option<Personal<u64>>,
    email_verified: bool,
    emailed_at: Option<time::OffsetDateTime>,
    card_count: u32,
}

#[derive(Debug, Snapshot)]
struct Address {
    street: Personal<String>,
    postcode: Personal<String>,
    city: String,
}

// On a broadcast topic, with every exception that there is.
#[derive(Debug, Event)]
#[event(
    kind = "stock.take.v1",
    aggregate = "Stock",
    topic = "stock",
    name = "StockTake",
    because = "the trade calls it so, as a noun",
    unlocked
)]
struct StockTake {
    #[event(aggregate_id)]
    stock_id: Uuid,
    #[event(not_personal = "the public address of a shop")]
    address: String,
    #[event(float = "a thermometer measures it")]
    temperature: Option<f64>,
    #[event(range(min = 0, max = 9_007_199_254_740_991))]
    position: u64,
    #[event(range(min = -5, max = 5))]
    difference: Vec<i64>,
    #[event(text)]
    serial: u64,
    shelves: Vec<Shelf>,
}

// A snapshot that holds itself.
#[derive(Debug, Snapshot)]
struct Shelf {
    price: Amount,
    above: Option<Box<Shelf>>,
    beside: Vec<Self>,
}

fn main() {
    assert_eq!(Address::CONTENT.personal, Some("Address.street"));
    assert_eq!(Shelf::CONTENT, factum::Content::PLAIN);
    assert!(CustomerSignedUpV2Event::contract().restricted);
    assert!(!StockTake::contract().restricted);
}
