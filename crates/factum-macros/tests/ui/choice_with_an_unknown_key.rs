extern crate factum_event as factum;

use factum_macros::Snapshot;

#[derive(Snapshot)]
#[snapshot(validate = check)]
pub enum Status {
    #[snapshot(rename = "PAID")]
    Paid,
    #[snapshot(other, name = "other")]
    Other(String),
}

fn main() {}
