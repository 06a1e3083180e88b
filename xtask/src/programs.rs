//! Test programs that cargo has built, several at a time: most of a test is waiting for a server or for a time to come.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Instant;

use anyhow::{Context as _, Result};
use factum_testing::tool;
use serde_json::Value;

use crate::screen::Screen;
use crate::workspace::{Origin, cargo, stream};

/// Those that take longest, the longest first: what begins last should be short. One that is missing here costs time,
/// nothing else.
const LONGEST: [&str; 21] = [
    "factum-tests cluster",
    "factum-tests charges",
    "factum-tests gaps",
    "factum-tests concurrency",
    "factum-tests relays",
    "factum-tests outages",
    "factum-tests consumer",
    "factum-tests versions",
    "factum-postgres postgres",
    "factum-tests retry_topics",
    "factum-tests parking",
    "factum-tests replay",
    "factum-tests order_proof",
    "factum-tests calls",
    "factum-tests killed",
    "orders demo",
    "factum-macros derives",
    "factum misuse",
    "factum-runtime factum_runtime",
    "factum-kill soak",
    "factum-tests signals",
];

/// Lines of a program that are shown once more, if it ended without saying which test failed.
const LAST_LINES: usize = 25;

/// A program of tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// The package and the target: `factum-tests consumer`.
    pub(crate) name: String,
    path: PathBuf,
    manifest: PathBuf,
}

impl Program {
    /// The test program in a line of cargo's messages, if there is one.
    pub(crate) fn told(line: &str) -> Option<Program> {
        let told: Value = serde_json::from_str(line).ok()?;
        if told["reason"] != "compiler-artifact" || told["profile"]["test"] != true {
            return None;
        }
        let manifest = PathBuf::from(told["manifest_path"].as_str()?);
        let package = package_name(told["package_id"].as_str()?)?;
        Some(Program {
            name: format!("{package} {}", told["target"]["name"].as_str()?),
            path: PathBuf::from(told["executable"].as_str()?),
            manifest,
        })
    }

    /// Whether it belongs to this package.
    pub(crate) fn is_of(&self, package: &str) -> bool {
        self.package() == package
    }

    fn package(&self) -> &str {
        self.name.split(' ').next().unwrap_or_default()
    }

    /// The program as `cargo test` would run it.
    pub(crate) fn command(&self, target_dir: &Path, libraries: &Path) -> Command {
        let dir = self.manifest.parent().unwrap_or(Path::new("."));
        let given = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let paths = std::iter::once(libraries.to_owned()).chain(std::env::split_paths(&given));
        let mut command = Command::new(&self.path);
        command
            .current_dir(dir)
            .env("CARGO", cargo())
            .env("CARGO_MANIFEST_DIR", dir)
            .env("CARGO_MANIFEST_PATH", &self.manifest)
            .env("CARGO_PKG_NAME", self.package())
            .env("CARGO_TARGET_DIR", target_dir);
        if let Ok(paths) = std::env::join_paths(paths) {
            // Tests of a derive's crate want the compiler's own libraries.
            command.env("LD_LIBRARY_PATH", paths);
        }
        command
    }

    /// Its place in the order: what takes long first, then what waits for servers, then the rest.
    fn rank(&self) -> usize {
        let listed = LONGEST.iter().position(|name| *name == self.name);
        listed.unwrap_or_else(|| LONGEST.len() + usize::from(!self.is_of("factum-tests")))
    }
}

/// The longest first; otherwise in cargo's order.
pub(crate) fn sort(programs: &mut [Program]) {
    programs.sort_by_key(Program::rank);
}

/// Where the compiler's own libraries are.
pub(crate) fn libraries() -> Result<PathBuf> {
    let output = Command::new("rustc")
        .args(["--print", "target-libdir"])
        .output()
        .context("running `rustc`")?;
    Ok(PathBuf::from(
        String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    ))
}

/// `path+file:///w/crates/factum-cli#0.1.0` and `path+file:///w/tests#factum-tests@0.1.0` name a package each.
fn package_name(id: &str) -> Option<&str> {
    let (place, fragment) = id.rsplit_once('#')?;
    match fragment.split_once('@') {
        Some((name, _)) => Some(name),
        None => place.rsplit('/').next(),
    }
}

/// What a program of tests came to.
#[derive(Debug)]
pub(crate) struct Report {
    /// What it is called.
    pub(crate) name: String,
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) seconds: f64,
    lines: Vec<(Origin, String)>,
}

