extern crate factum_event as factum;

use factum_macros::Event;

use factum::{Event as _, EventId, Registry};

#[derive(Debug, Clone, Event)]
#[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders/confirmed")]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: u32,
}

// The one mistake above is the one error: nothing here is reported.
fn main() {
    let event = OrderConfirmed { order_id: 7 };
    let registry = Registry::new().with::<OrderConfirmed>();
    let at = time::OffsetDateTime::UNIX_EPOCH;
    let envelope = event.clone().occurred_at(at).with_id(EventId::floor(0));
    println!("{} {:?} {:?}", event.order_id, envelope.encode(), registry);
}
