//! What may stand in which crate's source.

use super::rust::{Source, names};
use super::{Finding, Tree, line_of};

/// Who may name the Kafka client: the crate that is the product's door to it; the checker, which looks at
/// what the product did and so must not go through that door; and the bench, whose raw loops are what a
/// careful person would write without Factum.
const KAFKA_DOORS: &[&str] = &["crates/factum-kafka/", "checker/", "bench/"];

/// Where SQL may stand: the crate that owns it, and the one file that creates databases for tests,
/// before there is any table of ours.
const SQL_HOMES: &[&str] = &[
    "crates/factum-postgres/",
    "crates/factum-testing/src/database.rs",
];

/// Calls that run SQL. A plain `query` may be that of a URL.
const SQL_CALLS: &[&str] = &[
    "sqlx::query",
    "query_as",
    "query_scalar",
    "query_with",
    "raw_sql",
];

/// How a statement begins.
const SQL_WORDS: &[&str] = &[
    "SELECT",
    "INSERT INTO",
    "UPDATE",
    "DELETE FROM",
    "WITH",
    "CREATE",
    "ALTER",
    "DROP",
    "TRUNCATE",
    "LOCK TABLE",
    "COPY",
    "CALL",
    "DO $$",
    "NOTIFY",
    "LISTEN",
    "SET LOCAL",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SAVEPOINT",
];

/// Crates without IO, clock and randomness.
const PURE: &[&str] = &[
    "crates/factum-event",
    "crates/factum-macros",
    "crates/factum-contract",
];

/// The files of a pure crate that are there for IO: the lock file, and the test that asks the environment about it.
const ALLOWED_IO: &[&str] = &[
    "crates/factum-contract/src/gate.rs",
    "crates/factum-contract/src/lock.rs",
];

/// What a pure crate must not name: in its source, and as a dependency.
const IMPURE: &[&str] = &[
    "SystemTime",
    // Not the word alone: an instant is a form of a value, too.
    "time::Instant",
    "Instant::now",
    "now_utc",
    "now_local",
    "now_v7",
    "new_v4",
    "rand",
    "fastrand",
    "getrandom",
    "tokio",
    "sqlx",
    "reqwest",
    "std::fs",
    "std::net",
    "std::env",
    "std::process",
    "std::thread",
    "std::os",
    "tracing",
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in &tree.files {
        if path.ends_with(".rs") {
            let source = Source::parse(text);
            kafka_door(path, &source, &mut findings);
            sql_home(path, &source, &mut findings);
            pure(path, &source, &mut findings);
            unfinished(path, &source, &mut findings);
        } else if path.ends_with("Cargo.toml") {
            manifest(path, text, &mut findings);
        }
    }
    findings
}

fn kafka_door(path: &str, source: &Source, findings: &mut Vec<Finding>) {
    if KAFKA_DOORS.iter().any(|door| path.starts_with(door)) {
        return;
    }
    for (line, code) in source.lines().filter(|(_, code)| names(code, "rdkafka")) {
        findings.push(Finding {
            rule: "kafka-door",
            path: path.to_owned(),
            line,
            what: format!("rdkafka outside of factum-kafka: `{}`", code.trim()),
            mend: "ask factum-kafka; add what is missing there",
        });
    }
}

fn sql_home(path: &str, source: &Source, findings: &mut Vec<Finding>) {
    // Unit tests in a file of their own are `tests.rs`, or lie below `tests/`.
    let is_test = path.ends_with("/tests.rs") || path.contains("/tests/");
    let is_product = path.starts_with("crates/") && path.contains("/src/");
    if !is_product || is_test || SQL_HOMES.iter().any(|home| path.starts_with(home)) {
        return;
    }
    let mut found = |line, what| {
        findings.push(Finding {
            rule: "sql-home",
            path: path.to_owned(),
            line,
            what,
            mend: "move the statement into factum-postgres, behind a function that says what it does",
        });
    };
    for (line, code) in source.product_lines() {
        if let Some(call) = SQL_CALLS.iter().find(|call| names(code, call)) {
            found(line, format!("`{call}` outside of factum-postgres"));
        }
    }
    for (line, text) in source.product_strings() {
        if let Some(word) = SQL_WORDS.iter().find(|word| begins_with(text, word)) {
            found(
                line,
                format!("a string that begins like SQL (`{word}`) outside of factum-postgres"),
            );
        }
    }
}