impl Report {
    /// Runs the command to its end and keeps what it prints.
    pub(crate) fn of(name: &str, command: &mut Command) -> Result<Report> {
        let start = Instant::now();
        let mut report = Report {
            name: name.to_owned(),
            passed: 0,
            failed: 0,
            seconds: 0.0,
            lines: Vec::new(),
        };
        let status = stream(command, |from, line| report.read(from, line))?;
        if !status.success() && report.failed == 0 {
            // A test that brought its program down, or one that doesn't build, is a failure too, though no line
            // counts it.
            let text = format!(
                "{} tests passed, and the run ended with {status}",
                report.passed
            );
            report.lines.push((Origin::Stderr, text));
            report.failed = 1;
        }
        report.seconds = start.elapsed().as_secs_f64();
        Ok(report)
    }

    fn read(&mut self, from: Origin, line: &str) {
        if let Some((passed, failed)) = test_result(line) {
            self.passed += passed;
            self.failed += failed;
        }
        self.lines.push((from, line.to_owned()));
    }

    /// Puts what came next under the same name.
    pub(crate) fn followed_by(&mut self, next: Report) {
        self.passed += next.passed;
        self.failed += next.failed;
        self.seconds += next.seconds;
        self.lines.extend(next.lines);
    }

    /// All that it printed, under its name.
    pub(crate) fn print(&self, screen: &Screen) {
        let Report {
            name,
            passed,
            failed,
            seconds,
            ..
        } = self;
        screen.note(format_args!(
            "-- {name}: {passed} passed, {failed} failed, {seconds:.1} s"
        ));
        for (from, line) in &self.lines {
            match from {
                Origin::Stdout => screen.data(line),
                Origin::Stderr => screen.note(line),
            }
        }
    }

    /// What it said about its failures.
    fn failures(&self) -> Vec<&str> {
        let begin = self.lines.iter().position(|(_, line)| line == "failures:");
        let begin = begin.unwrap_or(self.lines.len().saturating_sub(LAST_LINES));
        self.lines[begin..]
            .iter()
            .map(|(_, line)| line.as_str())
            .collect()
    }
}

/// Shows once more what failed: it may be far above.
pub(crate) fn print_failures(screen: &Screen, reports: &[Report]) {
    for report in reports.iter().filter(|report| report.failed > 0) {
        screen.note(format_args!("-- FAILED: {}", report.name));
        for line in report.failures() {
            screen.note(line);
        }
    }
}

