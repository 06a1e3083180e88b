//! `cargo xtask test`

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use factum_testing::postgres::MAJORS;
use factum_testing::tool;
use serde_json::{Value, json};

use crate::compile::EXAMPLES;
use crate::prerequisites::{
    self, FOR_EVERY_POSTGRES, FOR_KAFKA, FOR_NODE, FOR_POSTGRES, Prerequisite, TO_BUILD, TO_LINT,
};
use crate::programs::{self, Program, Report, test_result};
use crate::screen::{Screen, Word};
use crate::services::{self, BROKERS, DATABASE_URL, Running};
use crate::workspace::{Origin, cargo, root, stream, target_dir};
use crate::{Usage, Verdict, conformance, kill, node, soak, tidy};

/// Run every check and every test, on a private PostgreSQL and Apache Kafka
///
/// The servers are started once and stopped for sure. FACTUM_TEST_DATABASE_URL and
/// FACTUM_TEST_BROKERS name servers to use instead. What the machine lacks is named with the line
/// that installs it; as root on Debian it is installed.
#[derive(Args)]
#[command(after_help = "\
Steps: format, tidy, lint, docs, tests, examples, node, kill, soak, postgres-14 to postgres-18, conformance, licences.
Of the releases of PostgreSQL the oldest and the newest run by themselves, beside the one that is installed;
with --every-release all of them.
Ends with a table, the line `N passed, N failed` over all tests, and with --json
{\"passed\":N,\"failed\":N,\"steps\":[{\"step\":…,\"result\":…,\"seconds\":…}]} on one line.
Exit codes: 0 all holds, 1 a step failed, 2 usage, 130 interrupted.

Example: cargo xtask test --only tests --only postgres-18")]
pub(crate) struct Test {
    /// Run only this step; may be repeated
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
    /// Stop at the first step that fails, and begin no program of tests after one that fails
    #[arg(long)]
    fail_fast: bool,
    /// All releases of PostgreSQL, and not only the oldest and the newest
    #[arg(long)]
    every_release: bool,
    /// Programs of tests that run at a time, each on servers of its own; one, if the servers are given
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    at_once: u8,
}

const THREADS: &str = "RUST_TEST_THREADS";
/// Tests mostly wait for servers and for times to come: more run at once than two cores' worth.
const TESTS_AT_ONCE: &str = "4";
/// Releases of PostgreSQL that are tried at a time.
const RELEASES_AT_ONCE: usize = 2;
/// The tests are built with these words, for the step `tests` and for the releases of PostgreSQL alike: other
/// packages would choose other features, and build half the workspace anew.
const ALL_TESTS: &str = "test --workspace --all-features";

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
    Soak,
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
            Step::Soak,
        ];
        steps.extend(MAJORS.map(Step::Postgres));
        steps.extend([Step::Conformance, Step::Licences]);
        steps
    }

    /// A release of PostgreSQL between the oldest and the newest.
    fn is_between(self) -> bool {
        let ends = [MAJORS.first(), MAJORS.last()];
        matches!(self, Step::Postgres(major) if !ends.contains(&Some(&major)))
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
            Step::Soak => "soak".to_owned(),
            Step::Postgres(major) => format!("postgres-{major}"),
            Step::Conformance => "conformance".to_owned(),
            Step::Licences => "licences".to_owned(),
        }
    }

    fn release(self) -> Option<u32> {
        match self {
            Step::Postgres(major) => Some(major),
            _ => None,
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
            // It starts servers of its own, and stops them on the way.
            Step::Soak => vec![TO_BUILD, FOR_POSTGRES, FOR_KAFKA],
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
            fail_fast: self.fail_fast,
            servers: servers_of(self.at_once),
            tested_on: None,
            passed: 0,
            failed: 0,
        };
        let mut rows = Vec::new();
        let mut results: Vec<Value> = Vec::new();
        let mut all_hold = true;
        let mut rest = steps.as_slice();
        while !rest.is_empty() && (all_hold || !self.fail_fast) {
            let (now, later) = rest.split_at(together(rest));
            rest = later;
            let names: Vec<String> = now.iter().map(|step| step.name()).collect();
            screen.begin(&format!(
                "step {} of {}: {}",
                steps.len() - later.len(),
                steps.len(),
                names.join(", ")
            ));
            let ended = run.steps(now);
            if tool::is_interrupted() {
                // The table would show a failure that there is none.
                screen.clear();
                return Ok(Verdict::Fails);
            }
            for (name, (outcome, seconds)) in names.into_iter().zip(ended) {
                let (word, note) = match outcome {
                    Ok(Outcome::Ok) => (Word::Ok, String::new()),
                    Ok(Outcome::Failed) => (Word::Failed, String::new()),
                    Ok(Outcome::Skipped(why)) => (Word::Skipped, why),
                    Err(failure) => {
                        screen.error(&failure);
                        (Word::Failed, String::new())
                    }
                };
                all_hold &= word != Word::Failed;
                results.push(json!({
                    "step": name, "result": word.text(), "seconds": (seconds * 10.0).round() / 10.0,
                }));
                rows.push((
                    vec![name, word.text().to_owned(), format!("{seconds:.1}"), note],
                    Some(word),
                ));
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
            .filter(|step| {
                let of_itself = self.every_release || !step.is_between();
                (self.only.is_empty() && of_itself) || self.only.contains(&step.name())
            })
            .collect())
    }
}

