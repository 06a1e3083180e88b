//! Which settings are refused, and that nothing secret shows.

use factum_kafka::{GroupProtocol, KafkaSettings, SaslMechanism, Security};
use secrecy::SecretString;

fn settings() -> KafkaSettings {
    KafkaSettings::new("127.0.0.1:9092", "billing")
}

fn rules(settings: &KafkaSettings) -> Vec<&'static str> {
    settings
        .check()
        .iter()
        .map(|problem| problem.rule())
        .collect()
}

#[test]
fn the_plain_settings_pass() {
    assert_eq!(settings().check(), []);
}

#[test]
fn a_producer_property_that_weakens_a_promise_is_refused_under_every_name_it_has() {
    for (property, value, rule) in [
        ("acks", "1", "PROD-1"),
        ("acks", "0", "PROD-1"),
        ("request.required.acks", "1", "PROD-1"),
        ("enable.idempotence", "false", "PROD-1"),
        ("enable.gapless.guarantee", "false", "PROD-1"),
        ("max.in.flight.requests.per.connection", "6", "PROD-1"),
        ("max.in.flight", "1000000", "PROD-1"),
        ("retries", "0", "PROD-1"),
        ("message.send.max.retries", "3", "PROD-1"),
        ("message.timeout.ms", "1000", "PROD-1"),
        ("delivery.timeout.ms", "1000", "PROD-1"),
        ("queuing.strategy", "lifo", "PROD-1"),
        ("queue.buffering.max.messages", "0", "PROD-1"),
        ("linger.ms", "5000", "PROD-1"),
        ("queue.buffering.max.ms", "5000", "PROD-1"),
        ("partitioner", "random", "PROD-2"),
        ("transactional.id", "x", "OBX-1"),
        ("delivery.report.only.error", "true", "OBX-5"),
        ("enable.ssl.certificate.verification", "false", "SEC-1"),
        ("ssl.endpoint.identification.algorithm", "none", "SEC-1"),
        ("security.protocol", "plaintext", "SEC-1"),
        ("sasl.password", "canary", "SEC-1"),
        ("bootstrap.servers", "elsewhere:9092", "CFG-2"),
        ("metadata.broker.list", "elsewhere:9092", "CFG-2"),
        ("client.id", "other", "SEC-2"),
        ("allow.auto.create.topics", "true", "CFG-5"),
        ("no.such.property", "1", "CFG-1"),
        ("linger.ms", "soon", "CFG-1"),
    ] {
        let mut settings = settings();
        settings
            .producer
            .insert(property.to_owned(), value.to_owned());
        let problems = settings.check();
        assert_eq!(problems.len(), 1, "{property}={value}: {problems:?}");
        assert_eq!(problems[0].rule(), rule, "{property}={value}");
        assert_eq!(problems[0].property(), property);
        let told = problems[0].to_string();
        assert!(told.starts_with(rule) && told.contains(property), "{told}");
        assert!(!told.contains("canary"), "{told}");
    }
}

#[test]
fn a_consumer_property_that_weakens_a_promise_is_refused() {
    for (property, value, rule) in [
        ("enable.auto.commit", "true", "CONS-2"),
        ("auto.commit.enable", "true", "CONS-2"),
        ("enable.auto.offset.store", "true", "CONS-2"),
        ("auto.commit.interval.ms", "5000", "CONS-2"),
        ("group.id", "mine", "CONS-1"),
        ("auto.offset.reset", "latest", "CONS-4"),
        ("group.protocol", "consumer", "CONS-1"),
        ("group.instance.id", "billing-1", "CONS-1"),
        ("enable.partition.eof", "true", "CONS-2"),
        ("enable.ssl.certificate.verification", "false", "SEC-1"),
        ("ssl.endpoint.identification.algorithm", "none", "SEC-1"),
        ("fetch.min.bytes", "many", "CFG-1"),
    ] {
        let mut settings = settings();
        settings
            .consumer
            .insert(property.to_owned(), value.to_owned());
        assert_eq!(rules(&settings), [rule], "{property}={value}");
    }
}

/// Public case 36b: 0 switches the commits off, it does not mean "as often as possible".
#[test]
fn case_36b_a_commit_interval_of_zero_is_refused() {
    let mut settings = settings();
    settings
        .consumer
        .insert("auto.commit.interval.ms".to_owned(), "0".to_owned());
    let problems = settings.check();
    assert_eq!(problems.len(), 1);
    assert!(problems[0].to_string().contains("switches the commits off"));
}

