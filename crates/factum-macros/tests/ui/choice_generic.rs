extern crate factum_event as factum;

use factum_macros::Snapshot;

#[derive(Snapshot)]
pub enum Status<T> {
    Paid(T),
}

fn main() {}
