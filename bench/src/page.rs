//! A report as the generated part of the page in the documentation.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use crate::report::{Entry, Report, bare_version, thousands};

const BEGIN: &str = "<!-- bench: made by `cargo xtask bench`, don't edit -->";
const END: &str = "<!-- bench: end -->";

/// The page with its generated part made anew.
pub(crate) fn renewed(page: &str, report: &Report) -> Result<String> {
    let (before, rest) = page
        .split_once(BEGIN)
        .with_context(|| format!("the page has no line `{BEGIN}`"))?;
    let (_, after) = rest
        .split_once(END)
        .with_context(|| format!("the page has no line `{END}`"))?;
    Ok(format!(
        "{before}{BEGIN}\n{}{END}{after}",
        generated(report)
    ))
}

fn generated(report: &Report) -> String {
    let machine = &report.machine;
    let mut text = String::new();
    let mut put = |line: String| {
        // Writing to a string can't fail.
        let _ = writeln!(text, "{line}");
    };
    put(format!(
        "Measured on {}: {} cores ({}), {} GiB, Linux {}; PostgreSQL {} with fsync on, Apache Kafka {}, librdkafka {}; \
         servers and contenders share the machine.\n",
        report.measured_on,
        machine.cores,
        machine.processor,
        machine.memory_gib,
        machine.kernel,
        bare_version(&machine.postgresql),
        machine.kafka,
        machine.librdkafka
    ));
    put("| | Factum, events/s | raw, events/s | ratio | goal | CPU per event, µs | raw | database's CPU per event, µs | raw | peak RSS, MiB | raw |".to_owned());
    put("|---|---|---|---|---|---|---|---|---|---|---|".to_owned());
    for entry in report.results.iter().filter(|e| e.beside.is_some()) {
        put(row(entry));
    }
    for entry in &report.results {
        let (Some(p50), Some(p99)) = (entry.p50_ms, entry.p99_ms) else {
            continue;
        };
        put(format!(
            "\n`{}` at {} events per second: p50 {p50:.1} ms, p99 {p99:.1} ms (goal: {}); {:.0} µs of CPU per event \
             for relay and consumer together, {:.0} MiB.",
            entry.name,
            thousands(entry.events_per_second),
            entry.goal_text(),
            entry.cpu_us,
            entry.rss_mib
        ));
    }
    text
}

fn row(entry: &Entry) -> String {
    let optional = |value: Option<f64>, places: usize| {
        value.map_or(String::new(), |value| format!("{value:.places$}"))
    };
    format!(
        "| {} | {} | {} | {} | {} | {:.1} | {} | {:.1} | {} | {:.0} | {} |",
        entry.name,
        thousands(entry.events_per_second),
        entry.beside.map_or(String::new(), thousands),
        optional(entry.ratio, 3),
        entry.goal.map_or(String::new(), |goal| format!("≥ {goal}")),
        entry.cpu_us,
        optional(entry.beside_cpu_us, 1),
        entry.database_cpu_us,
        optional(entry.beside_database_cpu_us, 1),
        entry.rss_mib,
        optional(entry.beside_rss_mib, 0),
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::picture;
    use crate::report::tests::sample;

    #[test]
    fn only_what_stands_between_the_marks_changes() {
        let page = format!("# Head\n\n{BEGIN}\nold\n{END}\n\nFoot\n");
        let renewed_once = renewed(&page, &sample()).unwrap();
        assert!(renewed_once.starts_with("# Head\n\n"));
        assert!(renewed_once.ends_with("\n\nFoot\n"));
        assert!(!renewed_once.contains("old"));
        assert!(renewed_once.contains(
            "| batch | 45,000 | 50,000 | 0.900 | ≥ 0.85 | 15.5 | 13.0 | 23.0 | 22.5 | 90 | 80 |"
        ));
        assert!(renewed_once.contains(
            "`publish-to-effect` at 1,000 events per second: p50 12.3 ms, p99 31.0 ms (goal: p99 ≤ 50 ms)"
        ));
        assert_eq!(renewed(&renewed_once, &sample()).unwrap(), renewed_once);
        renewed("no marks", &sample()).unwrap_err();
    }

    #[test]
    fn the_documentation_shows_what_its_file_holds() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let report = Report::read(&docs.join("bench.json")).unwrap();
        let page = fs::read_to_string(docs.join("performance.md")).unwrap();
        let is_page = renewed(&page, &report).unwrap() == page;
        let picture = fs::read_to_string(docs.join("bench.svg")).unwrap();
        let is_picture = picture::svg(&report) == picture;
        assert!(is_page && is_picture, "run `cargo xtask bench --render`");
    }
}
