extern crate factum_event as factum;

use factum_macros::Event;

#[derive(Event)]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: u32,
}

fn main() {}
