extern crate factum_event as factum;

use factum_macros::Snapshot;

use serde::Serialize;

#[derive(Serialize, Snapshot)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    #[serde(rename = "PAID")]
    Paid,
}

fn main() {}
