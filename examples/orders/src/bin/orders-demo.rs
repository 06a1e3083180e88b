//! The demo of the example: see `orders::demo`.

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use clap::Parser as _;
use orders::demo::progress::say;
use orders::demo::{Options, Outcome, run};
use tokio::signal::unix::{Signal, SignalKind, signal};

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    if let Err(text) = options.check() {
        say(&format!("error: {text}"));
        return ExitCode::from(2);
    }
    let (mut interrupt, mut terminate) = match (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) {
        (Ok(interrupt), Ok(terminate)) => (interrupt, terminate),
        (Err(error), _) | (_, Err(error)) => {
            say(&format!("error: signals can't be watched: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let code = Arc::new(AtomicU8::new(0));
    let told = code.clone();
    let interrupted = async move {
        told.store(
            either(&mut interrupt, &mut terminate).await,
            Ordering::Relaxed,
        );
        // A second signal doesn't wait for the tidying up.
        tokio::spawn(async move {
            let code = either(&mut interrupt, &mut terminate).await;
            std::process::exit(code.into());
        });
    };
    match run(&options, interrupted).await {
        Ok(Outcome::Done(report)) => {
            let mut text = report.to_string();
            if options.json {
                text = format!("{text}\n{}", report.json());
            }
            // As with `say`: whoever has stopped listening has the exit code.
            let _ = writeln!(std::io::stdout(), "{text}");
            if report.anomalies.is_empty() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Ok(Outcome::Interrupted) => {
            say("interrupted; nothing is left behind");
            ExitCode::from(code.load(Ordering::Relaxed))
        }
        Err(error) => {
            say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Waits for either signal; the exit code that is usual for it.
async fn either(interrupt: &mut Signal, terminate: &mut Signal) -> u8 {
    tokio::select! {
        _ = interrupt.recv() => 130,
        _ = terminate.recv() => 143,
    }
}