/// Does the named jobs in their order, as many at a time as there are workers; `show` is given each that has ended. With `fail_fast` none begins after a failure.
pub(crate) fn run<J: Send, W: Send>(
    screen: &Screen,
    jobs: Vec<(String, J)>,
    workers: &mut [W],
    fail_fast: bool,
    work: impl Fn(&str, J, &mut W) -> Result<Report> + Sync,
    show: impl Fn(&Report),
) -> Result<Vec<Report>> {
    let of = jobs.len() as u64;
    let queue = Mutex::new(VecDeque::from(jobs));
    let is_over = AtomicBool::new(false);
    let mut reports = Vec::new();
    let mut broken = None;
    std::thread::scope(|scope| {
        let (done, ended) = mpsc::channel();
        for worker in workers {
            let (queue, is_over, work, done) = (&queue, &is_over, &work, done.clone());
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let next = queue
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .pop_front();
                    let Some((name, job)) = next else { return };
                    screen.note(format_args!("-- {name} begins"));
                    let report = work(&name, job, worker);
                    let failed = report.as_ref().map_or(true, |report| report.failed > 0);
                    if failed && fail_fast || tool::is_interrupted() {
                        is_over.store(true, Ordering::Relaxed);
                    }
                    if done.send(report).is_err() {
                        return;
                    }
                }
            });
        }
        drop(done);
        for report in ended {
            match report {
                Ok(report) => {
                    // An interrupted program's failures are none.
                    if !tool::is_interrupted() {
                        show(&report);
                    }
                    reports.push(report);
                }
                Err(failure) => {
                    broken.get_or_insert(failure);
                }
            }
            screen.advance("tests", reports.len() as u64, of);
        }
    });
    match broken {
        Some(failure) => Err(failure),
        None => Ok(reports),
    }
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
    use serde_json::json;

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

    fn message(id: &str, target: &str, test: bool) -> String {
        json!({
            "reason": "compiler-artifact", "package_id": id, "manifest_path": "/w/crates/a/Cargo.toml",
            "target": { "name": target }, "profile": { "test": test },
            "executable": format!("/t/debug/deps/{target}-1"),
        })
        .to_string()
    }

    fn program(id: &str, target: &str) -> Program {
        Program::told(&message(id, target, true)).unwrap()
    }

    #[test]
    fn test_programs_are_read_from_cargo_s_messages_and_nothing_else_is() {
        let found = program("path+file:///w/crates/a#0.1.0", "outbox");
        assert_eq!(found.name, "a outbox");
        assert_eq!(found.path, Path::new("/t/debug/deps/outbox-1"));
        assert!(found.is_of("a") && !found.is_of("b"));
        let named = program("path+file:///w/tests#factum-tests@0.1.0", "calls");
        assert_eq!(named.name, "factum-tests calls");
        let built = message("path+file:///w/crates/a#0.1.0", "outbox", false);
        assert_eq!(Program::told(&built), None);
        assert_eq!(Program::told("not JSON"), None);
    }

    #[test]
    fn the_longest_begin_first_and_those_of_no_package_of_tests_last() {
        let mut programs = [
            program("path+file:///w/crates/a#0.1.0", "b"),
            program("path+file:///w/tests#factum-tests@0.1.0", "new"),
            program("path+file:///w/tests#factum-tests@0.1.0", "consumer"),
            program("path+file:///w/tests#factum-tests@0.1.0", "charges"),
        ];
        sort(&mut programs);
        let names: Vec<&str> = programs.iter().map(|p| p.name.as_str()).collect();
        let expected = ["charges", "consumer", "new"].map(|name| format!("factum-tests {name}"));
        assert_eq!(names[..3], expected.each_ref().map(String::as_str));
        assert_eq!(names[3], "a b");
    }

    /// Runs scripts, and gives also the names of those that each worker began.
    fn run_scripts(
        scripts: &[(&'static str, &'static str)],
        at_once: usize,
        fail_fast: bool,
    ) -> (Vec<Report>, Vec<Vec<String>>) {
        let jobs = scripts
            .iter()
            .map(|(name, script)| ((*name).to_owned(), *script));
        let mut workers = vec![Vec::new(); at_once];
        let work = |name: &str, script: &str, begun: &mut Vec<String>| {
            begun.push(name.to_owned());
            // One that waits for ever is a failure.
            Report::of(
                name,
                Command::new("timeout").args(["60", "sh", "-c", script]),
            )
        };
        let reports = run(
            &Screen::new(false),
            jobs.collect(),
            &mut workers,
            fail_fast,
            work,
            // Their results would pass for ours.
            |_| {},
        );
        (reports.unwrap(), workers)
    }

    #[test]
    fn every_test_is_counted_also_of_a_program_that_dies() {
        let scripts = [
            (
                "good",
                "echo 'test result: ok. 3 passed; 0 failed; 0 ignored'",
            ),
            (
                "bad",
                "echo 'test a ... FAILED'; echo; echo failures:; echo '    a'; \
                 echo 'test result: FAILED. 2 passed; 1 failed; 0 ignored'; exit 101",
            ),
            ("dead", "echo 'test a ... ok'; exit 134"),
        ];
        let (mut reports, _) = run_scripts(&scripts, 2, false);
        reports.sort_by_key(|report| report.passed);
        let sums: Vec<(u64, u64)> = reports.iter().map(|r| (r.passed, r.failed)).collect();
        assert_eq!(sums, [(0, 1), (2, 1), (3, 0)]);
        // What a program says of its failures is shown again, and of one that said nothing its last lines.
        assert_eq!(reports[1].failures()[..2], ["failures:", "    a"]);
        let dead = reports[0].failures();
        assert_eq!(dead[0], "test a ... ok");
        assert!(dead[1].contains("ended with exit status: 134"), "{dead:?}");
    }

    #[test]
    fn several_run_at_once_and_what_one_prints_stays_together() {
        let dir = tempfile::tempdir().unwrap();
        // Each ends only when the other has begun.
        let script = |mine: &str, other: &str| {
            let place = dir.path().display();
            let script = format!(
                "cd {place}; echo {mine} begins; touch {mine}; until [ -e {other} ]; do sleep 0.01; done; echo {mine} ends"
            );
            &*script.leak()
        };
        let scripts = [("a", script("a", "b")), ("b", script("b", "a"))];
        let (reports, _) = run_scripts(&scripts, 2, false);
        assert_eq!(reports.len(), 2);
        for report in reports {
            assert_eq!(report.failed, 0, "{report:?}");
            let lines: Vec<&str> = report.lines.iter().map(|(_, l)| l.as_str()).collect();
            let name = &report.name;
            assert_eq!(lines, [format!("{name} begins"), format!("{name} ends")]);
        }
    }

    #[test]
    fn after_a_failure_none_begins_if_so_wanted() {
        let scripts = [("bad", "exit 1"), ("next", "exit 0")];
        let (_, begun) = run_scripts(&scripts, 1, true);
        assert_eq!(begun, [["bad"]]);
        let (_, begun) = run_scripts(&scripts, 1, false);
        assert_eq!(begun, [["bad", "next"]]);
    }
}
