extern crate factum_event as factum;

use factum_macros::Snapshot;

#[derive(Snapshot)]
pub struct Item {
    pub serial: u64,
}

fn main() {}
