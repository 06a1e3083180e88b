//! Two workspaces, one target directory.

use std::collections::BTreeMap;

use super::{Finding, Tree};

const OURS: &str = "Cargo.lock";
const EXAMPLES: &str = "examples/Cargo.lock";

/// A package that both lock files have must have the same version in both, or it is built twice, and
/// an example is tried with another version than the tests. Versions that can't stand for each other
/// (1.x and 2.x) are different packages.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let (Some(ours), Some(examples)) = (tree.get(OURS), tree.get(EXAMPLES)) else {
        return Vec::new();
    };
    let ours: BTreeMap<(&str, String), &str> = packages(ours)
        .map(|package| ((package.name, compatible(package.version)), package.version))
        .collect();
    packages(examples)
        .filter_map(|package| {
            let version = ours.get(&(package.name, compatible(package.version)))?;
            (*version != package.version).then(|| Finding {
                rule: "same-lock",
                path: EXAMPLES.to_owned(),
                line: package.line,
                what: format!(
                    "{} {} here, {version} in {OURS}",
                    package.name, package.version
                ),
                mend: "cargo update --manifest-path examples/Cargo.toml <name> --precise <version>",
            })
        })
        .collect()
}

struct Package<'a> {
    name: &'a str,
    version: &'a str,
    line: usize,
}

fn packages(lock: &str) -> impl Iterator<Item = Package<'_>> {
    let value = |line: &'_ str, key: &str| -> Option<usize> {
        line.strip_prefix(key)?
            .strip_prefix(" = \"")
            .map(|rest| line.len() - rest.len())
    };
    let lines: Vec<&str> = lock.lines().collect();
    (0..lines.len().saturating_sub(1)).filter_map(move |place| {
        let (name, version) = (lines[place], lines[place + 1]);
        Some(Package {
            name: name[value(name, "name")?..].trim_end_matches('"'),
            version: version[value(version, "version")?..].trim_end_matches('"'),
            line: place + 2,
        })
    })
}

/// What must be equal for one version to stand for another: the first number that isn't 0, and all
/// before it.
fn compatible(version: &str) -> String {
    let mut kept = Vec::new();
    for number in version.split(['.', '-', '+']) {
        kept.push(number);
        if number != "0" {
            break;
        }
    }
    kept.join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(packages: &[(&str, &str)]) -> String {
        let entry = |(name, version): &(&str, &str)| {
            format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\nsource = \"x\"\n\n")
        };
        format!(
            "version = 4\n\n{}",
            packages.iter().map(entry).collect::<String>()
        )
    }

    fn found(ours: &[(&str, &str)], examples: &[(&str, &str)]) -> Vec<String> {
        let (ours, examples) = (lock(ours), lock(examples));
        let tree = Tree::of(&[(OURS, &ours), (EXAMPLES, &examples)]);
        check(&tree)
            .into_iter()
            .map(|found| format!("{}: {}", found.line, found.what))
            .collect()
    }

    #[test]
    fn another_version_of_the_same_package_is_found() {
        assert_eq!(
            found(
                &[("tokio", "1.54.1"), ("nix", "0.32.0")],
                &[("nix", "0.32.1"), ("tokio", "1.54.1")]
            ),
            ["5: nix 0.32.1 here, 0.32.0 in Cargo.lock"]
        );
    }

    #[test]
    fn packages_that_cannot_stand_for_each_other_are_not_compared() {
        let ours = [("syn", "2.0.119"), ("nix", "0.32.0"), ("a", "1.0.0")];
        let examples = [("syn", "1.0.109"), ("nix", "0.31.9"), ("b", "1.0.1")];
        assert!(found(&ours, &examples).is_empty());
    }
}
