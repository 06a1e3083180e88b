extern crate factum_event as factum;

use factum_macros::Snapshot;

#[derive(Snapshot)]
pub struct Size(u32, u32);

fn main() {}
