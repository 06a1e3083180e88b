extern crate factum_event as factum;

use factum_macros::Snapshot;

#[derive(Snapshot)]
pub enum Status {
    SentBack,
    #[snapshot(name = "sent_back")]
    Returned,
}

fn main() {}
