extern crate factum_event as factum;

use factum_macros::Snapshot;

#[derive(Snapshot)]
#[snapshot(rename_all = "camelCase")]
pub struct Item {
    #[snapshot(rename = "sku")]
    pub product: String,
}

fn main() {}
