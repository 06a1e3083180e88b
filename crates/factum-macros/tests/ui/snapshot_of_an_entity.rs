extern crate factum_event as factum;

use factum_macros::Snapshot;

pub struct CustomerEntity {
    pub name: String,
}

#[derive(Snapshot)]
pub struct Item {
    pub customers: Vec<CustomerEntity>,
}

fn main() {}
