//! `cargo xtask test`

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use factum_testing::postgres::MAJORS;
use factum_testing::tool;
use serde_json::{Value, json};

use crate::compile::EXAMPLES;
use crate::prerequisites::{
    self, FOR_EVERY_POSTGRES, FOR_KAFKA, FOR_NODE, FOR_POSTGRES, Prerequisite, TO_BUILD, TO_LINT,
};
use crate::screen::{Screen, Word};
use crate::services::{self, BROKERS, DATABASE_URL, Running};
use crate::workspace::{Origin, cargo, root, stream, target_dir};
use crate::{Usage, Verdict, conformance, kill, node, tidy};

/// Run every check and every test, on a private PostgreSQL and Apache Kafka
///
/// The servers are started once and stopped for sure. FACTUM_TEST_DATABASE_URL and
/// FACTUM_TEST_BROKERS name servers to use instead. What the machine lacks is named with the line
/// that installs it; as root on Debian it is installed.
#[derive(Args)]
#[command(after_help = "\
Steps: format, tidy, lint, docs, tests, examples, node, kill, postgres-14 to postgres-18, conformance, licences.
Ends with a table, the line `N passed, N failed` over all tests, and with --json
{\"passed\":N,\"failed\":N,\"steps\":[{\"step\":…,\"result\":…,\"seconds\":…}]} on one line.
Exit codes: 0 all holds, 1 a step failed, 2 usage, 130 interrupted.

Example: cargo xtask test --only tests --only postgres-18")]
pub(crate) struct Test {
    /// Run only this step; may be repeated
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
    /// Stop at the first step that fails
    #[arg(long)]
    fail_fast: bool,
}

const THREADS: &str = "RUST_TEST_THREADS";
/// Tests mostly wait for servers and for times to come: more run at once than two cores' worth.
const TESTS_AT_ONCE: &str = "4";

fn many_at_once(command: &mut Command) {
    if std::env::var_os(THREADS).is_none() {
        command.env(THREADS, TESTS_AT_ONCE);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Format,
    Lint,
    Docs,
    Tidy,
    Tests,
    Examples,
    Node,
    Kill,
    Postgres(u32),
    Conformance,
    Licences,
}

impl Step {
    /// In the order in which they run: what fails soon, first.
    fn all() -> Vec<Step> {
        let mut steps = vec![
            Step::Format,
            Step::Tidy,
            Step::Lint,
            Step::Docs,
            Step::Tests,
            Step::Examples,
            Step::Node,
            Step::Kill,
        ];
        steps.extend(MAJORS.map(Step::Postgres));
        steps.extend([Step::Conformance, Step::Licences]);
        steps
    }

    fn name(self) -> String {
        match self {
            Step::Format => "format".to_owned(),
            Step::Lint => "lint".to_owned(),
            Step::Docs => "docs".to_owned(),
            Step::Tidy => "tidy".to_owned(),
            Step::Tests => "tests".to_owned(),
            Step::Examples => "examples".to_owned(),
            Step::Node => "node".to_owned(),
            Step::Kill => "kill".to_owned(),
            Step::Postgres(major) => format!("postgres-{major}"),
            Step::Conformance => "conformance".to_owned(),
            Step::Licences => "licences".to_owned(),
        }
    }

    fn prerequisites(self) -> Vec<&'static [&'static Prerequisite]> {
        let given = |name: &str| std::env::var_os(name).is_some();
        match self {
            Step::Format => vec![TO_LINT],
            Step::Lint => vec![TO_LINT, TO_BUILD],
            Step::Tidy | Step::Licences => vec![],
            Step::Docs | Step::Conformance => vec![TO_BUILD],
            Step::Tests | Step::Examples => {
                let mut wanted = vec![TO_BUILD];
                if !given(DATABASE_URL) {
                    wanted.push(FOR_POSTGRES);
                }
                if !given(BROKERS) {
                    wanted.push(FOR_KAFKA);
                }
                wanted
            }
            // It starts servers of its own: its topics have the names that the contracts say.
            Step::Node => vec![TO_BUILD, FOR_POSTGRES, FOR_KAFKA, FOR_NODE],
            Step::Kill if given(DATABASE_URL) => vec![TO_BUILD],
            Step::Kill => vec![TO_BUILD, FOR_POSTGRES],
            Step::Postgres(_) => vec![TO_BUILD, FOR_EVERY_POSTGRES],
        }
    }
}

/// What a step came to.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Ok,
    Failed,
    Skipped(String),
}

