extern crate factum_event as factum;


// A user's own items with the names that the generated code needs.
#[allow(dead_code)]
mod domain {
    use factum_macros::{Event, Snapshot};

    pub struct Result;
    pub struct Option;
    pub enum Other { Ok, Err, Some, None }
    pub use Other::*;
    pub mod core {}
    pub mod std {}
    pub trait ToAggregateId {
        fn to_aggregate_id(&self) {}
    }
    impl ToAggregateId for u64 {}

    #[derive(Event)]
    #[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed", crate = "factum")]
    pub struct OrderConfirmed {
        #[event(aggregate_id)]
        pub aggregate_id: u64,
        pub __out: u32,
        pub from: Item,
    }

    #[derive(Snapshot)]
    #[snapshot(crate = "factum")]
    pub struct Item {
        pub out: u32,
    }
}

fn main() {
    use factum::Event as _;
    let item = domain::Item { out: 1 };
    let event = domain::OrderConfirmed { aggregate_id: 7, __out: 1, from: item };
    assert_eq!(event.aggregate_id().unwrap().as_str(), "7");
}
