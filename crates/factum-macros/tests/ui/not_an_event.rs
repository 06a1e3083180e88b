extern crate factum_event as factum;


pub struct OrderConfirmed {
    pub order_id: u64,
}

fn main() {
    let _ = factum::Registry::new().with::<OrderConfirmed>();
}
