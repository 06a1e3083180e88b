extern crate factum_event as factum;

use factum_macros::Snapshot;

#[derive(Snapshot)]
pub struct Item {
    #[snapshot(text = true)]
    pub price: u32,
}

fn main() {}
