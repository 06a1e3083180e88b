extern crate factum_event as factum;

use factum_macros::Snapshot;

#[derive(Snapshot)]
pub enum Status {
    Paid,
    #[snapshot(other)]
    Other(String),
    #[snapshot(other)]
    Unknown(String),
}

fn main() {}