fn begins_with(text: &str, word: &str) -> bool {
    let text = text.trim_start_matches(|c: char| c.is_whitespace() || c == '\\');
    text.strip_prefix(word).is_some_and(|rest| {
        // "SELECT 1", "COMMIT;", but not "CREATED", nor a lone "COMMIT" that an error names.
        rest.starts_with(|c: char| c.is_whitespace() || c == ';')
    })
}

fn pure(path: &str, source: &Source, findings: &mut Vec<Finding>) {
    let is_pure = PURE
        .iter()
        .any(|dir| path.starts_with(&format!("{dir}/src/")));
    if !is_pure || ALLOWED_IO.contains(&path) {
        return;
    }
    for (line, code) in source.product_lines() {
        if let Some(word) = IMPURE.iter().find(|word| names(code, word)) {
            findings.push(Finding {
                rule: "pure",
                path: path.to_owned(),
                line,
                what: format!("`{word}` in a pure crate"),
                mend: "take the time, the randomness or the bytes as an argument",
            });
        }
    }
}

fn unfinished(path: &str, source: &Source, findings: &mut Vec<Finding>) {
    for (line, code) in source.lines() {
        let ignored = code.contains("#[ignore") || code.contains(", ignore)]");
        let word = ["todo!", "unimplemented!"]
            .into_iter()
            .find(|word| names(code, word));
        if let Some(word) = word.or(ignored.then_some("#[ignore]")) {
            findings.push(Finding {
                rule: "unfinished",
                path: path.to_owned(),
                line,
                what: format!("`{word}`"),
                mend: "finish it, or leave it out and file an issue",
            });
        }
    }
}

