extern crate factum_event as factum;

use factum_macros::Snapshot;

#[derive(Snapshot)]
pub struct Item {
    #[event(text)]
    pub product_id: u32,
}

fn main() {}
