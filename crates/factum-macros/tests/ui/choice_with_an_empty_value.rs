extern crate factum_event as factum;

use factum_macros::Snapshot;

#[derive(Snapshot)]
pub enum Status {
    #[snapshot(name = "")]
    Paid,
    #[snapshot(name = "a\0b")]
    Refunded,
}

fn main() {}
