extern crate factum_event as factum;

use factum_macros::Snapshot;

#[derive(Snapshot)]
#[snapshot(aggregate_id = "yes", validate = check)]
pub struct OrderId(#[snapshot(length(max = 4))] String);

#[derive(Snapshot)]
pub struct Weight(f32);

#[derive(Snapshot)]
pub struct Either<T>(T);

#[derive(Snapshot)]
#[snapshot(aggregate_id)]
pub struct Settled(bool);

fn main() {}
