//! The demo: the services are fed with duplicates and poison, killed in mid-flight, and checked.
//!
//! - `plan`: what a seed decides.
//! - `servers`, `services`: what runs.
//! - `injection`: what is put into the topics besides.
//! - `run`: the run itself.
//! - `facts`, `observe`, `check`: what is true afterwards, and what of it is wrong.
//! - `report`, `progress`: what is said.

pub mod check;
pub mod facts;
pub mod injection;
pub mod observe;
pub mod options;
pub mod plan;
pub mod progress;
pub mod report;
pub mod run;
pub mod servers;
pub mod services;

use anyhow::Result;

pub use options::Options;
pub use report::Report;

use servers::Servers;
use std::future::Future;

/// How a demo ended.
#[derive(Debug)]
pub enum Outcome {
    /// It ran to its end.
    Done(Report),
    /// It was interrupted, and has cleaned up.
    Interrupted,
}

/// Runs the demo until its end or until `interrupted` is ready, and leaves nothing behind.
///
/// # Errors
///
/// The demo can't go on: a server or a program is missing. What the services do wrong is in the
/// report.
pub async fn run(options: &Options, interrupted: impl Future<Output = ()>) -> Result<Outcome> {
    let mut interrupted = std::pin::pin!(interrupted);
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let servers = tokio::select! {
        servers = Servers::start(options) => servers?,
        () = &mut interrupted => {
            factum_testing::tool::interrupt();
            return Ok(Outcome::Interrupted);
        }
    };
    let outcome = tokio::select! {
        report = run::run(options, seed, &servers) => report.map(Outcome::Done),
        // The services end with the future that runs them.
        () = &mut interrupted => Ok(Outcome::Interrupted),
    };
    let left = servers.clean_up(options.keep).await;
    let outcome = outcome?;
    if let Some(left) = left? {
        progress::say(&left);
    }
    Ok(outcome)
}
