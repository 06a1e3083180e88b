extern crate factum_event as factum;

use factum_macros::Snapshot;

/// What the domain works with: it has rules and it changes.
pub struct Customer {
    pub orders: Vec<u32>,
}

#[derive(Snapshot)]
pub struct Basket {
    pub customer: Box<Customer>,
}

fn main() {}
