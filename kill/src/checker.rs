//! Asking the checker, a program that shares no code with what it judges.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use serde_json::Value;

/// What it found.
#[derive(Debug)]
pub struct Verdict {
    /// `kind: text` each.
    pub anomalies: Vec<String>,
    /// What it counted.
    pub counts: Value,
}

/// What it prints.
#[derive(Deserialize)]
struct Printed {
    anomalies: Vec<Anomaly>,
    counts: Value,
}

#[derive(Deserialize)]
struct Anomaly {
    kind: String,
    text: String,
}

/// Runs the program on a history; `phase` is `running` or `ended`.
///
/// # Errors
///
/// It came to no verdict.
pub async fn ask(
    program: &Path,
    history: &Path,
    phase: &str,
    database_url: &str,
    brokers: &str,
) -> Result<Verdict> {
    let output = tokio::process::Command::new(program)
        .arg("--history")
        .arg(history)
        .args(["--phase", phase, "--json"])
        // By environment: everyone on the machine may read a program's arguments.
        .env("DATABASE_URL", database_url)
        .env("KAFKA_BROKERS", brokers)
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("running {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    let printed: Option<Printed> = serde_json::from_str(last).ok();
    let (Some(printed), Some(0 | 1)) = (printed, output.status.code()) else {
        bail!(
            "the checker ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    };
    let found = printed.anomalies.into_iter();
    Ok(Verdict {
        anomalies: found
            .map(|anomaly| format!("{}: {}", anomaly.kind, anomaly.text))
            .collect(),
        counts: printed.counts,
    })
}
