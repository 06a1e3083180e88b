//! What the documents say about the tree.

use super::{Finding, Tree};

/// How the name of a file ends that a document may speak of.
const ENDINGS: &[&str] = &[
    "rs", "md", "toml", "json", "sql", "sh", "yml", "xml", "lock",
];

/// `exists` answers for a path from the checkout's root, hidden files included.
pub(super) fn check(tree: &Tree, exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = architecture_files(tree, exists);
    findings.extend(decisions_index(tree));
    findings.extend(guarantees(tree));
    findings
}

/// A promise whose test is gone is a promise no more.
fn guarantees(tree: &Tree) -> Vec<Finding> {
    const PATH: &str = "docs/guarantees.md";
    const POINTS: &str = "crates/factum-fault/src/lib.rs";
    const HARMS: &str = "kill/src/cell.rs";
    let text = tree.get(PATH).unwrap_or_default();
    let mut findings = Vec::new();
    for (place, line) in text.lines().enumerate() {
        // The last cell of a row of three.
        let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
        let [_, _, shown_by] = cells.as_slice() else {
            continue;
        };
        for name in shown_by.split('`').skip(1).step_by(2) {
            let is_there = match name.split_once('/') {
                Some((harm, point)) => {
                    let names = |path: &str, name: &str| {
                        let quoted = format!("\"{name}\"");
                        tree.get(path).is_some_and(|text| text.contains(&quoted))
                    };
                    names(HARMS, harm) && names(POINTS, point)
                }
                None => {
                    let tests = [format!("fn {name}("), format!("fn {name}<")];
                    tree.files.iter().any(|(path, text)| {
                        path.ends_with(".rs") && tests.iter().any(|test| text.contains(test))
                    })
                }
            };
            if !is_there {
                findings.push(Finding {
                    rule: "guarantee-test",
                    path: PATH.to_owned(),
                    line: place + 1,
                    what: format!("`{name}` is no test and no cell"),
                    mend: "name the test that shows this promise",
                });
            }
        }
    }
    findings
}

fn architecture_files(tree: &Tree, exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    const PATH: &str = "ARCHITECTURE.md";
    let Some(text) = tree.get(PATH) else {
        return vec![Finding {
            rule: "architecture-files",
            path: PATH.to_owned(),
            line: 1,
            what: "there is no ARCHITECTURE.md".to_owned(),
            mend: "write it: a code map, the invariants, one event's path",
        }];
    };
    let mut findings = Vec::new();
    for (place, line) in text.lines().enumerate() {
        for name in named_files(line).filter(|name| !exists(name)) {
            findings.push(Finding {
                rule: "architecture-files",
                path: PATH.to_owned(),
                line: place + 1,
                what: format!("it names `{name}`, which is not there"),
                mend: "name the file by its path from the root, or take it out",
            });
        }
    }
    findings
}

/// Files and directories in a line of Markdown: in backticks, or as the target of a link.
fn named_files(line: &str) -> impl Iterator<Item = &str> {
    let in_backticks = line.split('`').skip(1).step_by(2);
    let linked = line
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    in_backticks.chain(linked).filter_map(|name| {
        let name = name
            .split('#')
            .next()
            .unwrap_or_default()
            .trim_end_matches('/');
        let is_path = !name.is_empty()
            && !name.starts_with('/')
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
        let ending = name.rsplit_once('.').map(|(_, ending)| ending);
        let is_file = ending.is_some_and(|ending| ENDINGS.contains(&ending));
        (is_path && (is_file || name.contains('/'))).then_some(name)
    })
}

fn decisions_index(tree: &Tree) -> Vec<Finding> {
    const DIR: &str = "docs/decisions";
    const INDEX: &str = "docs/decisions/README.md";
    let Some(index) = tree.get(INDEX) else {
        return Vec::new();
    };
    tree.below(DIR, "md")
        .filter(|(path, _)| *path != INDEX)
        .filter(|(path, _)| {
            let name = path.rsplit('/').next().unwrap_or(path);
            !index.contains(name)
        })
        .map(|(path, _)| Finding {
            rule: "decisions-index",
            path: path.to_owned(),
            line: 1,
            what: format!("{INDEX} does not list it"),
            mend: "add a line for it to the list",
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<(&'static str, usize)> {
        let tree = Tree::of(files);
        let exists = |path: &str| {
            tree.files
                .keys()
                .any(|file| file == path || file.starts_with(&format!("{path}/")))
        };
        check(&tree, exists)
            .into_iter()
            .map(|found| (found.rule, found.line))
            .collect()
    }

    #[test]
    fn a_file_that_is_named_and_not_there_is_found() {
        let text = "# Map\n`crates/a/src/lib.rs` and [b](crates/b/src/lib.rs#L1), `crates/c/`\n";
        let a = ("crates/a/src/lib.rs", "");
        let b = ("crates/b/src/lib.rs", "");
        let c = ("crates/c/Cargo.toml", "");
        assert_eq!(found(&[("ARCHITECTURE.md", text), a, b, c]), []);
        assert_eq!(
            found(&[("ARCHITECTURE.md", text), a]),
            [("architecture-files", 2), ("architecture-files", 2)]
        );
        assert_eq!(found(&[]), [("architecture-files", 1)]);
    }

    #[test]
    fn what_is_no_file_is_not_taken_for_one() {
        let text =
            "`orders.confirmed` `a -> b` `EventId` `max.poll.interval.ms` [x](https://a.b/c.md)\n";
        assert_eq!(found(&[("ARCHITECTURE.md", text)]), []);
    }

    #[test]
    fn a_promise_without_its_test_is_found() {
        let architecture = ("ARCHITECTURE.md", "");
        let test = ("tests/a.rs", "async fn it_holds(on: On) {}");
        let points = (
            "crates/factum-fault/src/lib.rs",
            "CommitAfter = \"commit.after\"",
        );
        let harms = ("kill/src/cell.rs", "\"kill\"");
        let sound = "| a | | `it_holds`, cell `kill/commit.after` |\n";
        let files = |page| {
            [
                architecture,
                test,
                points,
                harms,
                ("docs/guarantees.md", page),
            ]
        };
        assert_eq!(found(&files(sound)), []);
        let page = "# A\n| a | | `it_hold` |\n| a | | cell `kill/commit` |\n";
        assert_eq!(
            found(&files(page)),
            [("guarantee-test", 2), ("guarantee-test", 3)]
        );
    }

    #[test]
    fn a_decision_that_is_not_listed_is_found() {
        let architecture = ("ARCHITECTURE.md", "");
        let one = ("docs/decisions/0001-wire.md", "");
        let two = ("docs/decisions/0002-ids.md", "");
        let index = ("docs/decisions/README.md", "- [wire](0001-wire.md)\n");
        assert_eq!(found(&[architecture, one, index]), []);
        assert_eq!(
            found(&[architecture, one, two, index]),
            [("decisions-index", 1)]
        );
    }
}