fn manifest(path: &str, text: &str, findings: &mut Vec<Finding>) {
    // The workspace only pins the version.
    let may_name_kafka =
        path == "Cargo.toml" || KAFKA_DOORS.iter().any(|door| path.starts_with(door));
    let key_is = |line: &str, name: &str| {
        line.split(['.', '=', ' '])
            .next()
            .unwrap_or_default()
            .trim_matches('"')
            == name
    };
    if !may_name_kafka {
        for name in ["rdkafka", "rdkafka-sys"] {
            if text.lines().any(|line| key_is(line, name)) {
                findings.push(Finding {
                    rule: "kafka-door",
                    path: path.to_owned(),
                    line: line_of(text, |line| key_is(line, name)),
                    what: format!("a dependency on {name} outside of factum-kafka"),
                    mend: "depend on factum-kafka; add what is missing there",
                });
            }
        }
    }
    if PURE.iter().any(|dir| path == format!("{dir}/Cargo.toml")) {
        let mut section = "";
        for (place, line) in text.lines().enumerate() {
            if line.starts_with('[') {
                section = line.trim();
            }
            let is_dependency = section == "[dependencies]";
            if let Some(name) = IMPURE
                .iter()
                .find(|name| is_dependency && key_is(line, name))
            {
                findings.push(Finding {
                    rule: "pure",
                    path: path.to_owned(),
                    line: place + 1,
                    what: format!("a pure crate depends on {name}"),
                    mend: "take the time, the randomness or the bytes as an argument",
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(&'static str, usize)> {
        let findings = check(&Tree::of(&[(path, text)]));
        findings
            .into_iter()
            .map(|finding| (finding.rule, finding.line))
            .collect()
    }

    #[test]
    fn rdkafka_outside_of_its_door_is_found() {
        let text = "// rdkafka\nuse rdkafka::ClientConfig;\n";
        assert_eq!(
            found("crates/factum-runtime/src/lane.rs", text),
            [("kafka-door", 2)]
        );
        assert_eq!(found("tests/tests/consumer.rs", text), [("kafka-door", 2)]);
        assert_eq!(found("crates/factum-kafka/src/lib.rs", text), []);
        assert_eq!(found("checker/src/read.rs", text), []);
        assert_eq!(
            found("crates/checker/src/read.rs", text),
            [("kafka-door", 2)]
        );
        assert_eq!(found("bench/src/raw_consumer.rs", text), []);
        assert_eq!(
            found(
                "crates/factum-runtime/src/lane.rs",
                "let a = \"rdkafka=warn\";"
            ),
            []
        );

        let manifest = "[dependencies]\nserde = \"1\"\nrdkafka.workspace = true\n";
        assert_eq!(
            found("crates/factum-runtime/Cargo.toml", manifest),
            [("kafka-door", 3)]
        );
        assert_eq!(
            found("examples/orders/Cargo.toml", manifest),
            [("kafka-door", 3)]
        );
        assert_eq!(found("crates/factum-kafka/Cargo.toml", manifest), []);
        assert_eq!(found("checker/Cargo.toml", manifest), []);
        assert_eq!(found("Cargo.toml", manifest), []);
    }

    #[test]
    fn sql_outside_of_its_home_is_found() {
        let lane = "crates/factum-runtime/src/lane.rs";
        for text in [
            "sqlx::query(sql).execute(c)",
            "sqlx::query_scalar::<_, i64>(sql)",
            "raw_sql(sql)",
            "let a = \"SELECT 1\";",
            "let a = r#\"\n    INSERT INTO t VALUES (1)\"#;",
            "let a = \"\\\n    UPDATE t SET a = 1\";",
            "let a = \"COMMIT; BEGIN\";",
        ] {
            assert_eq!(found(lane, text), [("sql-home", 1)], "{text}");
            assert_eq!(
                found("crates/factum-postgres/src/outbox.rs", text),
                [],
                "{text}"
            );
            assert_eq!(
                found("crates/factum-runtime/tests/lane.rs", text),
                [],
                "{text}"
            );
            assert_eq!(found("examples/orders/src/orders.rs", text), [], "{text}");
            let in_unit_test = format!("#[cfg(test)]\nmod tests {{\n{text}\n}}");
            assert_eq!(found(lane, &in_unit_test), [], "{text}");
        }
        for text in [
            "let a = \"SELECTED\";",
            "let a = \"COMMIT\";",
            "let a = \"Create the topic\";",
            "let a = \"select one\";",
            "/// sqlx::query(\"SELECT 1\")\nfn f() {}",
            "uri.query()",
            "use sqlx::PgConnection;",
        ] {
            assert_eq!(found(lane, text), [], "{text}");
        }
    }

    #[test]
    fn impurity_in_a_pure_crate_is_found() {
        let id = "crates/factum-event/src/id.rs";
        for text in [
            "let now = std::time::SystemTime::now();",
            "use std::time::Instant;",
            "let id = Uuid::now_v7();",
            "let now = OffsetDateTime::now_utc();",
            "fastrand::u64(..)",
            "std::fs::read(path)",
            "tokio::spawn(f)",
        ] {
            assert_eq!(found(id, text), [("pure", 1)], "{text}");
            assert_eq!(
                found("crates/factum-postgres/src/id.rs", text),
                [],
                "{text}"
            );
        }
        for text in [
            "let operand = 1;",
            "// SystemTime",
            "use std::time::Duration;",
        ] {
            assert_eq!(found(id, text), [], "{text}");
        }
        let manifest = "[dependencies]\ntime = \"1\"\ntokio.workspace = true\n[dev-dependencies]\nfastrand = \"2\"\n";
        assert_eq!(
            found("crates/factum-event/Cargo.toml", manifest),
            [("pure", 3)]
        );
    }

    #[test]
    fn unfinished_work_is_found() {
        let path = "tests/tests/consumer.rs";
        for text in [
            "fn f() { todo!() }",
            "fn f() { unimplemented!(\"later\") }",
            "#[ignore]\n",
            "#[ignore = \"slow\"]\n",
            "#[cfg_attr(windows, ignore)]\n",
        ] {
            assert_eq!(found(path, text), [("unfinished", 1)], "{text}");
        }
        assert_eq!(found(path, "// todo!()\nlet a = \"#[ignore]\";"), []);
    }
}
