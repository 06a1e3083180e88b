extern crate factum_event as factum;

use factum_macros::Snapshot;

#[derive(Snapshot)]
pub struct Page<T> {
    pub items: Vec<T>,
}

fn main() {}