#[test]
fn what_weakens_nothing_passes() {
    let mut settings = settings();
    for (property, value) in [
        ("acks", "all"),
        ("acks", "-1"),
        ("enable.idempotence", "true"),
        ("max.in.flight", "1"),
        ("retries", "2147483647"),
        ("linger.ms", "5"),
        ("compression.codec", "none"),
        ("message.max.bytes", "2000000"),
        ("ssl.endpoint.identification.algorithm", "https"),
        ("ssl.certificate.location", "/etc/billing.pem"),
    ] {
        settings
            .producer
            .insert(property.to_owned(), value.to_owned());
        assert_eq!(rules(&settings), [""; 0], "{property}={value}");
    }
    for (property, value) in [
        ("enable.auto.commit", "false"),
        ("fetch.min.bytes", "1024"),
        ("queued.max.messages.kbytes", "16384"),
    ] {
        settings
            .consumer
            .insert(property.to_owned(), value.to_owned());
        assert_eq!(rules(&settings), [""; 0], "{property}={value}");
    }
}

#[test]
fn every_problem_is_told_at_once() {
    let mut settings = KafkaSettings::new(" ", "");
    settings.security = Security::Sasl {
        tls: true,
        mechanism: SaslMechanism::ScramSha512,
        username: String::new(),
        password: SecretString::from(""),
        ca_location: None,
    };
    settings.producer.insert("acks".to_owned(), "1".to_owned());
    settings
        .consumer
        .insert("group.id".to_owned(), "x".to_owned());
    assert_eq!(
        rules(&settings),
        ["CFG-2", "SEC-2", "SEC-2", "SEC-2", "PROD-1", "CONS-1"]
    );
    assert_eq!(rules(&KafkaSettings::new("a:1,,b:2", "x")), ["CFG-2"]);
    assert_eq!(rules(&KafkaSettings::new("a:1, b:2", "x")), ["CFG-2"]);
}

/// Public case 57: the password is in no `Debug`.
#[test]
fn case_57_no_secret_shows_in_debug() {
    let mut settings = settings();
    settings.security = Security::Sasl {
        tls: true,
        mechanism: SaslMechanism::Plain,
        username: "billing".to_owned(),
        password: SecretString::from("canary"),
        ca_location: None,
    };
    settings
        .producer
        .insert("ssl.key.password".to_owned(), "canary".to_owned());
    let shown = format!("{settings:?} {settings:#?}");
    assert!(!shown.contains("canary"), "{shown}");
    assert!(
        shown.contains("billing") && shown.contains("ssl.key.password"),
        "{shown}"
    );
}

#[test]
fn a_mechanism_is_read_as_it_is_written() {
    for mechanism in [
        SaslMechanism::Plain,
        SaslMechanism::ScramSha256,
        SaslMechanism::ScramSha512,
    ] {
        assert_eq!(mechanism.as_str().parse(), Ok(mechanism));
        assert_eq!(mechanism.as_str().to_lowercase().parse(), Ok(mechanism));
    }
    let told = "GSSAPI".parse::<SaslMechanism>().unwrap_err().to_string();
    assert!(told.contains("SCRAM-SHA-512"), "{told}");
}

#[test]
fn an_instance_is_a_name_that_kafka_takes() {
    let mut settings = settings();
    settings.instance = Some("billing-0".to_owned());
    assert_eq!(rules(&settings), [""; 0]);
    for name in ["", "a b", "a/b", &"x".repeat(250)] {
        settings.instance = Some(name.to_owned());
        assert_eq!(rules(&settings), ["CONS-1"], "{name}");
    }
}

#[test]
fn what_the_brokers_set_is_not_set_beside_them() {
    let mut settings = settings();
    for property in ["session.timeout.ms", "heartbeat.interval.ms"] {
        settings
            .consumer
            .insert(property.to_owned(), "6000".to_owned());
    }
    assert_eq!(rules(&settings), [""; 0]);
    settings.group_protocol = GroupProtocol::Consumer;
    assert_eq!(rules(&settings), ["CFG-1", "CFG-1"]);
}
