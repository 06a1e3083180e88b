//! The event core of Factum: events, envelopes, ids, money, decoding and the failure policy, without IO.
