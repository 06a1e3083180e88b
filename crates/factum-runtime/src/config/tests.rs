//! Every setting, right and wrong, and that no secret shows.

use super::*;

const CANARY: &str = "cAnArY-pa55word";

fn vars(changes: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut vars = BTreeMap::from([
        (
            DATABASE_URL,
            "postgres://app:pw@db.example:5433/orders?sslmode=verify-full",
        ),
        (KAFKA_BROKERS, "kafka-1:9092, kafka-2:9092"),
        (SERVICE, "billing"),
        (SECURITY_PROTOCOL, "SASL_SSL"),
        (SASL_MECHANISM, "SCRAM-SHA-512"),
        (SASL_USERNAME, "billing"),
        (SASL_PASSWORD, "pw"),
    ]);
    for (name, value) in changes {
        if *value == "-" {
            vars.remove(name);
        } else {
            vars.insert(name, value);
        }
    }
    vars.into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn development(changes: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut all = vec![
        (PROFILE, "development"),
        (DATABASE_URL, "postgres://app:pw@localhost:5432/orders"),
        (SECURITY_PROTOCOL, "-"),
        (SASL_MECHANISM, "-"),
        (SASL_USERNAME, "-"),
        (SASL_PASSWORD, "-"),
    ];
    all.extend_from_slice(changes);
    vars(&all)
}

fn read(vars: Vec<(String, String)>) -> Config {
    match Config::from_vars(vars) {
        Ok(config) => config,
        Err(error) => panic!("{error}"),
    }
}

#[track_caller]
fn refused(vars: Vec<(String, String)>) -> ConfigError {
    Config::from_vars(vars).expect_err("the configuration should be refused")
}

/// The one problem of a configuration that has one.
#[track_caller]
fn only_problem(changes: &[(&str, &str)]) -> Problem {
    let error = refused(vars(changes));
    assert_eq!(error.problems().len(), 1, "{error}");
    error.problems()[0].clone()
}

#[test]
fn a_production_configuration_is_read() {
    let config = read(vars(&[
        (MAX_CONNECTIONS, "40"),
        (ACQUIRE_TIMEOUT, "3"),
        (LOCK_TIMEOUT, "2"),
        (SHUTDOWN_DEADLINE, "50"),
        (DEDUP_WINDOW, "90"),
        (SSL_CA_LOCATION, "/etc/ca.pem"),
        ("KAFKA_PRODUCER_LINGER_MS", "7"),
        ("KAFKA_CONSUMER_FETCH_MAX_BYTES", "1000000"),
    ]));
    assert_eq!(config.service, "billing");
    assert_eq!(config.profile, Profile::Production);
    assert_eq!(config.kafka.brokers, "kafka-1:9092,kafka-2:9092");
    assert_eq!(config.kafka.client_id, "billing", "SEC-2");
    assert_eq!(config.database.application_name, "billing");
    assert_eq!(config.max_connections, Some(40));
    assert_eq!(config.database.max_connections, 40);
    assert_eq!(config.database.acquire_timeout, Duration::from_secs(3));
    assert_eq!(config.database.lock_timeout, Duration::from_secs(2));
    assert_eq!(config.shutdown_deadline, Duration::from_secs(50));
    assert_eq!(config.window.keep_days, 90);
    assert!(!config.create_topics, "CFG-5: off in production");
    assert_eq!(config.kafka.producer["linger.ms"], "7");
    assert_eq!(config.kafka.consumer["fetch.max.bytes"], "1000000");
    let Security::Sasl {
        tls: true,
        mechanism: SaslMechanism::ScramSha512,
        username,
        password,
        ca_location,
    } = &config.kafka.security
    else {
        panic!("{:?}", config.kafka.security);
    };
    assert_eq!(username, "billing");
    assert_eq!(password.expose_secret(), "pw");
    assert_eq!(ca_location.as_deref(), Some("/etc/ca.pem".as_ref()));
    assert_eq!(config.problems(), []);
}

#[test]
fn a_development_configuration_needs_three_settings() {
    let config = read(development(&[]));
    assert!(matches!(config.kafka.security, Security::Plaintext));
    assert!(config.create_topics);
    assert_eq!(config.max_connections, None);
    assert_eq!(config.shutdown_deadline, Duration::from_secs(25));
    assert_eq!(config.window.keep_days, 30);
    assert_eq!(config.problems(), []);
}

#[test]
fn an_empty_environment_names_everything_that_is_missing() {
    let error = refused(Vec::new());
    assert_eq!(
        error.to_string(),
        "the configuration cannot be used: 4 problems\n\
         \n\
         error[CFG-1]: FACTUM_SERVICE is not set\n  \
           where: the environment\n  \
           mend:  set it, for example FACTUM_SERVICE=billing\n\
         \n\
         error[CFG-1]: DATABASE_URL is not set\n  \
           where: the environment\n  \
           mend:  set it, for example DATABASE_URL=postgres://user:password@host:5432/database?sslmode=verify-full\n\
         \n\
         error[CFG-1]: KAFKA_BROKERS is not set\n  \
           where: the environment\n  \
           mend:  set it, for example KAFKA_BROKERS=localhost:9092\n\
         \n\
         error[SEC-1]: KAFKA_SECURITY_PROTOCOL is not set, and only encrypted connections to Kafka are allowed outside development\n  \
           where: the environment variable KAFKA_SECURITY_PROTOCOL\n  \
           mend:  write KAFKA_SECURITY_PROTOCOL=SASL_SSL (or SSL); for a plaintext broker on your own machine write FACTUM_PROFILE=development"
    );
    assert_eq!(
        format!("{error:?}"),
        error.to_string(),
        "main() prints Debug"
    );
}

#[test]
fn all_problems_come_at_once() {
    let error = refused(vars(&[
        (SERVICE, "Billing Service"),
        (KAFKA_BROKERS, "kafka-1"),
        (DATABASE_URL, "mysql://db/orders"),
        (SASL_MECHANISM, "GSSAPI"),
        (SASL_PASSWORD, "-"),
        (MAX_CONNECTIONS, "0"),
        (SHUTDOWN_DEADLINE, "soon"),
        (DEDUP_WINDOW, "-1"),
        (CREATE_TOPICS, "yes"),
        ("FACTUM_DEDUP_WINDOW_DAY", "30"),
        ("KAFKA_PRODUCER_ACKS", "1"),
        ("KAFKA_CONSUMER_ENABLE_AUTO_COMMIT", "true"),
    ]));
    assert_eq!(error.problems().len(), 12, "{error}");
}

#[test]
fn a_profile_is_one_of_two_words_and_gates_nothing_while_it_is_wrong() {
    let problem = only_problem(&[(PROFILE, "prod")]);
    assert_eq!(problem.rule(), "CFG-1");
    assert!(problem.what().contains("FACTUM_PROFILE"));
    assert!(problem.mend().contains("FACTUM_PROFILE=development"));
    assert_eq!(
        refused(development(&[(PROFILE, "dev")])).problems().len(),
        1,
        "plaintext is not judged while the profile is unknown"
    );
}

#[test]
fn numbers_have_limits() {
    for (name, wrong) in [
        (MAX_CONNECTIONS, ["1", "1001", "12.5"]),
        (ACQUIRE_TIMEOUT, ["0", "301", "1s"]),
        (LOCK_TIMEOUT, ["0", "301", "-5"]),
        (SHUTDOWN_DEADLINE, ["0", "3601", "25s"]),
        (DEDUP_WINDOW, ["0", "3651", "4294967296"]),
    ] {
        for value in wrong {
            let problem = only_problem(&[(name, value)]);
            assert!(problem.what().contains(name), "{problem}");
            assert!(
                problem.mend().contains("write a whole number of"),
                "{problem}"
            );
        }
    }
}

#[test]
fn empty_and_blank_values_count_as_none() {
    assert_eq!(
        only_problem(&[(SERVICE, " ")]).what(),
        "FACTUM_SERVICE is not set"
    );
    assert_eq!(read(vars(&[(MAX_CONNECTIONS, "")])).max_connections, None);
    assert_eq!(read(vars(&[(DEDUP_WINDOW, "7\n")])).window.keep_days, 7);
}

#[test]
fn a_service_name_is_lower_case_kebab() {
    for right in ["billing", "order-intake", "billing2", "a", "x-1"] {
        assert_eq!(read(vars(&[(SERVICE, right)])).service, right);
    }
    let long = "a".repeat(64);
    for wrong in [
        "Billing",
        "billing_service",
        "2billing",
        "-billing",
        "billing-",
        "a--b",
        "büro",
        &long,
    ] {
        let problem = only_problem(&[(SERVICE, wrong)]);
        assert_eq!(problem.rule(), "CONS-1", "{problem}");
        assert!(problem.mend().contains("billing, order-intake"));
    }
}

#[test]
fn brokers_are_host_and_port() {
    for right in [
        "a:1",
        "a:9092,b:9092",
        "10.0.0.1:9092",
        "[::1]:9092",
        "a_b.svc.local:65535",
    ] {
        assert_eq!(read(vars(&[(KAFKA_BROKERS, right)])).kafka.brokers, right);
    }
    for wrong in [
        "a",
        "a:",
        ":9092",
        "a:0",
        "a:65536",
        "a:+1",
        "PLAINTEXT://a:9092",
        "u:p@a:9092",
        "[::g]:1",
        "a b:1",
    ] {
        let problem = only_problem(&[(KAFKA_BROKERS, wrong)]);
        assert_eq!(problem.what(), "KAFKA_BROKERS is not host:port");
    }
    let error = refused(vars(&[(KAFKA_BROKERS, "a:1,,b")]));
    let texts: Vec<&str> = error.problems().iter().map(Problem::what).collect();
    assert_eq!(
        texts,
        [
            "entry 2 of 3 in KAFKA_BROKERS is not host:port",
            "entry 3 of 3 in KAFKA_BROKERS is not host:port"
        ]
    );
}

#[test]
fn rule_sec_1_plaintext_to_kafka_is_refused_outside_development() {
    for protocol in ["PLAINTEXT", "SASL_PLAINTEXT"] {
        let changes = [
            (SECURITY_PROTOCOL, protocol),
            (KAFKA_BROKERS, "localhost:9092"),
        ];
        let error = refused(vars(&changes));
        let problem = &error.problems()[0];
        assert_eq!(problem.rule(), "SEC-1");
        assert!(problem.what().starts_with(protocol), "{problem}");
        assert!(problem.mend().contains("SASL_SSL"), "{problem}");
        assert!(problem.mend().contains("FACTUM_PROFILE=development"));
    }
    let mut changed = read(vars(&[]));
    changed.kafka.security = Security::Plaintext;
    assert_eq!(
        changed.problems()[0].rule(),
        "SEC-1",
        "the start asks again"
    );
}

#[test]
fn rule_sec_1_a_distant_database_needs_tls_outside_development() {
    for url in [
        "postgres://a:b@db.example/orders",
        "postgres://a:b@db.example/orders?sslmode=prefer",
        "postgres://a:b@db.example/orders?sslmode=disable",
        "postgres://a:b@db.example/orders?sslmode=require&sslmode=allow",
        "postgres://a:b@localhost/orders?host=db.example",
        "postgres://a:b@10.0.0.1/orders",
    ] {
        let problem = only_problem(&[(DATABASE_URL, url)]);
        assert_eq!(problem.rule(), "SEC-1", "{url}");
        assert!(problem.mend().contains("sslmode=verify-full"));
        read(development(&[(DATABASE_URL, url)]));
    }
    for url in [
        "postgres://a:b@db.example/orders?sslmode=require",
        "postgres://a:b@db.example/orders?ssl-mode=verify-ca",
        "postgres://a:b@db.example/orders?sslmode=VERIFY-FULL",
        "postgres://a:b@localhost/orders",
        "postgres://a:b@127.0.0.1:5433/orders",
        "postgres://a:b@[::1]/orders",
        "postgresql://a:b@%2Frun%2Fpostgresql/orders",
        "postgres://a:b@db.example/orders?host=/run/postgresql",
    ] {
        read(vars(&[(DATABASE_URL, url)]));
    }
}

#[test]
fn the_drivers_fallback_for_sslmode_is_judged_too() {
    let distant = (DATABASE_URL, "postgres://a:b@db.example/orders");
    let config = read(vars(&[distant, ("PGSSLMODE", "require")]));
    assert!(
        config
            .database
            .url
            .expose_secret()
            .ends_with("?sslmode=require")
    );
    assert_eq!(config.problems(), []);
    assert_eq!(
        only_problem(&[distant, ("PGSSLMODE", "allow")]).rule(),
        "SEC-1"
    );
    assert_eq!(
        only_problem(&[distant, ("PGSSLMODE", "on")]).rule(),
        "CFG-1"
    );
}

#[test]
fn a_database_url_is_whole() {
    for (url, what) in [
        ("db.example/orders", "DATABASE_URL is not a PostgreSQL URL"),
        ("mysql://db/orders", "DATABASE_URL is not a PostgreSQL URL"),
        (
            "postgres://a:p/w@db/orders",
            "DATABASE_URL is not a PostgreSQL URL",
        ),
        (
            "postgres://a:12/34@db/orders",
            "DATABASE_URL is not a PostgreSQL URL",
        ),
        (
            "postgres://a:12#34@db/orders",
            "DATABASE_URL is not a PostgreSQL URL",
        ),
        ("postgres://a:b@localhost", "DATABASE_URL names no database"),
        (
            "postgres://a:b@localhost/",
            "DATABASE_URL names no database",
        ),
        ("postgres:///orders", "DATABASE_URL names no host"),
        (
            "postgres://a:b@localhost/orders?channel_binding=require",
            "DATABASE_URL has the parameter `channel_binding`, which the database driver does not know",
        ),
        (
            "postgres://a:b@localhost/orders?sslmode=on",
            "the sslmode of the database is none that PostgreSQL has",
        ),
    ] {
        assert_eq!(only_problem(&[(DATABASE_URL, url)]).what(), what);
    }
    read(vars(&[(
        DATABASE_URL,
        "postgres://a:b@localhost?dbname=orders&options[search_path]=app",
    )]));
}

#[test]
fn a_login_is_complete_and_has_an_effect() {
    let error = refused(vars(&[
        (SASL_MECHANISM, "-"),
        (SASL_USERNAME, "-"),
        (SASL_PASSWORD, "-"),
    ]));
    assert_eq!(error.problems().len(), 3, "{error}");
    assert!(
        only_problem(&[(SASL_PASSWORD, "pw\n")])
            .what()
            .ends_with("line break")
    );
    let spaced = read(vars(&[(SASL_PASSWORD, " pw ")]));
    let Security::Sasl { password, .. } = spaced.kafka.security else {
        panic!("a login");
    };
    assert_eq!(password.expose_secret(), " pw ");
    let error = refused(vars(&[(SECURITY_PROTOCOL, "SSL")]));
    assert_eq!(
        error.problems().len(),
        3,
        "a login that nobody uses: {error}"
    );
    let error = refused(development(&[(SSL_CA_LOCATION, "/ca.pem")]));
    assert_eq!(error.problems()[0].rule(), "SEC-1");
    assert_eq!(only_problem(&[(SECURITY_PROTOCOL, "TLS")]).rule(), "CFG-1");
}

#[test]
fn weakened_properties_are_refused_by_variable_and_rule() {
    for (name, value, rule) in [
        ("KAFKA_PRODUCER_ACKS", "1", "PROD-1"),
        ("KAFKA_PRODUCER_ENABLE_IDEMPOTENCE", "false", "PROD-1"),
        (
            "KAFKA_PRODUCER_MAX_IN_FLIGHT_REQUESTS_PER_CONNECTION",
            "6",
            "PROD-1",
        ),
        ("KAFKA_CONSUMER_ENABLE_AUTO_COMMIT", "true", "CONS-2"),
        ("KAFKA_CONSUMER_AUTO_COMMIT_INTERVAL_MS", "0", "CONS-2"),
        ("KAFKA_CONSUMER_GROUP_ID", "mine", "CONS-1"),
        (
            "KAFKA_CONSUMER_ENABLE_SSL_CERTIFICATE_VERIFICATION",
            "false",
            "SEC-1",
        ),
        ("KAFKA_PRODUCER_CLIENT_ID", "shared", "SEC-2"),
        ("KAFKA_PRODUCER_LINGER_MSS", "5", "CFG-1"),
    ] {
        let problem = only_problem(&[(name, value)]);
        assert_eq!(problem.rule(), rule, "{problem}");
        assert_eq!(problem.place(), format!("the environment variable {name}"));
        assert_eq!(problem.mend(), format!("unset {name}"));
        assert!(!problem.what().contains(rule), "{problem}");
    }
}

#[test]
fn a_misspelt_setting_is_refused_with_the_one_that_was_meant() {
    for (wrong, meant) in [
        ("FACTUM_PROFIL", Some(PROFILE)),
        ("FACTUM_SHUTDOWN_DEADLINE_SECOND", Some(SHUTDOWN_DEADLINE)),
        ("FACTUM_DATABASE_MAX_CONECTIONS", Some(MAX_CONNECTIONS)),
        ("KAFKA_BROKER", Some(KAFKA_BROKERS)),
        ("KAFKA_SASL_USER_NAME", Some(SASL_USERNAME)),
        ("FACTUM_COLOUR", None),
    ] {
        let problem = only_problem(&[(wrong, "x")]);
        assert_eq!(problem.what(), format!("{wrong} is not a setting"));
        match meant {
            Some(meant) => {
                assert_eq!(
                    problem.mend(),
                    format!("did you mean {meant}? Else unset it")
                );
            }
            None => assert!(problem.mend().contains(DEDUP_WINDOW), "{problem}"),
        }
    }
}

#[test]
fn variables_of_others_are_left_alone() {
    let config = read(vars(&[
        ("PATH", "/bin"),
        ("KAFKA_HEAP_OPTS", "-Xmx1g"),
        ("KAFKA_HOME", "/opt/kafka"),
        // What Kubernetes sets for Services called kafka, kafka-producer and factum.
        ("KAFKA_SERVICE_HOST", "10.0.0.1"),
        ("KAFKA_SERVICE_PORT", "9092"),
        ("KAFKA_SERVICE_PORT_CLIENTS", "9092"),
        ("KAFKA_PORT", "tcp://10.0.0.1:9092"),
        ("KAFKA_PORT_9092_TCP", "tcp://10.0.0.1:9092"),
        ("KAFKA_PORT_9092_TCP_PROTO", "tcp"),
        ("KAFKA_PORT_9092_TCP_PORT", "9092"),
        ("KAFKA_PORT_9092_TCP_ADDR", "10.0.0.1"),
        ("KAFKA_PRODUCER_PORT", "tcp://10.0.0.1:9092"),
        ("FACTUM_SERVICE_HOST", "10.0.0.1"),
        ("FACTUM_TEST_DATABASE_URL", "postgres://x"),
    ]));
    assert_eq!(config.unused_variables(), ["KAFKA_HEAP_OPTS", "KAFKA_HOME"]);
    assert!(config.kafka.producer.is_empty());
}

#[test]
fn case_57_no_secret_shows_in_debug() {
    let config = read(vars(&[
        (
            DATABASE_URL,
            "postgres://app:cAnArY-pa55word@db.example/orders?sslmode=require&password=cAnArY-pa55word&options=-c%20x.y=cAnArY-pa55word",
        ),
        (SASL_PASSWORD, CANARY),
        ("KAFKA_PRODUCER_SSL_KEY_PASSWORD", CANARY),
        ("KAFKA_CONSUMER_SSL_KEYSTORE_PASSWORD", CANARY),
        ("KAFKA_CONSUMER_SASL_OAUTHBEARER_CONFIG", CANARY),
    ]));
    for shown in [
        format!("{config:?}"),
        format!("{config:#?}"),
        format!("{:?}", config.database),
        format!("{:?}", config.kafka),
        config.database_place(),
    ] {
        assert!(!shown.contains(CANARY), "{shown}");
    }
    assert_eq!(
        config.database_place(),
        "PostgreSQL at db.example:5432/orders"
    );
    assert!(
        format!("{config:?}").contains("ssl.key.password"),
        "names may show"
    );
}

/// A secret may also stand in the wrong setting, so no error quotes any value.
#[test]
fn case_57_no_value_shows_in_an_error() {
    let mut named = SETTINGS.map(str::to_owned).to_vec();
    named.extend(
        [
            "KAFKA_PRODUCER_ACKS",
            "KAFKA_PRODUCER_LINGER_MS",
            "KAFKA_CONSUMER_AUTO_COMMIT_INTERVAL_MS",
            "KAFKA_CONSUMER_GROUP_ID",
            "KAFKA_CONSUMER_NO_SUCH_PROPERTY",
            "KAFKA_BROKER",
            "FACTUM_SECRET",
            "PGSSLMODE",
        ]
        .map(str::to_owned),
    );
    for value in [
        CANARY.to_owned(),
        format!("{CANARY}\n"),
        format!("postgres://app:{CANARY}@/orders"),
        format!("postgres://app:{CANARY}@db:x/orders"),
        format!("postgres://app:12/{CANARY}@db/orders"),
        format!("postgres://app:12?{CANARY}@db/orders"),
        format!("postgres://app:{CANARY}@db/orders?{CANARY}={CANARY}&sslmode={CANARY}"),
        format!("app:{CANARY}@kafka:9092"),
    ] {
        let all: Vec<(String, String)> = named
            .iter()
            .map(|name| (name.clone(), value.clone()))
            .collect();
        let text = refused(all).to_string();
        assert!(!text.contains(CANARY), "{text}");
        for name in &named {
            let (name, value) = (name.as_str(), value.as_str());
            if let Err(error) = Config::from_vars(vars(&[(name, value)])) {
                assert!(!error.to_string().contains(CANARY), "{error}");
                assert!(!format!("{error:?}").contains(CANARY), "{error}");
            }
        }
    }
}

#[test]
fn the_documentation_lists_every_setting() {
    let source = include_str!("../config.rs");
    for setting in CALL_SETTINGS {
        let line = format!("/// | `{CALL_PREFIX}<NAME>_{setting}` |");
        assert!(source.contains(&line), "{line}");
        let line = format!("| `{CALL_PREFIX}<NAME>_{setting}` |");
        let page = include_str!("../../../../docs/calls.md");
        assert!(page.contains(&line), "{line} is missing in docs/calls.md");
    }
    for setting in SETTINGS.iter().chain([&PRODUCER_PREFIX, &CONSUMER_PREFIX]) {
        assert!(
            source.contains(&format!("/// | `{setting}")),
            "{setting} is missing in the table of Config"
        );
    }
}

#[test]
fn the_source_of_cloud_events_is_a_uri_reference_or_nothing() {
    let config = Config::from_vars(vars(&[])).unwrap();
    assert_eq!(config.cloud_events, None);
    let config = Config::from_vars(vars(&[("FACTUM_CLOUD_EVENTS_SOURCE", " /orders ")])).unwrap();
    assert_eq!(config.cloud_events.unwrap().as_str(), "/orders");
    let text = refused(vars(&[("FACTUM_CLOUD_EVENTS_SOURCE", "our orders")])).to_string();
    assert!(
        text.contains("write FACTUM_CLOUD_EVENTS_SOURCE=/orders"),
        "{text}"
    );
}

#[test]
fn the_build_is_a_short_text_or_nothing() {
    assert_eq!(Config::from_vars(vars(&[])).unwrap().build, "");
    let config = Config::from_vars(vars(&[("FACTUM_BUILD", " 1.5.0 ")])).unwrap();
    assert_eq!(config.build, "1.5.0");
    for build in ["1.5\u{1b}[31m", &"5".repeat(101)] {
        let text = refused(vars(&[("FACTUM_BUILD", build)])).to_string();
        assert!(text.contains("write a version"), "{text}");
    }
}

#[test]
fn an_endpoint_of_calls_is_read_with_its_limits() {
    let config = read(vars(&[
        ("FACTUM_CALL_CARD_PAYMENTS_URL", "https://pay.example/base"),
        ("FACTUM_CALL_CARD_PAYMENTS_AUTHORIZATION", "Bearer canary"),
        ("FACTUM_CALL_CARD_PAYMENTS_TIMEOUT_MS", "3000"),
        ("FACTUM_CALL_CARD_PAYMENTS_CONNECT_TIMEOUT_MS", "700"),
        ("FACTUM_CALL_CARD_PAYMENTS_CONCURRENCY", "3"),
        ("FACTUM_CALL_CARD_PAYMENTS_KEY_LIFETIME_SECONDS", "3600"),
        ("FACTUM_CALL_PARCELS_URL", "http://127.0.0.1:8080"),
        ("FACTUM_CALL_PARCELS_CONCURRENCY", ""),
        ("FACTUM_CALL_GONE_URL", ""),
    ]));
    let names: Vec<&str> = config.calls.keys().map(String::as_str).collect();
    assert_eq!(names, ["card-payments", "parcels"]);
    let payments = &config.calls["card-payments"];
    assert_eq!(payments.url.as_str(), "https://pay.example/base");
    assert_eq!(payments.timeout, Duration::from_secs(3));
    assert_eq!(payments.connect_timeout, Duration::from_millis(700));
    assert_eq!(payments.concurrency, 3);
    assert_eq!(payments.key_lifetime, Duration::from_secs(3600));
    let secret = payments.authorization.as_ref().expect("it is set");
    assert_eq!(secret.expose_secret(), "Bearer canary");
    assert!(!format!("{config:?}").contains("canary"));
    let parcels = &config.calls["parcels"];
    assert_eq!(
        (parcels.concurrency, parcels.timeout),
        (16, Duration::from_secs(10))
    );
    assert!(parcels.authorization.is_none());
}

#[test]
fn an_endpoint_of_calls_is_refused_with_variable_and_rule() {
    let url = "FACTUM_CALL_PAYMENTS_URL";
    let cases = [
        (vec![(url, "http://pay.example")], "SEC-1", "URL"),
        (vec![(url, "ftp://pay.example")], "CFG-1", "URL"),
        (vec![(url, "pay.example")], "CFG-1", "URL"),
        (
            vec![(url, "https://user:canary@pay.example")],
            "CFG-1",
            "URL",
        ),
        (
            vec![(url, "https://pay.example/?key=canary")],
            "CFG-1",
            "URL",
        ),
        (vec![(url, "https://pay.example/#canary")], "CFG-1", "URL"),
        (
            vec![
                (url, "https://pay.example"),
                ("FACTUM_CALL_PAYMENTS_AUTHORIZATION", "canary\r\nX: y"),
            ],
            "CFG-1",
            "AUTHORIZATION",
        ),
        (
            vec![
                (url, "https://pay.example"),
                ("FACTUM_CALL_PAYMENTS_CONNECT_TIMEOUT_MS", "20000"),
            ],
            "CONS-X4",
            "CONNECT_TIMEOUT_MS",
        ),
        (
            vec![
                (url, "https://pay.example"),
                ("FACTUM_CALL_PAYMENTS_TIMEOUT_MS", "60000"),
                ("FACTUM_CALL_PAYMENTS_KEY_LIFETIME_SECONDS", "60"),
            ],
            "IDEM-4",
            "KEY_LIFETIME_SECONDS",
        ),
        (
            vec![
                (url, "https://pay.example"),
                ("FACTUM_CALL_PAYMENTS_CONCURRENCY", "0"),
            ],
            "CFG-1",
            "CONCURRENCY",
        ),
    ];
    for (changes, rule, setting) in cases {
        let problem = only_problem(&changes);
        assert_eq!(problem.rule(), rule, "{changes:?}");
        assert!(
            problem
                .place()
                .ends_with(&format!("FACTUM_CALL_PAYMENTS_{setting}")),
            "{problem}"
        );
        assert!(!problem.to_string().contains("canary"), "{problem}");
    }
    let problem = only_problem(&[("FACTUM_CALL_PAYMENTS_CONCURRENCY", "3")]);
    assert_eq!(problem.what(), "FACTUM_CALL_PAYMENTS_URL is not set");
    for name in [
        "FACTUM_CALL_PAYMENTS_ATTEMPTS",
        "FACTUM_CALL_URL",
        "FACTUM_CALL_payments_URL",
        "FACTUM_CALL_A__B_URL",
    ] {
        let problem = only_problem(&[(name, "3")]);
        assert_eq!(problem.what(), format!("{name} is not a setting"));
        assert!(problem.mend().contains("KEY_LIFETIME_SECONDS"), "{problem}");
    }
    let development = read(development(&[(url, "http://pay.example")]));
    assert_eq!(development.calls.len(), 1);
}

/// Long enough for a token.
const HEALTH_CANARY: &str = "cAnArY-0123456789";

#[test]
fn the_health_endpoint_is_of_this_machine_unless_told_otherwise() {
    let listens = |at: &str| {
        let config = read(vars(&[(HEALTH_LISTEN, at), (HEALTH_TOKEN, HEALTH_CANARY)]));
        assert_eq!(config.problems(), []);
        let health = config.health.expect("an endpoint");
        assert_eq!(health.token.expose_secret(), HEALTH_CANARY);
        health.listen.to_string()
    };
    assert_eq!(listens("9400"), "127.0.0.1:9400");
    assert_eq!(listens("0.0.0.0:9400"), "0.0.0.0:9400");
    assert_eq!(listens("[::1]:0"), "[::1]:0");
    assert!(read(vars(&[])).health.is_none(), "off unless set");
    for wrong in ["localhost:9400", "66000", "9400/live", ":9400"] {
        let problem = only_problem(&[(HEALTH_LISTEN, wrong), (HEALTH_TOKEN, HEALTH_CANARY)]);
        assert_eq!(problem.rule(), "CFG-1");
        assert!(problem.to_string().contains(HEALTH_LISTEN), "{problem}");
    }
}

#[test]
fn nothing_listens_without_a_credential() {
    let problem = only_problem(&[(HEALTH_LISTEN, "9400")]);
    assert_eq!(problem.rule(), "SEC-2");
    assert!(problem.mend().contains(HEALTH_TOKEN), "{problem}");
    for weak in [
        "fifteen-letters",
        "with blanks in its middle",
        "Ümläüte-Ümläüte",
    ] {
        let problem = only_problem(&[(HEALTH_LISTEN, "9400"), (HEALTH_TOKEN, weak)]);
        assert_eq!(problem.rule(), "SEC-2");
        assert!(!problem.to_string().contains(weak), "{problem}");
    }
    let idle = only_problem(&[(HEALTH_TOKEN, HEALTH_CANARY)]);
    assert!(idle.what().contains("nothing listens"), "{idle}");
    let mut config = read(vars(&[
        (HEALTH_LISTEN, "9400"),
        (HEALTH_TOKEN, HEALTH_CANARY),
    ]));
    assert!(!format!("{config:?}").contains(HEALTH_CANARY));
    config.health = Some(HealthSettings::new(
        ([0, 0, 0, 0], 1).into(),
        "short".into(),
    ));
    assert_eq!(config.problems().len(), 1, "one that code has set, too");
}

#[test]
fn a_relay_polls_unless_told_otherwise() {
    assert_eq!(read(vars(&[])).relay_wake, RelayWake::Poll);
    for wake in [RelayWake::Poll, RelayWake::Listen] {
        let config = read(vars(&[(RELAY_WAKE, wake.as_str())]));
        assert_eq!(config.relay_wake, wake);
    }
    let problem = only_problem(&[(RELAY_WAKE, "notify")]);
    assert!(
        problem.what().contains("neither poll nor listen"),
        "{problem}"
    );
}
