//! The kill matrix: a real service, in a process of its own, comes to harm at every point of an event's
//! path, and a separate program counts what was lost or doubled.
//!
//! | part | what it is |
//! |---|---|
//! | [`ledger`] | the service that comes to harm |
//! | [`cell`] | what can happen where |
//! | [`feed`] | what goes in |
//! | [`provider`] | the other system, which its calls go to |
//! | [`process`] | a service's process: frozen, thawed, killed |
//! | [`scenario`] | one cell, from its fresh database to the checker's verdict |
//! | [`matrix`] | all cells, side by side |
//! | [`checker`] | the program that judges |
//! | [`interrupt`] | Ctrl-C |
//! | [`soak`] | something else with the same means: long work while everything dies again and again |

pub mod cell;
pub mod checker;
pub mod feed;
pub mod interrupt;
pub mod ledger;
pub mod matrix;
pub mod process;
pub mod provider;
pub mod scenario;
pub mod soak;
