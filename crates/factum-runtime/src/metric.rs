//! The names of what is counted and measured, as `docs/metrics.md` lists them: they are public, and stay.
//!
//! They go to the recorder of the `metrics` crate that the program installs; without one each costs a look at an
//! atomic. Names of counters end in `_total`, those of durations in `_seconds`.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
}

struct Metric {
    name: &'static str,
    kind: Kind,
    #[cfg_attr(not(test), expect(dead_code, reason = "the page's test reads it"))]
    labels: &'static str,
    text: &'static str,
}

macro_rules! metrics {
    ($($constant:ident = $name:literal, $kind:ident by $labels:literal: $text:literal;)*) => {
        $(#[doc = $text] pub(crate) const $constant: &str = $name;)*

        /// All of them, in the order of the documentation.
        const ALL: &[Metric] = &[$(Metric { name: $name, kind: Kind::$kind, labels: $labels, text: $text }),*];
    };
}

metrics! {
    PARKED_TOTAL = "factum_parked_total", Counter by "consumer":
        "Events that were parked, because they failed or because they wait behind one that did.";
    PARKED_EVENTS = "factum_parked_events", Gauge by "consumer":
        "Events that are parked now.";
    PARKED_KEYS = "factum_parked_keys", Gauge by "consumer":
        "Keys that are parked now.";
    HELD_KEYS = "factum_held_keys", Gauge by "consumer":
        "Keys that wait for a person, their attempts being over.";
    PARKED_OLDEST_SECONDS = "factum_parked_oldest_seconds", Gauge by "consumer":
        "Seconds since the key that waits longest was parked; 0 when none waits.";
    RETRIES_TOTAL = "factum_retries_total", Counter by "consumer, outcome":
        "Attempts after the first, by what came of them (handled, duplicate, failed, dead_letter, held), and events sent to a retry topic (retry_topic).";
    DEAD_LETTERS_TOTAL = "factum_dead_letters_total", Counter by "consumer, reason":
        "Records that were set aside.";
    DEAD_LETTERS_OPEN = "factum_dead_letters_open", Gauge by "consumer, reason":
        "Dead letters that are open now.";
    REPLAYED_TOTAL = "factum_replayed_total", Counter by "consumer, outcome":
        "Dead letters that a replay took up, by what came of them: handled, duplicate, failed.";
    GAPS_TOTAL = "factum_gaps_total", Counter by "consumer, topic":
        "Gaps behind which a consumer went on: records of a partition that were gone before it read them.";
    CALLS = "factum_calls", Gauge by "endpoint, state":
        "Calls that aren't finished, and calls that wait for a person, by state: pending, answered, set_aside, unknown.";
    CALLS_SENT_TOTAL = "factum_calls_sent_total", Counter by "endpoint, outcome":
        "Attempts to call, by what came of them: answered, retry, set_aside, unknown.";
    CALL_BREAKER_OPEN = "factum_call_breaker_open", Gauge by "endpoint":
        "1 while the circuit breaker keeps calls back, else 0.";
    RELAY_SLOTS = "factum_relay_slots", Gauge by "service":
        "Slots of the outbox that this relay holds, of 64.";
    RELAY_PUBLISHED_TOTAL = "factum_relay_published_total", Counter by "service":
        "Outbox rows that this relay has sent, acknowledged by the broker and marked.";
    RELAY_FAILED_TOTAL = "factum_relay_failed_total", Counter by "service":
        "Sends of a row that were not acknowledged, each attempt counted.";
    RELAY_SET_ASIDE_TOTAL = "factum_relay_set_aside_total", Counter by "service":
        "Outbox rows that this relay gave up after their attempts.";
    RELAY_PRODUCER_REBUILDS_TOTAL = "factum_relay_producer_rebuilds_total", Counter by "service":
        "Producers thrown away, after a refusal, a lost numbering or a batch that ran out of time.";
    RELAY_WAKEUPS_TOTAL = "factum_relay_wakeups_total", Counter by "by, service":
        "Looks at an outbox that had nothing to send, by what made the relay look again: poll, notification.";
    OUTBOX_UNPUBLISHED = "factum_outbox_unpublished", Gauge by "service":
        "Outbox rows that wait to be sent.";
    OUTBOX_OLDEST_SECONDS = "factum_outbox_oldest_seconds", Gauge by "service":
        "Seconds since the first of them was written; 0 when none waits.";
    OUTBOX_SET_ASIDE = "factum_outbox_set_aside", Gauge by "service":
        "Outbox rows that were given up and wait for a person.";
}

/// Tells the program's recorder what each means.
pub(crate) fn describe() {
    for metric in ALL {
        match metric.kind {
            Kind::Counter => metrics::describe_counter!(metric.name, metric.text),
            Kind::Gauge => metrics::describe_gauge!(metric.name, metric.text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");

    #[test]
    fn the_page_has_each_metric_with_its_labels_and_meaning_and_no_other() {
        let page = std::fs::read_to_string(PAGE).expect("docs/metrics.md");
        let rows: Vec<&str> = page
            .lines()
            .filter(|line| line.starts_with("| `factum_"))
            .collect();
        let expected: Vec<String> = ALL
            .iter()
            .map(|metric| {
                let kind = format!("{:?}", metric.kind).to_lowercase();
                format!(
                    "| `{}` | {kind} | {} | {} |",
                    metric.name, metric.labels, metric.text
                )
            })
            .collect();
        assert_eq!(rows, expected, "docs/metrics.md and metric.rs differ");
    }

    #[test]
    fn counters_end_in_total_and_nothing_else_does() {
        for metric in ALL {
            assert_eq!(
                metric.name.ends_with("_total"),
                metric.kind == Kind::Counter,
                "{}",
                metric.name
            );
        }
    }
}