/// How many of the first steps run together: all releases of PostgreSQL that follow each other.
fn together(steps: &[Step]) -> usize {
    let is_release = |step: &&Step| matches!(step, Step::Postgres(_));
    steps.iter().take_while(is_release).count().max(1)
}

/// Servers for so many programs at a time. Given ones are one set for all, and names of topics and consumers are
/// unique within a program only.
fn servers_of(at_once: u8) -> Vec<Running> {
    let is_given = [DATABASE_URL, BROKERS]
        .iter()
        .any(|name| std::env::var_os(name).is_some());
    let sets = if is_given { 1 } else { at_once };
    (0..sets).map(|_| Running::default()).collect()
}

struct Run<'a> {
    screen: &'a Screen,
    target_dir: PathBuf,
    fail_fast: bool,
    /// A set for each program that runs at a time. The first is also that of other steps.
    servers: Vec<Running>,
    /// The release of PostgreSQL that the step `tests` ran on.
    tested_on: Option<u32>,
    passed: u64,
    failed: u64,
}

impl Run<'_> {
    /// What each of the steps came to, and its seconds.
    fn steps(&mut self, steps: &[Step]) -> Vec<(Result<Outcome>, f64)> {
        let start = Instant::now();
        if let [step] = steps
            && !matches!(step, Step::Postgres(_))
        {
            return vec![(self.step(*step), start.elapsed().as_secs_f64())];
        }
        let releases: Vec<u32> = steps.iter().filter_map(|step| step.release()).collect();
        self.on_releases(&releases).unwrap_or_else(|failure| {
            let failed = releases.iter().map(|_| (Ok(Outcome::Failed), 0.0));
            self.screen.error(&failure);
            failed.collect()
        })
    }

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
            Step::Tests => {
                let outcome = self.tests(ALL_TESTS);
                self.tested_on = self.servers[0].private_postgres();
                outcome
            }
            Step::Examples => self.tests(&format!("test --workspace --manifest-path {EXAMPLES}")),
            Step::Node => self.node(),
            Step::Kill => self.kill(),
            Step::Soak => self.soak(),
            Step::Postgres(_) => bail!("releases of PostgreSQL run together"),
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

    /// The tests that cargo builds with these words: the programs several at a time, each with both servers, then
    /// the examples in the documentation.
    fn tests(&mut self, words: &str) -> Result<Outcome> {
        let mut programs = self.programs(words)?;
        programs::sort(&mut programs);
        let libraries = programs::libraries()?;
        let target_dir = self.target_dir.clone();
        services::start_all(self.screen, &mut self.servers)?;
        let jobs = programs
            .into_iter()
            .map(|program| (program.name.clone(), program));
        let screen = self.screen;
        let work = |name: &str, program: Program, servers: &mut Running| {
            let mut command = program.command(&target_dir, &libraries);
            many_at_once(&mut command);
            command
                .env(DATABASE_URL, servers.database_url(screen)?)
                .env(BROKERS, servers.brokers(screen)?);
            Report::of(name, &mut command)
        };
        let servers = &mut self.servers;
        let mut reports = programs::run(
            screen,
            jobs.collect(),
            servers,
            self.fail_fast,
            work,
            |report| report.print(screen),
        )?;
        let has_failed = reports.iter().any(|report| report.failed > 0);
        if !(tool::is_interrupted() || self.fail_fast && has_failed) {
            // A page of several crates, compiled and run at once.
            let mut command = self.cargo(&format!("{words} --doc --no-fail-fast"));
            let report = Report::of("documentation", &mut command)?;
            report.print(self.screen);
            reports.push(report);
        }
        programs::print_failures(self.screen, &reports);
        Ok(self.add(&reports))
    }

    /// Adds to the sums.
    fn add(&mut self, reports: &[Report]) -> Outcome {
        let passed: u64 = reports.iter().map(|report| report.passed).sum();
        let failed: u64 = reports.iter().map(|report| report.failed).sum();
        self.passed += passed;
        self.failed += failed;
        outcome(failed == 0 && passed > 0)
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
            .env(DATABASE_URL, self.servers[0].database_url(self.screen)?);
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

    /// A soak that takes a few minutes. It counts as one test.
    fn soak(&mut self) -> Result<Outcome> {
        let mut command = soak::ordinary(self.screen)?;
        let mut is_exact = None;
        stream(&mut command, |from, line| match soak::is_exact(line) {
            Some(told) => is_exact = Some(told),
            None => self.print(from, line),
        })?;
        // How long recoveries take depends on the machine: here they are told, and `cargo xtask soak` judges them.
        let holds = is_exact == Some(true);
        self.passed += u64::from(holds);
        self.failed += u64::from(!holds);
        Ok(outcome(holds))
    }

    /// The tests of factum-postgres on these releases, without that which the step `tests` has tried.
    fn on_releases(&mut self, releases: &[u32]) -> Result<Vec<(Result<Outcome>, f64)>> {
        let mut programs = self.programs(ALL_TESTS)?;
        programs.retain(|program| program.is_of("factum-postgres"));
        ensure!(!programs.is_empty(), "factum-postgres has no tests");
        let libraries = programs::libraries()?;
        let tested_on = self.tested_on;
        let target_dir = self.target_dir.clone();
        let name = |major: u32| format!("factum-postgres on PostgreSQL {major}");
        let untried = releases.iter().filter(|major| Some(**major) != tested_on);
        let jobs = untried.map(|&major| (name(major), major));
        let work = |name: &str, major: u32, (): &mut ()| {
            let commands = programs
                .iter()
                .map(|program| program.command(&target_dir, &libraries));
            on_release(name, major, commands)
        };
        let workers = &mut [(); RELEASES_AT_ONCE];
        let reports = programs::run(
            self.screen,
            jobs.collect(),
            workers,
            self.fail_fast,
            work,
            |report| report.print(self.screen),
        )?;
        programs::print_failures(self.screen, &reports);
        let ended = releases.iter().map(|&major| {
            let name = name(major);
            match reports.iter().find(|report| report.name == name) {
                Some(report) => {
                    let outcome = self.add(std::slice::from_ref(report));
                    (Ok(outcome), report.seconds)
                }
                None if Some(major) == tested_on => {
                    let why = "the step `tests` ran on it".to_owned();
                    (Ok(Outcome::Skipped(why)), 0.0)
                }
                None => (Ok(Outcome::Skipped("another failed".to_owned())), 0.0),
            }
        });
        Ok(ended.collect())
    }

    /// The test programs that cargo builds with these words.
    fn programs(&self, words: &str) -> Result<Vec<Program>> {
        let mut command = self.cargo(&format!(
            "{words} --no-run --message-format json-render-diagnostics"
        ));
        let mut programs = Vec::new();
        let status = stream(&mut command, |from, line| match from {
            Origin::Stdout => programs.extend(Program::told(line)),
            // Their names come again when they run.
            Origin::Stderr if line.trim_start().starts_with("Executable ") => {}
            Origin::Stderr => self.screen.note(line),
        })?;
        ensure!(status.success(), "the tests don't build");
        Ok(programs)
    }

    /// Runs tests, shows them at once, and adds to the sums.
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

/// The tests of factum-postgres on a release, on a server of their own.
fn on_release(name: &str, major: u32, commands: impl Iterator<Item = Command>) -> Result<Report> {
    let server = services::postgres(Some(major))?;
    let mut sum: Option<Report> = None;
    for mut command in commands {
        command.env(DATABASE_URL, server.url());
        many_at_once(&mut command);
        // Minutes of locks and bulk that are the same in every release: the step `tests` tries them.
        for heavy in ["_orders::", "retention::case_", "counts_are_exact"] {
            command.args(["--skip", heavy]);
        }
        let report = Report::of(name, &mut command)?;
        match &mut sum {
            None => sum = Some(report),
            Some(sum) => sum.followed_by(report),
        }
    }
    sum.context("factum-postgres has no tests")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_step_is_refused_with_the_known_ones() {
        let wrong = Test {
            only: vec!["postgres-13".to_owned()],
            every_release: false,
            fail_fast: false,
            at_once: 1,
        };
        let refused = wrong.steps().unwrap_err().to_string();
        assert!(refused.contains("no step `postgres-13`") && refused.contains("postgres-18"));
        let right = Test {
            only: vec!["tidy".to_owned(), "format".to_owned()],
            every_release: false,
            fail_fast: false,
            at_once: 1,
        };
        assert_eq!(right.steps().unwrap(), [Step::Format, Step::Tidy]);
        let releases = |every_release| {
            let all = Test {
                only: Vec::new(),
                every_release,
                fail_fast: false,
                at_once: 1,
            };
            let steps = all.steps().unwrap();
            let of = |step: &Step| step.release();
            steps.iter().filter_map(of).collect::<Vec<u32>>()
        };
        assert_eq!(releases(false), [14, 18]);
        assert_eq!(releases(true), MAJORS);
    }

    #[test]
    fn releases_of_postgresql_run_together_and_nothing_else() {
        let all = Step::all();
        let mut groups = Vec::new();
        let mut rest = all.as_slice();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(together(rest));
            groups.push(now);
            rest = later;
        }
        assert_eq!(groups.concat(), all);
        let many: Vec<&&[Step]> = groups.iter().filter(|group| group.len() > 1).collect();
        assert_eq!(many, [&MAJORS.map(Step::Postgres).as_slice()]);
    }
}
