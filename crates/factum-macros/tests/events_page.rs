//! `docs/events.md` shows what a user who breaks a rule reads, taken from the fixtures.
//!
//! After a change of a fixture: `UPDATE_DOCS=1 cargo test -p factum-macros --test events_page`, and read the difference.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// From the root of the checkout.
const PAGE: &str = "docs/events.md";
const FIXTURES: &str = "crates/factum-macros/tests/ui";

/// `<!-- fixture: path without its ending -->` begins a part that is made, and this ends it.
const BEGIN: &str = "<!-- fixture: ";
const END: &str = "<!-- end -->";

/// The file that a user would have the code in.
const USERS_FILE: &str = "src/events.rs";

#[test]
fn the_page_on_events_shows_what_the_fixtures_say() {
    let path = root().join(PAGE);
    let page = fs::read_to_string(&path).unwrap();
    let made = filled(&page);
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &made).unwrap();
    }
    assert!(
        made == page || env::var_os("UPDATE_DOCS").is_some(),
        "{PAGE} is not what its fixtures say: run `UPDATE_DOCS=1 cargo test -p factum-macros --test events_page`"
    );
}

#[test]
fn the_page_on_events_shows_each_rule_that_a_derive_enforces() {
    let page = fs::read_to_string(root().join(PAGE)).unwrap();
    let shown: String = parts(&page)
        .into_iter()
        .filter_map(|part| match part {
            Part::Fixture { path } => Some(error_of(path)),
            Part::Prose(_) => None,
        })
        .collect();
    let mut enforced = BTreeSet::new();
    for entry in fs::read_dir(root().join(FIXTURES)).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "stderr") {
            enforced.extend(rules(&fs::read_to_string(path).unwrap()));
        }
    }
    assert!(enforced.contains("EVT-1") && enforced.contains("SEC-3"));
    let missing: Vec<_> = enforced.difference(&rules(&shown)).cloned().collect();
    assert!(missing.is_empty(), "{PAGE} shows no error of {missing:?}");
}

/// The rules that a text cites, such as those of "(EVT-X3, SEC-3)".
fn rules(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
        .filter(|word| {
            word.split_once('-').is_some_and(|(name, number)| {
                name.len() >= 3
                    && name.bytes().all(|b| b.is_ascii_uppercase())
                    && number.trim_start_matches('X').parse::<u8>().is_ok()
            })
        })
        .map(str::to_owned)
        .collect()
}

enum Part<'a> {
    Prose(&'a str),
    Fixture { path: &'a str },
}

fn parts(page: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut rest = page;
    while let Some((prose, after)) = rest.split_once(BEGIN) {
        parts.push(Part::Prose(prose));
        let (path, after) = after
            .split_once(" -->\n")
            .expect("the mark of a fixture ends its line");
        let (made, after) = after
            .split_once(END)
            .unwrap_or_else(|| panic!("the part of {path} has no end"));
        assert!(!made.contains(BEGIN), "the part of {path} has no end");
        parts.push(Part::Fixture { path });
        rest = after;
    }
    parts.push(Part::Prose(rest));
    parts
}

/// The page with all its parts made anew.
fn filled(page: &str) -> String {
    let mut filled = String::new();
    for part in parts(page) {
        match part {
            Part::Prose(prose) => filled.push_str(prose),
            Part::Fixture { path } => {
                let source = read(path, "rs");
                let (skipped, code) = user_code(&source);
                let error = as_a_user_sees_it(&error_of(path), path, skipped);
                write!(
                    filled,
                    "{BEGIN}{path} -->\n```rust,compile_fail\n{code}\n```\n\n```text\n{error}\n```\n{END}"
                )
                .unwrap();
            }
        }
    }
    filled
}

fn error_of(path: &str) -> String {
    read(path, "stderr")
}

fn read(path: &str, ending: &str) -> String {
    let file = root().join(path).with_extension(ending);
    fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The code without what every fixture has around it, and how many lines are left out before it.
fn user_code(source: &str) -> (usize, String) {
    let is_frame = |line: &&str| {
        line.is_empty() || line.starts_with("use ") || line.starts_with("extern crate ")
    };
    let skipped = source.lines().take_while(is_frame).count();
    let code: Vec<&str> = source.lines().skip(skipped).collect();
    let code = code.join("\n");
    (
        skipped,
        code.replace("fn main() {}", "").trim_end().to_owned(),
    )
}

/// With the numbers of the lines that are shown, and in a file that a user would have.
fn as_a_user_sees_it(error: &str, path: &str, skipped: usize) -> String {
    let name = Path::new(path).file_name().unwrap().to_str().unwrap();
    let shown_as = format!("{name}.rs:");
    let mut is_here = false;
    let mut lines = Vec::new();
    for line in error.trim_end().lines() {
        // What the fixtures' tool puts in the place of a number and of a path.
        let mut line = line
            .replace("and $N others", "and others")
            .replace("$WORKSPACE/crates/", "…/");
        if let Some((arrow, place)) = line.split_once("--> ") {
            is_here = place.contains(&shown_as);
            if let Some((_, place)) = place.split_once(&shown_as) {
                let (number, column) = place.split_once(':').unwrap();
                let number: usize = number.parse().unwrap();
                line = format!("{arrow}--> {USERS_FILE}:{}:{column}", number - skipped);
            }
        } else if let Some((gutter, code)) = line.split_once(" |")
            && let Ok(number) = gutter.trim().parse::<usize>()
            && is_here
        {
            line = format!("{:>width$} |{code}", number - skipped, width = gutter.len());
        }
        lines.push(line);
    }
    lines.join("\n")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn a_fixture_loses_its_frame_and_keeps_its_lines() {
    let source = "extern crate factum_event as factum;\n\nuse a::B;\n\nstruct C;\nstruct D;\n\nfn main() {}\n";
    assert_eq!(user_code(source), (4, "struct C;\nstruct D;".to_owned()));
    let error = "error: no\n  --> tests/ui/c.rs:6:8\n   |\n 6 | struct D;\n   |        ^\n  --> $WORKSPACE/crates/d.rs\n 7 | x";
    assert_eq!(
        as_a_user_sees_it(error, "crates/x/tests/ui/c", 4),
        "error: no\n  --> src/events.rs:2:8\n   |\n 2 | struct D;\n   |        ^\n  --> …/d.rs\n 7 | x"
    );
    assert_eq!(
        rules("(EVT-X3, SEC-3) and PROD-2; UTF-8? 2026-06-01, A-1"),
        ["EVT-X3", "PROD-2", "SEC-3", "UTF-8"]
            .map(str::to_owned)
            .into()
    );
}