impl Test {
    pub(crate) fn run(&self, screen: &Screen) -> Result<Verdict> {
        let steps = self.steps()?;
        let mut wanted: Vec<&Prerequisite> = Vec::new();
        for group in steps.iter().flat_map(|step| step.prerequisites()) {
            for item in group {
                if !wanted.iter().any(|known| std::ptr::eq(*known, *item)) {
                    wanted.push(item);
                }
            }
        }
        prerequisites::ensure(screen, &[&wanted])?;

        let mut run = Run {
            screen,
            target_dir: target_dir()?,
            servers: Running::default(),
            passed: 0,
            failed: 0,
        };
        let mut rows = Vec::new();
        let mut results: Vec<Value> = Vec::new();
        let mut all_hold = true;
        for (place, step) in steps.iter().enumerate() {
            let name = step.name();
            screen.begin(&format!("step {} of {}: {name}", place + 1, steps.len()));
            let start = Instant::now();
            let outcome = run.step(*step);
            if tool::is_interrupted() {
                // The table would show a failure that there is none.
                screen.clear();
                return Ok(Verdict::Fails);
            }
            let (word, note) = match outcome {
                Ok(Outcome::Ok) => (Word::Ok, String::new()),
                Ok(Outcome::Failed) => (Word::Failed, String::new()),
                Ok(Outcome::Skipped(why)) => (Word::Skipped, why),
                Err(failure) => {
                    screen.error(&failure);
                    (Word::Failed, String::new())
                }
            };
            let seconds = start.elapsed().as_secs_f64();
            results.push(json!({
                "step": name, "result": word.text(), "seconds": (seconds * 10.0).round() / 10.0,
            }));
            rows.push((
                vec![name, word.text().to_owned(), format!("{seconds:.1}"), note],
                Some(word),
            ));
            if word == Word::Failed {
                all_hold = false;
                if self.fail_fast {
                    break;
                }
            }
        }
        screen.clear();
        let (passed, failed) = (run.passed, run.failed);
        // The servers end before the last word.
        drop(run);
        screen.table(&["STEP", "RESULT", "SECONDS", "NOTE"], &rows);
        screen.data(format_args!("{passed} passed, {failed} failed"));
        screen.end(&json!({ "passed": passed, "failed": failed, "steps": results }));
        Ok(Verdict::of(all_hold && failed == 0))
    }

    fn steps(&self) -> Result<Vec<Step>, Usage> {
        let all = Step::all();
        for name in &self.only {
            if !all.iter().any(|step| step.name() == *name) {
                let names: Vec<String> = all.iter().map(|step| step.name()).collect();
                return Err(Usage(format!(
                    "there is no step `{name}`; the steps are {}",
                    names.join(", ")
                )));
            }
        }
        Ok(all
            .into_iter()
            .filter(|step| self.only.is_empty() || self.only.contains(&step.name()))
            .collect())
    }
}

struct Run<'a> {
    screen: &'a Screen,
    target_dir: PathBuf,
    servers: Running,
    passed: u64,
    failed: u64,
}

