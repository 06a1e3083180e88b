extern crate factum_event as factum;

use factum_macros::Snapshot;

use serde::Serialize;

#[derive(Serialize, Snapshot)]
pub struct Item {
    #[serde(skip)]
    pub product: String,
}

fn main() {}
