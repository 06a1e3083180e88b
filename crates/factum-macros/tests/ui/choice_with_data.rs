extern crate factum_event as factum;

use factum_macros::Snapshot;

#[derive(Snapshot)]
pub enum Status {
    Paid,
    Refunded(u32),
    Sent { on: String },
}

fn main() {}
