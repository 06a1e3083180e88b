//! `factum doctor`: are the rules kept?

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use factum_runtime::doctor::{Check, Examination, Verdict, examine};
use factum_runtime::{Config, KafkaSettings};
use serde_json::json;

use crate::outcome::{Exit, Failure, Report};
use crate::plain;
use crate::target::{Target, Trouble};

const SCHEMA: &str = "factum.doctor/1";

#[derive(Debug, Args)]
#[command(
    after_help = "What failed comes first, then warnings, then what is well. Each says where, why it matters and what to do. It changes \
                  nothing, and each look has two seconds.\n\n\
                  With KAFKA_BROKERS and its kin, as the services have them, the dedup window is compared with what the topics of \
                  every known consumer keep; it takes the right DescribeConfigs.\n\n\
                  Exit codes: 0 nothing has failed, there may be warnings; 1 something has; 2 wrong usage, or Kafka's settings can't \
                  be used; 3 the database is away.\n\n\
                  Example:\n  DATABASE_URL=postgres://… KAFKA_BROKERS=kafka-1:9092 KAFKA_SECURITY_PROTOCOL=SSL factum doctor"
)]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
    /// Name transactions that have been open for longer than this
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(0..=86_400))]
    open_for: u32,
}

pub(crate) fn run(options: &Options) -> Result<Report, Failure> {
    options.target.report(SCHEMA, async |db| {
        let kafka = kafka()?;
        let examination = Examination {
            kafka: kafka.as_ref(),
            open_for: Duration::from_secs(u64::from(options.open_for)),
        };
        let checks = examine(db, &examination).await?;
        let count = |verdict| {
            checks
                .iter()
                .filter(|check| check.verdict == verdict)
                .count()
        };
        let (ok, warnings, failed) = (
            count(Verdict::Ok),
            count(Verdict::Warning),
            count(Verdict::Failed),
        );
        let exit = match failed {
            0 => Exit::Done,
            _ => Exit::Failed,
        };
        let text = if options.target.json() {
            let object = json!({
                "schema": SCHEMA,
                "ok": exit == Exit::Done,
                "failed": failed,
                "warnings": warnings,
                "checks": checks.iter().map(json_object).collect::<Vec<_>>(),
            });
            plain::line(&object.to_string()).into_owned()
        } else {
            let mut text: String = checks.iter().map(told).collect();
            let _ = write!(
                text,
                "{} checks: {ok} ok, {warnings} warning{}, {failed} failed",
                checks.len(),
                if warnings == 1 { "" } else { "s" },
            );
            text
        };
        Ok(Report {
            text,
            exit,
            json: None,
        })
    })
}

/// The brokers, from the environment as a service reads it; nothing without KAFKA_BROKERS.
fn kafka() -> Result<Option<KafkaSettings>, Trouble> {
    let is_set = |name: &str| std::env::var(name).is_ok_and(|value| !value.trim().is_empty());
    if !is_set("KAFKA_BROKERS") {
        return Ok(None);
    }
    let ours = |name: &str| name.starts_with("KAFKA_") || name == "FACTUM_PROFILE";
    let mut variables: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| ours(name))
        .collect();
    // The database has been reached already, by a URL that may have another name.
    for (name, value) in [
        ("DATABASE_URL", "postgres://localhost/unused"),
        ("FACTUM_SERVICE", "factum-doctor"),
    ] {
        variables.push((name.to_owned(), value.to_owned()));
    }
    match Config::from_vars(variables) {
        Ok(config) => Ok(Some(config.kafka)),
        Err(error) => Err(Trouble::Refused {
            exit: Exit::Usage,
            code: "DOCTOR-KAFKA-SETTINGS",
            what: error.to_string(),
            place: "the environment".to_owned(),
            why: "with KAFKA_BROKERS set, the topics are looked at, too".to_owned(),
            mend: "set KAFKA_BROKERS and its kin as the services have them, or unset it".to_owned(),
        }),
    }
}

fn sign(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ok => "ok",
        Verdict::Warning => "warn",
        Verdict::Failed => "FAIL",
    }
}

fn told(check: &Check) -> String {
    let mut text = format!(
        "{:<4}  {:<12}  {}\n",
        sign(check.verdict),
        check.name,
        plain::line(&check.what)
    );
    for (name, said) in [
        ("where", check.place.as_str()),
        ("why", check.why),
        ("mend", check.mend.as_str()),
    ] {
        if !said.is_empty() {
            let _ = writeln!(text, "      {name:<12}  {}", plain::line(said));
        }
    }
    text
}

fn json_object(check: &Check) -> serde_json::Value {
    json!({
        "name": check.name,
        "verdict": sign(check.verdict).to_lowercase(),
        "what": check.what,
        "where": check.place,
        "why": check.why,
        "mend": check.mend,
    })
}
