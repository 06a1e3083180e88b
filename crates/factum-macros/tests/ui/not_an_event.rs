extern crate factum_event as factum;


pub struct OrderConfirmed {
    pub order_id: u32,
}

fn main() {
    let _ = factum::Registry::new().with::<OrderConfirmed>();
}
