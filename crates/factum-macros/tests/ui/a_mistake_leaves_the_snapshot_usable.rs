extern crate factum_event as factum;

use factum_macros::Snapshot;

#[derive(Snapshot)]
pub struct Size(u32, u32);

// The one mistake above is the one error: nothing here is reported.
#[derive(Snapshot)]
pub struct Item {
    pub size: Size,
}

fn main() {}
