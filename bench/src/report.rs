//! What was measured, as it stands in the file from which table and picture are made.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// A whole report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The day, in UTC.
    pub(crate) measured_on: String,
    pub(crate) machine: Machine,
    pub(crate) results: Vec<Entry>,
}

/// Where it was measured; read from the machine and the servers while they ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) processor: String,
    pub(crate) memory_gib: u64,
    pub(crate) kernel: String,
    pub(crate) postgresql: String,
    pub(crate) kafka: String,
    pub(crate) librdkafka: String,
}

/// One measurement: medians of all rounds. Costs are per event, `beside` is the raw loop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) events_per_second: f64,
    /// What the raw loop did, or `None` where there is none.
    pub(crate) beside: Option<f64>,
    /// `events_per_second / beside`.
    pub(crate) ratio: Option<f64>,
    /// The lowest ratio that the project accepts.
    pub(crate) goal: Option<f64>,
    pub(crate) cpu_us: f64,
    pub(crate) beside_cpu_us: Option<f64>,
    pub(crate) database_cpu_us: f64,
    pub(crate) beside_database_cpu_us: Option<f64>,
    pub(crate) rss_mib: f64,
    pub(crate) beside_rss_mib: Option<f64>,
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    /// The highest p99 that the project accepts.
    pub(crate) p99_goal_ms: Option<f64>,
    /// Events of one round.
    pub(crate) events: u64,
    /// Events per second of each round.
    pub(crate) rounds: Vec<f64>,
    /// The same of the raw loop.
    pub(crate) beside_rounds: Vec<f64>,
}

impl Entry {
    /// Whether the goal is reached; there may be none.
    pub(crate) fn reaches_its_goal(&self) -> bool {
        let fast = match (self.ratio, self.goal) {
            (Some(ratio), Some(goal)) => ratio >= goal,
            _ => true,
        };
        let soon = match (self.p99_ms, self.p99_goal_ms) {
            (Some(p99), Some(goal)) => p99 <= goal,
            _ => true,
        };
        fast && soon
    }

    /// What is asked of it, for people.
    pub(crate) fn goal_text(&self) -> String {
        match (self.goal, self.p99_goal_ms) {
            (Some(goal), _) => format!("ratio ≥ {goal}"),
            (None, Some(goal)) => format!("p99 ≤ {goal} ms"),
            (None, None) => String::new(),
        }
    }
}

impl Report {
    pub(crate) fn read(path: &Path) -> Result<Report> {
        let text =
            fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is no report", path.display()))
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    }
}

/// The version alone: a server's may name its packaging behind it.
pub(crate) fn bare_version(version: &str) -> &str {
    version.split_whitespace().next().unwrap_or(version)
}

/// Rounds to so many decimal places: what is beyond them is noise.
pub(crate) fn rounded(value: f64, places: i32) -> f64 {
    let factor = 10_f64.powi(places);
    (value * factor).round() / factor
}

/// A whole number with commas between thousands.
pub(crate) fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A report of two measurements, one of each kind.
    pub(crate) fn sample() -> Report {
        let batch = Entry {
            name: "batch".to_owned(),
            events_per_second: 45_000.0,
            beside: Some(50_000.0),
            ratio: Some(0.9),
            goal: Some(0.85),
            cpu_us: 15.5,
            beside_cpu_us: Some(13.0),
            database_cpu_us: 23.0,
            beside_database_cpu_us: Some(22.5),
            rss_mib: 90.0,
            beside_rss_mib: Some(80.0),
            p50_ms: None,
            p99_ms: None,
            p99_goal_ms: None,
            events: 100_000,
            rounds: vec![44_000.0, 45_000.0, 46_000.0],
            beside_rounds: vec![49_000.0, 50_000.0, 51_000.0],
        };
        let latency = Entry {
            name: "publish-to-effect".to_owned(),
            events_per_second: 1_000.0,
            beside: None,
            ratio: None,
            goal: None,
            beside_cpu_us: None,
            beside_database_cpu_us: None,
            beside_rss_mib: None,
            p50_ms: Some(12.34),
            p99_ms: Some(31.0),
            p99_goal_ms: Some(50.0),
            events: 20_000,
            rounds: vec![1_000.0],
            beside_rounds: Vec::new(),
            ..batch.clone()
        };
        Report {
            measured_on: "2026-12-01".to_owned(),
            machine: Machine {
                cores: 2,
                processor: "A <Processor>".to_owned(),
                memory_gib: 8,
                kernel: "6.1".to_owned(),
                postgresql: "15.1".to_owned(),
                kafka: "4.3.1".to_owned(),
                librdkafka: "2.12.1".to_owned(),
            },
            results: vec![batch, latency],
        }
    }

    #[test]
    fn a_goal_is_reached_at_the_goal() {
        let Report { results, .. } = sample();
        let [mut batch, mut latency] = results.try_into().unwrap();
        batch.ratio = Some(0.85);
        assert!(batch.reaches_its_goal());
        batch.ratio = Some(0.849);
        assert!(!batch.reaches_its_goal());
        latency.p99_ms = Some(50.0);
        assert!(latency.reaches_its_goal());
        latency.p99_ms = Some(50.1);
        assert!(!latency.reaches_its_goal());
    }

    #[test]
    fn a_report_survives_its_file() {
        let text = serde_json::to_string(&sample()).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), sample());
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!(thousands(0.0), "0");
        assert_eq!(thousands(999.4), "999");
        assert_eq!(thousands(1_000.0), "1,000");
        assert_eq!(thousands(1_234_567.0), "1,234,567");
        assert_eq!(rounded(1.2345, 2), 1.23);
        assert_eq!(bare_version("15.18 (Debian 15.18-0+deb12u1)"), "15.18");
    }
}
