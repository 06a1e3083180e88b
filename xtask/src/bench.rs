//! `cargo xtask bench`

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::compile::{self, OURS, Profile};
use crate::prerequisites::{self, FOR_KAFKA, FOR_POSTGRES, TO_BUILD};
use crate::screen::Screen;
use crate::workspace::root;
use crate::{Verdict, hand_over};

/// Measure Factum beside raw loops of the same work, on a real PostgreSQL (fsync on) and a real Kafka
///
/// Rounds in which both take turns, each contender in a process of its own, each followed by a check that
/// every event had exactly one effect. Some 9 minutes on 2 cores; the servers and their
/// data are gone in the end. A complete run writes docs/bench.json, and from that file alone the table in
/// docs/performance.md and the picture docs/bench.svg. Needs Linux.
#[derive(Args)]
#[command(after_help = "\
Measurements (--only):
  per-event           a handler that is called for each event
  batch               a handler that is called for each batch, beside set-based SQL by hand
  relay               outbox to Kafka
  beside-parked       events of keys that don't fail, while 5 % of the keys are parked, beside the same service where
                      none is
  publish-to-effect   the time from a publish to its effect, at 1,000 events a second
  keyed               a handler that waits 50 ms, 32 at once on 3 partitions, beside the 640 events a second of the ideal

Ends with a JSON array on one line with --json, one object each: name, events_per_second, beside (the raw
loop), ratio, cpu_us, rss_mib, and more; per event, medians of the rounds.
Exit codes: 0 measured and exact, 1 inexact or failed (with --check also: below a goal), 2 usage,
130 interrupted.

Example: cargo xtask bench --only batch --rounds 3 --json")]
pub(crate) struct Bench {
    /// Only this measurement
    #[arg(long, value_name = "NAME", value_parser = ["per-event", "batch", "relay", "beside-parked", "publish-to-effect", "keyed"])]
    only: Option<String>,
    /// Rounds of each [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Events of a round [default: so many that a round takes some seconds]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1_000..=1_000_000))]
    events: Option<u64>,
    /// Write the report there, and leave the documentation as it is
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Fail below the goals
    #[arg(long)]
    check: bool,
    /// Measure nothing: make the table and the picture of the documentation from docs/bench.json anew
    #[arg(long, conflicts_with_all = ["only", "rounds", "events", "out", "check"])]
    render: bool,
}

impl Bench {
    pub(crate) fn run(&self, screen: &Screen) -> Result<Verdict> {
        let needs: &[&[_]] = if self.render {
            &[TO_BUILD]
        } else {
            &[TO_BUILD, FOR_POSTGRES, FOR_KAFKA]
        };
        prerequisites::ensure(screen, needs)?;
        let package = "factum-bench";
        let program = compile::program(screen, OURS, package, package, Profile::Release)?;

        let mut command = Command::new(program);
        command.args(self.arguments(&root().join("docs")));
        if screen.wants_json() {
            command.arg("--json");
        }
        hand_over(&mut command, "the bench")
    }

    fn arguments(&self, docs: &Path) -> Vec<String> {
        let mut arguments = vec!["--docs".to_owned(), docs.display().to_string()];
        let valued = [
            ("--only", self.only.clone()),
            ("--rounds", self.rounds.map(|rounds| rounds.to_string())),
            ("--events", self.events.map(|events| events.to_string())),
            (
                "--out",
                self.out.as_ref().map(|out| out.display().to_string()),
            ),
        ];
        for (name, value) in valued {
            if let Some(value) = value {
                arguments.extend([name.to_owned(), value]);
            }
        }
        for (name, is_set) in [("--check", self.check), ("--render", self.render)] {
            if is_set {
                arguments.push(name.to_owned());
            }
        }
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_handed_on() {
        let bench = Bench {
            only: Some("batch".to_owned()),
            rounds: Some(3),
            events: None,
            out: Some(PathBuf::from("x.json")),
            check: true,
            render: false,
        };
        assert_eq!(
            bench.arguments(Path::new("docs")).join(" "),
            "--docs docs --only batch --rounds 3 --out x.json --check"
        );
    }
}