impl Run<'_> {
    fn step(&mut self, step: Step) -> Result<Outcome> {
        match step {
            Step::Format => {
                let colour = self.screen.colour();
                Ok(outcome(self.all_succeed(&[
                    format!("fmt --all --check -- --color {colour}"),
                    format!("fmt --all --check --manifest-path {EXAMPLES} -- --color {colour}"),
                ])?))
            }
            Step::Lint => {
                const ALL: &str = "--workspace --all-targets --all-features --keep-going";
                Ok(outcome(self.all_succeed(&[
                    format!("clippy {ALL} -- -D warnings"),
                    // They aren't run by default, and so not among all targets.
                    "clippy --workspace --all-features --test node --test outbox_node -- -D warnings"
                        .to_owned(),
                    format!("clippy {ALL} --manifest-path {EXAMPLES} -- -D warnings"),
                ])?))
            }
            Step::Docs => {
                let mut command =
                    self.cargo("doc --workspace --all-features --no-deps --keep-going");
                command.env("RUSTDOCFLAGS", "-D warnings");
                Ok(outcome(self.succeeds(&mut command)?))
            }
            Step::Tidy => Ok(outcome(tidy::check(self.screen)?.is_empty())),
            Step::Tests => self.tests("test --workspace --all-features --no-fail-fast"),
            Step::Examples => self.tests(&format!(
                "test --workspace --no-fail-fast --manifest-path {EXAMPLES}"
            )),
            Step::Node => self.node(),
            Step::Kill => self.kill(),
            Step::Postgres(major) => self.on_postgres(major),
            Step::Conformance => Ok(outcome(conformance::check(self.screen, &[])?.all_right())),
            Step::Licences => self.licences(),
        }
    }

    /// Cargo with these words, none of which holds a blank.
    fn cargo(&self, words: &str) -> Command {
        let mut command = Command::new(cargo());
        command
            .args(words.split_whitespace())
            .current_dir(root())
            // One for both workspaces, so that librdkafka is built once.
            .env("CARGO_TARGET_DIR", &self.target_dir)
            .env("CARGO_TERM_COLOR", self.screen.colour());
        command
    }

    fn all_succeed(&self, commands: &[String]) -> Result<bool> {
        let mut all = true;
        for words in commands {
            // Each is run, so that one round shows everything.
            all &= self.succeeds(&mut self.cargo(words))?;
        }
        Ok(all)
    }

    fn succeeds(&self, command: &mut Command) -> Result<bool> {
        let status = stream(command, |from, line| self.print(from, line))?;
        Ok(status.success())
    }

    fn print(&self, from: Origin, line: &str) {
        match from {
            Origin::Stdout => self.screen.data(line),
            Origin::Stderr => self.screen.note(line),
        }
    }

    /// Tests under cargo, with both servers.
    fn tests(&mut self, words: &str) -> Result<Outcome> {
        let mut command = self.cargo(words);
        many_at_once(&mut command);
        command
            .env(DATABASE_URL, self.servers.database_url(self.screen)?)
            .env(BROKERS, self.servers.brokers(self.screen)?);
        self.count(&mut command)
    }

    /// The exports for other languages, with the tools of those.
    fn node(&mut self) -> Result<Outcome> {
        let mut all = true;
        for project in node::PROJECTS {
            node::install(project, |from, line| self.print(from, line))?;
            for mut command in node::checks(project) {
                all &= self.succeeds(&mut command)?;
            }
            let mut tests = node::Tests::default();
            let status = stream(&mut node::unit_tests(project), |from, line| {
                self.print(from, line);
                tests.read(line);
            })?;
            self.passed += tests.passed;
            self.failed += tests.failed;
            all &= status.success() && tests.failed == 0 && tests.passed > 0;
        }
        for words in [
            format!("test --workspace --test billing_node --manifest-path {EXAMPLES}"),
            "test --workspace --all-features --test node --test outbox_node".to_owned(),
        ] {
            let mut command = self.cargo(&words);
            command.env_remove(DATABASE_URL).env_remove(BROKERS);
            all &= self.count(&mut command)? == Outcome::Ok;
        }
        Ok(outcome(all))
    }

    /// A part of the kill matrix, on the embedded broker. Each cell counts as a test.
    fn kill(&mut self) -> Result<Outcome> {
        let mut command = Command::new(kill::build(self.screen)?);
        command
            .args(["--broker", "embedded", "--subset", "--json"])
            .env(DATABASE_URL, self.servers.database_url(self.screen)?);
        let mut sums = None;
        let status = stream(&mut command, |from, line| match kill::sums(line) {
            Some(told) => sums = Some(told),
            None => self.print(from, line),
        })?;
        let (cells, failed) = sums.context("the kill matrix told no result")?;
        self.passed += cells - failed;
        self.failed += failed;
        Ok(outcome(status.success() && failed == 0 && cells > 0))
    }

    /// The tests of factum-postgres on one release. The programs that cargo has built for the step
    /// `tests` are run as they are: `cargo test --package` would choose other features and build
    /// half the workspace anew.
    fn on_postgres(&mut self, major: u32) -> Result<Outcome> {
        let programs = self.test_programs("factum-postgres")?;
        ensure!(!programs.is_empty(), "factum-postgres has no tests");
        let server = services::postgres(Some(major))?;
        self.screen
            .note(format_args!("PostgreSQL {major} on port {}", server.port()));
        let crate_dir = root().join("crates/factum-postgres");
        let mut all = Outcome::Ok;
        for program in programs {
            let mut command = Command::new(program);
            command
                .current_dir(&crate_dir)
                .env("CARGO_MANIFEST_DIR", &crate_dir)
                .env(DATABASE_URL, server.url());
            many_at_once(&mut command);
            if Some(&major) != MAJORS.last() {
                // Twenty seconds of locks that are the same in every release: the newest and the step `tests` try them.
                command.args(["--skip", "parking_orders"]);
            }
            if self.count(&mut command)? == Outcome::Failed {
                all = Outcome::Failed;
            }
        }
        Ok(all)
    }

    /// The test programs of a package, built in the same manner as for the step `tests`.
    fn test_programs(&self, package: &str) -> Result<Vec<PathBuf>> {
        let mut command = self.cargo(
            "test --workspace --all-features --no-run --message-format json-render-diagnostics",
        );
        let mut programs = Vec::new();
        let manifest = root().join("crates").join(package).join("Cargo.toml");
        let status = stream(&mut command, |from, line| match from {
            Origin::Stdout => programs.extend(test_program(line, &manifest.to_string_lossy())),
            Origin::Stderr => self.screen.note(line),
        })?;
        ensure!(status.success(), "the tests don't build");
        Ok(programs)
    }

    /// Runs tests and adds to the sums.
    fn count(&mut self, command: &mut Command) -> Result<Outcome> {
        let (mut passed, mut failed) = (0, 0);
        let status = stream(command, |from, line| {
            self.print(from, line);
            if let Some((ok, bad)) = test_result(line) {
                passed += ok;
                failed += bad;
            }
        })?;
        let holds = status.success() && failed == 0 && passed > 0;
        if !holds && failed == 0 {
            // A test that brought its program down, or one that doesn't build, is a failure too,
            // though no line counts it.
            self.screen.note(format_args!(
                "{passed} tests passed, and the run ended with {status}"
            ));
            failed = 1;
        }
        self.passed += passed;
        self.failed += failed;
        Ok(outcome(holds))
    }

    fn licences(&self) -> Result<Outcome> {
        if !stream(&mut self.cargo("deny --version"), |_, _| {})?.success() {
            return Ok(Outcome::Skipped(
                "not installed; run: cargo install --locked cargo-deny".to_owned(),
            ));
        }
        const CHECK: &str = "check --hide-inclusion-graph bans licenses sources";
        Ok(outcome(self.all_succeed(&[
            format!("deny {CHECK}"),
            format!("deny --manifest-path {EXAMPLES} --config deny.toml {CHECK}"),
        ])?))
    }
}

