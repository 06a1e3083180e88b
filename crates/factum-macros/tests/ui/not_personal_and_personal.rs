extern crate factum_event as factum;

use factum_macros::Snapshot;

use factum::Personal;

#[derive(Snapshot)]
pub struct Shop {
    #[snapshot(not_personal = "the address of a shop")]
    pub address: Personal<String>,
}

fn main() {}
