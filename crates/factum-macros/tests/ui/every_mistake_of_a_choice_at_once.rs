extern crate factum_event as factum;

use factum_macros::Snapshot;

#[derive(Snapshot)]
pub enum Status {
    Paid(u32),
    #[snapshot(name = "paid")]
    Settled,
    #[snapshot(other)]
    Other,
    #[snapshot(other)]
    Unknown(u64),
}

fn main() {}
