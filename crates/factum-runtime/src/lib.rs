//! The running side of Factum: service, consumer lanes, relay, configuration, shutdown.
