extern crate factum_event as factum;

#[deny(warnings, clippy::pedantic)]
mod domain {
    use factum::Personal;
    use factum_macros::{Event, Snapshot};

    // The type of a field comes as one token from a macro.
    macro_rules! event {
        ($name:ident, $kind:literal, $contact:ty, $number:ty) => {
            #[derive(Debug, Event)]
            #[event(kind = $kind, aggregate = "Order", topic = "orders", restricted, unlocked)]
            pub struct $name {
                #[event(aggregate_id)]
                pub order_id: u32,
                pub email: $contact,
                #[event(text)]
                pub serials: Vec<$number>,
                pub line: Line,
            }
        };
    }
    event!(OrderConfirmed, "order.confirmed.v1", Option<Personal<String>>, u64);

    #[derive(Debug, Snapshot)]
    pub struct Line {
        pub phone: Personal<String>,
        pub part: Option<Box<Line>>,
    }
}

fn main() {
    let line = domain::Line { phone: factum::Personal::new(String::new()), part: None };
    let _ = domain::OrderConfirmed { order_id: 1, email: None, serials: vec![1], line };
}
