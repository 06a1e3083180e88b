extern crate factum_event as factum;

use factum_macros::Event;

use factum::Personal;

#[derive(Event)]
#[event(kind = "customer.registered.v1", aggregate = "Customer", topic = "customers", restricted)]
pub struct CustomerRegistered {
    #[event(aggregate_id)]
    pub email: Personal<String>,
}

fn main() {}
