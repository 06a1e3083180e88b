extern crate factum_event as factum;

use factum_macros::Snapshot;

#[derive(Snapshot)]
pub enum Status {
    Paid,
    #[snapshot(other)]
    Other,
}

#[derive(Snapshot)]
pub enum Colour {
    Red,
    #[snapshot(other)]
    Other(u32),
}

#[derive(Snapshot)]
pub enum Size {
    Small,
    #[snapshot(other)]
    Other(String, String),
}

#[derive(Snapshot)]
pub enum Weight {
    Light,
    #[snapshot(other)]
    Other { text: String },
}

fn main() {}
