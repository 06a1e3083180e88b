//! Code that must not compile, and what the compiler says to the person who wrote it.
//!
//! Each file in `tests/misuse/` says in its first lines what the error must say (`//! says: …`).
//! One without such a line must compile. They are compiled against the library that cargo has
//! built already: a tool that builds all dependencies anew would build librdkafka a second time.

#![cfg(feature = "service")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The library `factum` and the directory that holds what it depends on.
struct Built {
    factum: PathBuf,
    tokio: PathBuf,
    dependencies: PathBuf,
}

impl Built {
    /// Asks cargo where they are. The flags are those of the whole suite, so that nothing is
    /// built with other features.
    fn find() -> Built {
        let output = Command::new(std::env::var_os("CARGO").expect("cargo runs this test"))
            .args([
                "test",
                "--workspace",
                "--all-features",
                "--test",
                "misuse",
                "--no-run",
            ])
            .args(["--message-format", "json"])
            .output()
            .expect("cargo can be run");
        assert!(output.status.success(), "{}", text(&output.stderr));
        let messages = text(&output.stdout);
        let factum = library(&messages, "factum");
        Built {
            tokio: library(&messages, "tokio"),
            dependencies: factum.parent().expect("a file has a directory").to_owned(),
            factum,
        }
    }

    fn compile(&self, fixture: &Path) -> Output {
        let target = std::env::temp_dir().join(format!(
            "factum-misuse-{}-{}",
            std::process::id(),
            name(fixture)
        ));
        let output = Command::new("rustc")
            .args(["--edition", "2024", "--emit", "metadata", "-o"])
            .arg(&target)
            .arg("-L")
            .arg(joined("dependency=", &self.dependencies))
            .arg("--extern")
            .arg(joined("factum=", &self.factum))
            .arg("--extern")
            .arg(joined("tokio=", &self.tokio))
            .arg(fixture)
            .output()
            .expect("rustc can be run");
        // Only the fixture that compiles leaves a file.
        let _ = std::fs::remove_file(target);
        output
    }
}

fn joined(prefix: &str, path: &Path) -> std::ffi::OsString {
    let mut joined = std::ffi::OsString::from(prefix);
    joined.push(path);
    joined
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn name(fixture: &Path) -> String {
    let stem = fixture.file_stem().unwrap_or_else(|| OsStr::new("?"));
    stem.to_string_lossy().into_owned()
}

/// The `.rlib` of a crate in cargo's messages. The directory may hold older ones beside it.
fn library(messages: &str, name: &str) -> PathBuf {
    let wanted = format!("lib{name}-");
    messages
        .split('"')
        .filter(|part| part.ends_with(".rlib"))
        .map(PathBuf::from)
        .find(|path| {
            path.file_name()
                .is_some_and(|file| file.to_string_lossy().starts_with(&wanted))
        })
        .unwrap_or_else(|| panic!("cargo names no library {name}"))
}

fn says(source: &str) -> Vec<&str> {
    source
        .lines()
        .filter_map(|line| line.strip_prefix("//! says: "))
        .collect()
}

#[test]
fn a_misused_handler_does_not_compile_and_the_error_says_why() {
    let built = Built::find();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/misuse");
    let mut fixtures: Vec<PathBuf> = std::fs::read_dir(directory)
        .expect("the fixtures are there")
        .map(|entry| entry.expect("a directory can be read").path())
        .collect();
    fixtures.sort();
    assert!(fixtures.len() > 5, "{fixtures:?}");
    let mut wrong = Vec::new();
    for fixture in fixtures {
        let name = name(&fixture);
        let source = std::fs::read_to_string(&fixture).expect("a fixture can be read");
        let output = built.compile(&fixture);
        let errors = text(&output.stderr);
        let expected = says(&source);
        if output.status.success() != expected.is_empty() {
            wrong.push(format!(
                "{name}: compiled: {}\n{errors}",
                output.status.success()
            ));
        }
        for line in expected {
            if !errors.contains(line) {
                wrong.push(format!(
                    "{name}: the compiler does not say {line:?} but\n{errors}"
                ));
            }
        }
        // One mistake, one error, though rustc may show it at several places.
        let mut headlines: Vec<&str> = errors
            .lines()
            .filter(|line| line.starts_with("error[") || line.starts_with("error: "))
            .filter(|line| !line.starts_with("error: aborting"))
            .collect();
        headlines.sort_unstable();
        headlines.dedup();
        if headlines.len() > 1 {
            wrong.push(format!("{name}: one mistake made {headlines:?}\n{errors}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
