//! Which crate may depend on which.

use std::path::Path;

use serde_json::Value;

use super::{Finding, Tree, line_of};

/// The arrows of ARCHITECTURE.md: a crate, and those it may depend on. Any other is a finding; a new
/// one is a decision, and belongs into both places.
const EDGES: &[(&str, &[&str])] = &[
    (
        "factum",
        &[
            "factum-runtime",
            "factum-macros",
            "factum-event",
            "factum-contract",
        ],
    ),
    ("factum-event", &[]),
    ("factum-fault", &[]),
    ("factum-macros", &[]),
    ("factum-contract", &["factum-event"]),
    ("factum-postgres", &["factum-event", "factum-fault"]),
    ("factum-kafka", &["factum-event", "factum-fault"]),
    (
        "factum-runtime",
        &[
            "factum-postgres",
            "factum-kafka",
            "factum-event",
            "factum-fault",
        ],
    ),
    ("factum-console", &["factum-runtime"]),
    (
        "factum-cli",
        &["factum-runtime", "factum-contract", "factum-event"],
    ),
    (
        "factum-testing",
        &[
            "factum-runtime",
            "factum-postgres",
            "factum-kafka",
            "factum-event",
        ],
    ),
    // Tests across crates see the product as its users do, and the stage.
    (
        "factum-tests",
        &[
            "factum",
            "factum-contract",
            "factum-fault",
            "factum-testing",
        ],
    ),
    // It arms the fault points, and puts records past the relay into topics.
    (
        "factum-kill",
        &["factum", "factum-fault", "factum-kafka", "factum-testing"],
    ),
    // It judges what the product did, and a fault in shared code would hide itself.
    ("factum-checker", &[]),
    // Its raw loops use the clients directly.
    ("factum-bench", &["factum", "factum-testing"]),
    ("xtask", &["factum-testing"]),
];

/// What tests may use besides, in any crate: the stage, what a user has, and the event core.
const FOR_TESTS: &[&str] = &["factum-testing", "factum", "factum-macros", "factum-event"];

/// The program that judges a run. Even its tests name nothing of what it judges.
const CHECKER: &str = "factum-checker";

/// What its tests may use besides.
const STAGE: &[&str] = &["factum-testing"];

/// `metadata` is that of `cargo metadata --no-deps`, `root` the checkout that it speaks of.
pub(super) fn check(tree: &Tree, metadata: &Value, root: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        let manifest = package["manifest_path"].as_str().unwrap_or_default();
        let path = Path::new(manifest)
            .strip_prefix(root)
            .unwrap_or(Path::new(manifest));
        let path = path.to_string_lossy().into_owned();
        let text = tree.get(&path).unwrap_or_default();
        if !takes_lints(text) {
            findings.push(Finding {
                rule: "crate-lints",
                path: path.clone(),
                line: 1,
                what: format!("{name} does not take the workspace's lints"),
                mend: "add `[lints]` with `workspace = true` to its Cargo.toml",
            });
        }
        let for_tests = if name == CHECKER { STAGE } else { FOR_TESTS };
        let Some((_, allowed)) = EDGES.iter().find(|(from, _)| *from == name) else {
            findings.push(Finding {
                rule: "crate-edge",
                path,
                line: 1,
                what: format!("{name} has no place in the architecture"),
                mend: "give it a row in ARCHITECTURE.md and in xtask/src/tidy/crates.rs",
            });
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let to = dependency["name"].as_str().unwrap_or_default();
            // A crate may name itself to switch a feature on for its own tests.
            if dependency["path"].is_null() || to == name || allowed.contains(&to) {
                continue;
            }
            if dependency["kind"] == "dev" && for_tests.contains(&to) {
                continue;
            }
            findings.push(Finding {
                rule: "crate-edge",
                line: line_of(text, |line| {
                    let key = line.split(['.', '=', ' ']).next().unwrap_or_default();
                    key == to
                }),
                path: path.clone(),
                what: format!("{name} depends on {to}"),
                mend: "move the code to a crate that may, or change ARCHITECTURE.md and \
                       xtask/src/tidy/crates.rs with a reason in docs/decisions",
            });
        }
    }
    findings
}

/// `[lints]` with `workspace = true`.
fn takes_lints(manifest: &str) -> bool {
    let mut lines = manifest
        .lines()
        .map(str::trim)
        .skip_while(|line| *line != "[lints]")
        .skip(1);
    lines.next() == Some("workspace = true")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LINTS: &str = "[lints]\nworkspace = true\n";

    fn found(name: &str, manifest: &str, to: &str, kind: Option<&str>) -> Vec<Finding> {
        let tree = Tree::of(&[("crates/x/Cargo.toml", manifest)]);
        let metadata = json!({ "packages": [{
            "name": name, "manifest_path": "/w/crates/x/Cargo.toml",
            "dependencies": [
                { "name": to, "kind": kind, "path": "/w/crates/y" },
                { "name": "serde", "kind": null, "path": null },
            ],
        }] });
        check(&tree, &metadata, Path::new("/w"))
    }

    #[test]
    fn an_edge_against_the_architecture_is_found() {
        let manifest = format!(
            "{LINTS}[dependencies]\nfactum-kafka-x = \"1\"\nfactum-kafka.workspace = true\n"
        );
        let findings = found("factum-event", &manifest, "factum-kafka", None);
        assert_eq!(findings.len(), 1, "{findings:?}");
        let finding = &findings[0];
        assert_eq!((finding.rule, finding.line), ("crate-edge", 5));
        assert_eq!(finding.path, "crates/x/Cargo.toml");
        assert_eq!(finding.what, "factum-event depends on factum-kafka");
        // A test of a low crate must not reach up either, except through the stage and the facade.
        assert_eq!(
            found("factum-event", LINTS, "factum-runtime", Some("dev")).len(),
            1
        );
        assert_eq!(
            found("factum-event", LINTS, "factum-testing", Some("build")).len(),
            1
        );
        assert_eq!(found("xtask", LINTS, "factum-postgres", None).len(), 1);
    }

    #[test]
    fn an_edge_of_the_architecture_is_not() {
        assert_eq!(found("factum-runtime", LINTS, "factum-kafka", None), []);
        assert_eq!(
            found("factum-event", LINTS, "factum-testing", Some("dev")),
            []
        );
        assert_eq!(
            found("factum-kafka", LINTS, "factum-kafka", Some("dev")),
            []
        );
    }

    #[test]
    fn the_checker_shares_nothing_with_what_it_checks() {
        let found = |to, kind| found("factum-checker", LINTS, to, kind).len();
        assert_eq!(found("factum-testing", Some("dev")), 0);
        assert_eq!(found("factum-testing", None), 1);
        assert_eq!(found("factum-event", Some("dev")), 1);
        assert_eq!(found("factum-postgres", None), 1);
    }

    #[test]
    fn a_crate_without_a_place_or_without_lints_is_found() {
        let findings = found("factum-utils", LINTS, "serde", None);
        assert_eq!(
            findings[0].what,
            "factum-utils has no place in the architecture"
        );
        for manifest in ["", "[lints.rust]\nunsafe_code = \"warn\"\n", "[lints]\n"] {
            let findings = found("factum-kafka", manifest, "factum-event", None);
            assert_eq!(findings[0].rule, "crate-lints");
        }
    }
}
