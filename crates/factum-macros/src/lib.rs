//! derive(Event) and derive(Snapshot) for Factum.
