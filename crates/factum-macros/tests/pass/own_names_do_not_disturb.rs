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
    #[event(kind = "order.confirmed.v1", aggregate = "Order", topic = "orders.confirmed", crate = "factum", validate = check)]
    pub struct OrderConfirmed {
        #[event(aggregate_id)]
        pub aggregate_id: u64,
        pub __out: u32,
        #[event(length(max = 4), pattern = "[a-z]+")]
        pub __value: String,
        #[event(range(min = "0.5"))]
        pub __read: factum::Amount,
        pub from: Item,
        pub colour: Colour,
    }

    #[derive(Snapshot)]
    #[snapshot(crate = "factum")]
    pub struct Item {
        #[snapshot(range(max = 4))]
        pub out: u64,
    }

    #[derive(Snapshot)]
    #[snapshot(crate = "factum")]
    pub enum Colour {
        Some,
        None,
        #[snapshot(other)]
        Ok(String),
    }

    fn check(_: &OrderConfirmed) -> ::std::result::Result<(), factum::Invalid> {
        ::std::result::Result::Ok(())
    }
}

fn main() {
    use factum::Event as _;
    let item = domain::Item { out: 1 };
    let event = domain::OrderConfirmed {
        aggregate_id: 7,
        __out: 1,
        __value: "abc".to_owned(),
        __read: factum::Amount::from(1_u8),
        from: item,
        colour: domain::Colour::Ok("green".to_owned()),
    };
    assert_eq!(event.aggregate_id().unwrap().as_str(), "7");
}
