//! A report as a picture: bars side by side, as SVG that is readable on light and dark pages.

use std::fmt::Write as _;

use crate::report::{Entry, Report, bare_version, rounded, thousands};

const WIDTH: u32 = 760;
const LABELS: u32 = 150;
/// The longest bar; to its right stand its number and the ratio.
const LONGEST: f64 = 430.0;
const BAR: u32 = 18;
const GROUP: u32 = 62;
const HEAD: u32 = 44;
const FOOT: u32 = 34;

/// The whole picture.
pub(crate) fn svg(report: &Report) -> String {
    let compared: Vec<(&Entry, f64)> = report
        .results
        .iter()
        .filter_map(|entry| Some((entry, entry.beside?)))
        .collect();
    let latencies: Vec<&Entry> = report
        .results
        .iter()
        .filter(|entry| entry.p99_ms.is_some())
        .collect();
    let most = compared
        .iter()
        .map(|(entry, beside)| entry.events_per_second.max(*beside))
        .fold(1.0, f64::max);
    let height = HEAD + GROUP * compared.len() as u32 + 24 * latencies.len() as u32 + FOOT;

    let mut svg = String::new();
    let mut put = |line: String| {
        // Writing to a string can't fail.
        let _ = writeln!(svg, "{line}");
    };
    put(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\">"
    ));
    put("<title>Factum beside raw loops of the same work, events per second</title>".to_owned());
    put("<style>
  text { fill: #1f2328 } .quiet { fill: #59636e }
  .factum { fill: #0969da } .raw { fill: #afb8c1 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .quiet { fill: #9198a1 }
    .factum { fill: #4493f8 } .raw { fill: #656c76 }
  }
</style>"
        .to_owned());
    put(format!(
        "<rect class=\"factum\" x=\"{LABELS}\" y=\"12\" width=\"12\" height=\"12\"/>\
         <text x=\"{}\" y=\"22\">Factum</text>\
         <rect class=\"raw\" x=\"{}\" y=\"12\" width=\"12\" height=\"12\"/>\
         <text x=\"{}\" y=\"22\">raw loop of the same work</text>\
         <text class=\"quiet\" x=\"{}\" y=\"22\">events per second</text>\
         <text class=\"quiet\" x=\"{}\" y=\"22\" text-anchor=\"end\">ratio</text>",
        LABELS + 18,
        LABELS + 90,
        LABELS + 108,
        LABELS + 290,
        WIDTH - 10,
    ));
    let mut y = HEAD;
    for (entry, beside) in compared {
        put(format!(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            LABELS - 12,
            y + BAR + 5,
            escaped(&entry.name)
        ));
        for (class, value, y) in [
            ("factum", entry.events_per_second, y),
            ("raw", beside, y + BAR + 2),
        ] {
            let width = rounded(value / most * LONGEST, 1);
            put(format!(
                "<rect class=\"{class}\" x=\"{LABELS}\" y=\"{y}\" width=\"{width}\" height=\"{BAR}\" rx=\"2\"/>\
                 <text x=\"{}\" y=\"{}\">{}</text>",
                rounded(f64::from(LABELS) + width + 8.0, 1),
                y + 14,
                thousands(value)
            ));
        }
        if let Some(ratio) = entry.ratio {
            put(format!(
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" font-weight=\"600\">{ratio:.3}</text>",
                WIDTH - 10,
                y + BAR + 5
            ));
        }
        y += GROUP;
    }
    for entry in latencies {
        let (p50, p99) = (
            entry.p50_ms.unwrap_or_default(),
            entry.p99_ms.unwrap_or_default(),
        );
        put(format!(
            "<text x=\"{LABELS}\" y=\"{}\">{} at {}/s: p50 {p50:.1} ms, p99 {p99:.1} ms</text>",
            y + 6,
            escaped(&entry.name),
            thousands(entry.events_per_second)
        ));
        y += 24;
    }
    put(format!(
        "<text class=\"quiet\" x=\"{LABELS}\" y=\"{}\" font-size=\"11\">{} cores, PostgreSQL {} (fsync on), Kafka {}, {}</text>",
        y + 10,
        report.machine.cores,
        escaped(bare_version(&report.machine.postgresql)),
        escaped(&report.machine.kafka),
        escaped(&report.measured_on)
    ));
    put("</svg>".to_owned());
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    #[test]
    fn every_number_of_the_report_is_in_the_picture() {
        let svg = svg(&sample());
        for text in [
            ">45,000<",
            ">50,000<",
            ">0.900<",
            "publish-to-effect at 1,000/s: p50 12.3 ms, p99 31.0 ms",
            "width=\"430\"",
            "width=\"387\"",
            "2 cores, PostgreSQL 15.1 (fsync on), Kafka 4.3.1, 2026-12-01",
        ] {
            assert!(svg.contains(text), "{text} is not in\n{svg}");
        }
        assert_eq!(svg.matches("<rect class=\"factum\"").count(), 2);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn names_cannot_break_the_picture() {
        assert_eq!(escaped("a<b>&c"), "a&lt;b&gt;&amp;c");
    }
}
