extern crate factum_event as factum;

use factum_macros::Snapshot;

#[derive(Snapshot)]
pub enum Status {}

#[derive(Snapshot)]
pub enum Colour {
    #[snapshot(other)]
    Other(String),
}

fn main() {}