fn outcome(holds: bool) -> Outcome {
    if holds { Outcome::Ok } else { Outcome::Failed }
}

/// The test program in a line of cargo's messages, if it belongs to this manifest.
fn test_program(line: &str, manifest: &str) -> Option<PathBuf> {
    let told: Value = serde_json::from_str(line).ok()?;
    let is_test = told["reason"] == "compiler-artifact" && told["profile"]["test"] == true;
    if !is_test || told["manifest_path"] != manifest {
        return None;
    }
    told["executable"].as_str().map(PathBuf::from)
}

/// `test result: ok. 8 passed; 1 failed; …` is (8, 1).
pub(crate) fn test_result(line: &str) -> Option<(u64, u64)> {
    let counts = without_colour(line);
    let counts = counts.strip_prefix("test result: ")?;
    let number = |what: &str| -> Option<u64> {
        let end = counts.find(what)?;
        counts[..end].trim_end().rsplit(' ').next()?.parse().ok()
    };
    Some((number("passed;")?, number("failed;")?))
}

fn without_colour(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find("\x1b[") {
        plain.push_str(&rest[..start]);
        let sequence = &rest[start + 2..];
        rest = sequence
            .find(|c: char| c.is_ascii_alphabetic())
            .map_or("", |end| &sequence[end + 1..]);
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_and_nothing_else_is() {
        let line = "test result: ok. 8 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.81s";
        assert_eq!(test_result(line), Some((8, 0)));
        let line =
            "test result: FAILED. 3 passed; 12 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(test_result(line), Some((3, 12)));
        let line = "test result: \x1b[31mFAILED\x1b[m. 3 passed; 1 failed; 0 ignored";
        assert_eq!(test_result(line), Some((3, 1)));
        for line in [
            "",
            "test result: ",
            "test result: ok",
            "  test result: ok. 8 passed; 0 failed;",
            "8 passed; 0 failed;",
        ] {
            assert_eq!(test_result(line), None, "{line}");
        }
    }

    #[test]
    fn only_test_programs_of_the_package_are_taken() {
        let line = |manifest: &str, test: bool| {
            json!({
                "reason": "compiler-artifact", "manifest_path": manifest,
                "profile": { "test": test }, "executable": "/t/debug/deps/outbox-1",
            })
            .to_string()
        };
        let found = test_program(
            &line("/w/crates/a/Cargo.toml", true),
            "/w/crates/a/Cargo.toml",
        );
        assert_eq!(found, Some(PathBuf::from("/t/debug/deps/outbox-1")));
        assert_eq!(
            test_program(
                &line("/w/crates/a/Cargo.toml", false),
                "/w/crates/a/Cargo.toml"
            ),
            None
        );
        assert_eq!(
            test_program(
                &line("/w/crates/b/Cargo.toml", true),
                "/w/crates/a/Cargo.toml"
            ),
            None
        );
        assert_eq!(test_program("not JSON", "/w/crates/a/Cargo.toml"), None);
    }

    #[test]
    fn an_unknown_step_is_refused_with_the_known_ones() {
        let wrong = Test {
            only: vec!["postgres-13".to_owned()],
            fail_fast: false,
        };
        let refused = wrong.steps().unwrap_err().to_string();
        assert!(refused.contains("no step `postgres-13`") && refused.contains("postgres-18"));
        let right = Test {
            only: vec!["tidy".to_owned(), "format".to_owned()],
            fail_fast: false,
        };
        assert_eq!(right.steps().unwrap(), [Step::Format, Step::Tidy]);
    }
}
