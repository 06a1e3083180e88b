extern crate factum_event as factum;

use factum_macros::Snapshot;

#[derive(Snapshot)]
pub struct Recipient {
    pub country: String,
    pub full_name: String,
}

fn main() {}
