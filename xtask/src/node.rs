//! The projects in Node, `examples/billing-node` and `examples/outbox-node`, and their tools.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::workspace::{Origin, root, stream};

/// A copy of the lock file that the packages were installed by.
const INSTALLED: &str = "node_modules/.installed-package-lock.json";

/// A project below `examples`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Project {
    name: &'static str,
    /// What prettier looks at, from its folder.
    formatted: &'static [&'static str],
}

/// All of them.
pub(crate) const PROJECTS: [Project; 2] = [
    Project {
        name: "billing-node",
        formatted: &[".", "../../tests/node"],
    },
    Project {
        name: "outbox-node",
        formatted: &["."],
    },
];

impl Project {
    fn folder(self) -> PathBuf {
        root().join("examples").join(self.name)
    }
}

/// Fetches the packages, unless those of the lock file are there.
pub(crate) fn install(project: Project, print: impl FnMut(Origin, &str)) -> Result<()> {
    let lock = project.folder().join("package-lock.json");
    let wanted = std::fs::read(&lock).with_context(|| lock.display().to_string())?;
    let installed = project.folder().join(INSTALLED);
    if std::fs::read(&installed).is_ok_and(|there| there == wanted) {
        return Ok(());
    }
    let mut command = Command::new("npm");
    command.arg("ci").current_dir(project.folder());
    let status = stream(&mut command, print)?;
    ensure!(
        status.success(),
        "the packages of examples/{name} can't be fetched\n  mend  npm ci --prefix examples/{name}",
        name = project.name
    );
    std::fs::write(&installed, wanted).with_context(|| installed.display().to_string())
}

/// The format and the types.
pub(crate) fn checks(project: Project) -> Vec<Command> {
    let folder = project.folder();
    let tool = |name: &str, arguments: &[&str]| {
        let mut command = Command::new(folder.join("node_modules/.bin").join(name));
        command.args(arguments).current_dir(&folder);
        command
    };
    vec![
        tool("prettier", &[&["--check"], project.formatted].concat()),
        tool("tsc", &["-p", "."]),
    ]
}

/// The unit tests, once the types are checked and the programs written.
pub(crate) fn unit_tests(project: Project) -> Command {
    let mut command = Command::new("node");
    command
        .args(["--test", "--test-reporter=tap", "dist/test/"])
        .current_dir(project.folder());
    command
}

/// The sums of Node's test runner.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tests {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Tests {
    /// `# pass 14` and `# fail 0`.
    pub(crate) fn read(&mut self, line: &str) {
        let number = |word: &str| line.strip_prefix(word)?.trim().parse().ok();
        if let Some(passed) = number("# pass ") {
            self.passed = passed;
        }
        if let Some(failed) = number("# fail ") {
            self.failed = failed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Tests;

    #[test]
    fn the_sums_of_node_s_test_runner_are_read() {
        let mut tests = Tests::default();
        for line in [
            "TAP version 13",
            "ok 1 - # pass",
            "# tests 15",
            "# pass 14",
            "# fail 1",
            "# passed",
        ] {
            tests.read(line);
        }
        assert_eq!(
            tests,
            Tests {
                passed: 14,
                failed: 1
            }
        );
    }
}
