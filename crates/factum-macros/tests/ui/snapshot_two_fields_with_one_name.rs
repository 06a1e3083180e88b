extern crate factum_event as factum;

use factum_macros::Snapshot;

#[derive(Snapshot)]
pub struct Address {
    pub line_2: String,
    pub line2: String,
}

fn main() {}
