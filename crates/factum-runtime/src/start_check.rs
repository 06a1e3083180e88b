//! What must hold before a service starts: code, configuration, brokers, topics, database.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use factum_kafka::{
    KafkaError, KafkaErrorKind, KafkaSettings, NewTopic, create_topics, describe_topics,
    topic_settings,
};
use factum_postgres::{
    Database, DatabaseSettings, ErrorKind, SchemaProblem, check_schema, relay_wake_is_on,
};
use tokio::net::TcpListener;

use crate::answer::Calls;
use crate::config::{Profile, is_kebab};
use crate::consumer::Consumer;
use crate::endpoint::Endpoint;
use crate::horizon::{Horizon, Memory};
use crate::problem::{Problem, counted};
use crate::service::{ServiceBuilder, ServiceError};
use crate::wake::RelayWake;

/// How long the brokers may take to describe the topics, and again to create them.
const TOPICS_TIMEOUT: Duration = Duration::from_secs(10);
/// How long they may take to tell the topics' settings.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest consumer name in bytes: it is Kafka's group id and a column of every dedup row.
const CONSUMER_NAME_MAX_BYTES: usize = 128;
/// librdkafka's own, where `KAFKA_CONSUMER_MAX_POLL_INTERVAL_MS` says nothing else.
const MAX_POLL_INTERVAL_DEFAULT: Duration = Duration::from_secs(300);
/// Connections that nobody's handlers take: relay, its lease, maintenance, one for the start checks and then
/// for what the consumers say of themselves, and one for the look at what is parked.
const CONNECTIONS_BESIDE_LANES: u32 = 5;
/// Turns of a service with consumers at the least: while one handler is slow, there is another for a retry.
const LEAST_TURNS: u32 = 2;
/// What calls need beside: one to claim and record, one for the handlers of responses.
const CONNECTIONS_OF_CALLS: u32 = 2;
/// Copies of a topic that is created in production; one elsewhere.
const REPLICATION_IN_PRODUCTION: u16 = 3;
/// Asked for when a service has no topic of its own to ask for: every Kafka has or may have it.
const PROBE_TOPIC: &str = "__consumer_offsets";

/// Where the checks ended well.
pub(crate) struct Ready {
    pub(crate) db: Database,
    /// How it was reached.
    pub(crate) database: DatabaseSettings,
    /// Those that calls go to.
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) lanes: u32,
    /// Where the health endpoint listens already.
    pub(crate) health: Option<TcpListener>,
}

impl ServiceBuilder {
    /// Everything that must hold before the first record is read; all problems at once.
    pub(crate) async fn check(&self) -> Result<Ready, ServiceError> {
        let mut problems = self.config.problems();
        problems.extend(self.part_problems());
        let endpoints = self.endpoints(&mut problems);
        let topics = self.check_topics(&mut problems).await;
        self.check_horizons(&topics, &mut problems).await;
        let lanes = self.lanes(&topics);
        let settings = self.database_settings(&topics, &mut problems);
        let health = self.listen(&mut problems).await;
        let db = self.check_database(&settings, &mut problems).await;
        match db {
            Some(db) if problems.is_empty() => Ok(Ready {
                db,
                database: settings,
                endpoints,
                lanes,
                health,
            }),
            db => {
                if let Some(db) = db {
                    db.close().await;
                }
                Err(ServiceError::Start(problems))
            }
        }
    }

    /// Takes the health endpoint's address. Nobody is answered before the start.
    async fn listen(&self, problems: &mut Vec<Problem>) -> Option<TcpListener> {
        let health = self.config.health.as_ref()?;
        let listened = TcpListener::bind(health.listen).await;
        match listened.and_then(|listener| Ok((listener.local_addr()?, listener))) {
            Ok((address, listener)) => {
                tracing::info!(%address, "the health endpoint listens");
                Some(listener)
            }
            Err(error) => {
                problems.push(Problem::new(
                    "CFG-1",
                    format!("the address {}", health.listen),
                    format!("the health endpoint can't listen: {error}"),
                    "write a free port of this machine in FACTUM_HEALTH_LISTEN; 0 takes any",
                ));
                None
            }
        }
    }

    /// What the code alone decides: names, handlers, limits.
    fn part_problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let service = &self.config.service;
        if self.relay.is_none() && self.consumers.is_empty() && self.calls.is_none() {
            problems.push(Problem::new(
                "CFG-1",
                format!("service `{service}`"),
                "the service has neither a relay nor a consumer nor calls, so there is nothing to run",
                "add .relay(), .consumer(…) or .calls(…) to the builder",
            ));
        }
        if self.new_topic_partitions == Some(0) {
            problems.push(Problem::new(
                "CFG-5",
                format!("service `{service}`"),
                "topics cannot be created with 0 partitions",
                "write at least .create_topics(1)",
            ));
        }
        let mut names = BTreeMap::<&str, usize>::new();
        for consumer in &self.consumers {
            *names.entry(consumer.name()).or_default() += 1;
        }
        for (name, count) in &names {
            if *count > 1 {
                problems.push(Problem::new(
                    "CONS-1",
                    format!("consumer `{name}`"),
                    format!("{count} consumers of this service have the same name, so each would see the others' events as duplicates"),
                    "give each purpose its own name, or give one consumer both handlers",
                ));
            }
            problems.extend(self.consumer_name_problem(name));
        }
        problems.extend(self.group_problems());
        let max_poll_interval = self.max_poll_interval();
        for consumer in &self.consumers {
            let place = format!("consumer `{}`", consumer.name());
            problems.extend(consumer.problems());
            if consumer.time_limit() >= max_poll_interval {
                problems.push(Problem::new(
                    "CONS-6",
                    place,
                    format!(
                        "a handler may take {} s, but Kafka takes the partition away after {} s \
                         without a poll (max.poll.interval.ms)",
                        consumer.time_limit().as_secs_f64(),
                        max_poll_interval.as_secs_f64()
                    ),
                    "lower the consumer's .handler_timeout(…), or raise \
                     KAFKA_CONSUMER_MAX_POLL_INTERVAL_MS",
                ));
            }
        }
        problems
    }

    /// The endpoints that calls go to, as code and configuration have them.
    fn endpoints(&self, problems: &mut Vec<Problem>) -> Vec<Endpoint> {
        let Some(calls) = &self.calls else {
            return Vec::new();
        };
        let place = |name: &str| format!("service `{}`, endpoint `{name}`", self.config.service);
        for name in calls.doubled() {
            problems.push(Problem::new(
                "CFG-1",
                place(name),
                "the endpoint is declared twice",
                "keep one `.endpoint(…)` of that name",
            ));
        }
        if calls.time_limit().is_zero() {
            problems.push(Problem::new(
                "CONS-6",
                format!("service `{}`", self.config.service),
                "the time limit of responses' handlers is zero, so none could finish",
                "write a `.handler_timeout(…)` of some seconds",
            ));
        }
        let mut endpoints = Vec::new();
        for name in calls.names() {
            if !is_kebab(name) {
                problems.push(Problem::new(
                    "CFG-1",
                    place(name),
                    "the endpoint's name is not lower-case kebab",
                    "name it in lower-case words joined by dashes, such as card-payments",
                ));
                continue;
            }
            match self.config.endpoint(name) {
                Ok(endpoint) => endpoints.push(endpoint),
                Err(problem) => problems.push(problem),
            }
        }
        endpoints
    }

    /// Of the groups that are set apart from their consumers' names.
    fn group_problems(&self) -> Vec<Problem> {
        let service = &self.config.service;
        let mut problems = Vec::new();
        let mut members = BTreeMap::<&str, Vec<&str>>::new();
        for consumer in &self.consumers {
            let (name, group) = (consumer.name(), consumer.group_id());
            members.entry(group).or_default().push(name);
            if group == name {
                continue;
            }
            if let Some(fault) = self.fault_of_name(group) {
                problems.push(Problem::new(
                    "CONS-1",
                    format!("consumer `{name}`"),
                    format!("its Kafka group is set apart, and {fault}"),
                    format!(
                        "write .group(\"{service}-…\") in lower-case words joined by dashes, or leave it out: then \
                         the group is called as the consumer"
                    ),
                ));
            }
        }
        for (group, names) in members {
            // Consumers of one name are named elsewhere.
            let distinct: BTreeSet<&str> = names.into_iter().collect();
            if distinct.len() > 1 {
                let names: Vec<&str> = distinct.into_iter().collect();
                problems.push(Problem::new(
                    "CONS-1",
                    format!("consumers `{}`", names.join("`, `")),
                    format!(
                        "they share the Kafka group `{group}`, so each would get a part of the records alone"
                    ),
                    "give each its own .group(…), or leave it out: then the group is called as the consumer",
                ));
            }
        }
        problems
    }

    /// What is wrong with the name of a consumer or a group, as a clause.
    fn fault_of_name(&self, name: &str) -> Option<String> {
        let service = &self.config.service;
        let purpose = name
            .strip_prefix(service.as_str())
            .and_then(|rest| rest.strip_prefix('-'))
            .filter(|purpose| !purpose.is_empty());
        let what = if !is_kebab(name) {
            "the name is not lower-case kebab".to_owned()
        } else if name.len() > CONSUMER_NAME_MAX_BYTES {
            format!("the name is longer than {CONSUMER_NAME_MAX_BYTES} characters")
        } else if purpose.is_none() {
            format!("the name does not begin with its service's, `{service}-`")
        } else {
            return None;
        };
        Some(what)
    }

    fn consumer_name_problem(&self, name: &str) -> Option<Problem> {
        let service = &self.config.service;
        let what = self.fault_of_name(name)?;
        Some(Problem::new(
            "CONS-1",
            format!("consumer `{name}`"),
            what,
            format!(
                "name it after the service and the purpose, in lower-case words joined by dashes: \
                 {service}-order-confirmed. A consumer that is renamed handles everything again"
            ),
        ))
    }

    fn max_poll_interval(&self) -> Duration {
        self.config
            .kafka
            .consumer
            .get("max.poll.interval.ms")
            .and_then(|text| text.parse().ok())
            .map_or(MAX_POLL_INTERVAL_DEFAULT, Duration::from_millis)
    }

    /// Who needs each topic, for the message that says it is missing.
    fn needed_topics(&self) -> BTreeMap<String, Vec<String>> {
        let mut needed = BTreeMap::<String, Vec<String>>::new();
        let mut add = |topic: &str, by: String| {
            needed.entry(topic.to_owned()).or_default().push(by);
        };
        for topic in &self.own_topics {
            add(
                topic,
                format!("service `{}` publishes to it", self.config.service),
            );
        }
        for consumer in &self.consumers {
            let name = consumer.name();
            for topic in consumer.topics() {
                add(topic, format!("consumer `{name}` reads it"));
            }
            for topic in consumer.retry_topics().names() {
                add(topic, format!("consumer `{name}` retries through it"));
            }
            for topic in consumer.mirror_topics() {
                add(
                    &topic,
                    format!("consumer `{name}` mirrors its dead letters to it"),
                );
            }
        }
        needed
    }

    /// The topics that are this service's own: those that it publishes to, and those of its consumers' retries and
    /// dead letters.
    fn owned_topics(&self) -> BTreeSet<String> {
        let mut owned: BTreeSet<String> =
            self.own_topics.iter().map(|&topic| topic.into()).collect();
        for consumer in &self.consumers {
            owned.extend(consumer.retry_topics().names().map(str::to_owned));
            owned.extend(consumer.mirror_topics());
        }
        owned
    }

    /// The partitions of every topic that could be asked for.
    async fn check_topics(&self, problems: &mut Vec<Problem>) -> BTreeMap<String, Option<u32>> {
        let needed = self.needed_topics();
        let owned = self.owned_topics();
        let mut asked: Vec<&str> = needed.keys().map(String::as_str).collect();
        if asked.is_empty() {
            asked.push(PROBE_TOPIC);
        }
        let mut topics = match describe_topics(&self.config.kafka, &asked, TOPICS_TIMEOUT).await {
            Ok(topics) => topics,
            Err(error) if needed.is_empty() && error.kind() == KafkaErrorKind::Authorization => {
                return BTreeMap::new(); // The brokers answered; that was the question.
            }
            Err(error) => {
                problems.push(self.kafka_problem(&error));
                return BTreeMap::new();
            }
        };
        topics.remove(PROBE_TOPIC);
        if let Err(error) = self.create_own_topics(&owned, &mut topics).await {
            problems.push(self.kafka_problem(&error));
        }
        for (topic, needed_by) in needed {
            if topics.get(&topic).copied().flatten().unwrap_or(0) > 0 {
                continue;
            }
            let owned = owned.contains(&topic);
            problems.push(Problem::new(
                "CFG-4",
                format!(
                    "Kafka at {}; {}",
                    self.config.kafka.brokers,
                    needed_by.join(", ")
                ),
                format!("the topic `{topic}` does not exist"),
                format!(
                    "create it: kafka-topics.sh --bootstrap-server {} --create --topic {topic} \
                     --partitions 4. {}",
                    first_broker(&self.config.kafka.brokers),
                    if owned {
                        "This service owns it: in development .create_topics(4) on the service's builder creates it at start"
                    } else {
                        "The service that publishes it owns it (CFG-5); if it is there under another \
                         name, correct `topic = \"…\"` of the event"
                    }
                ),
            ));
        }
        topics
    }

    /// Whether dedup remembers events for longer than each topic may bring them again. Too short a memory keeps the
    /// service from starting, unless it is allowed by name, as in development: then it is a warning, which nothing
    /// waits for.
    async fn check_horizons(
        &self,
        topics: &BTreeMap<String, Option<u32>>,
        problems: &mut Vec<Problem>,
    ) {
        let is_there = |topic: &&str| topics.get(*topic).copied().flatten().is_some();
        let mut memories = Vec::new();
        for consumer in &self.consumers {
            for topic in consumer.topics().into_iter().filter(is_there) {
                memories.push(Remembered {
                    consumer: consumer.name().to_owned(),
                    topic: topic.to_owned(),
                    retries: consumer.retry_horizon(),
                    replays: self.config.replay_horizon,
                    window_days: self.config.window.keep_days,
                    foreign_days: consumer.foreign_days(),
                });
            }
        }
        if memories.is_empty() {
            return;
        }
        let kafka = self.config.kafka.clone();
        if self.config.allow_short_window {
            tokio::spawn(async move {
                match compare(&kafka, &memories).await {
                    Ok(short) => short.iter().for_each(|problem| tracing::warn!("{problem}")),
                    Err(error) => tracing::debug!(%error, "{NOT_COMPARED}"),
                }
            });
            return;
        }
        match compare(&kafka, &memories).await {
            Ok(short) => problems.extend(short),
            // Not worth a refusal: a service may run without the right to ask.
            Err(error) => tracing::warn!(%error, "{NOT_COMPARED}"),
        }
    }

    async fn create_own_topics(
        &self,
        owned: &BTreeSet<String>,
        topics: &mut BTreeMap<String, Option<u32>>,
    ) -> Result<(), KafkaError> {
        let Some(partitions) = self.new_topic_partitions.filter(|count| *count > 0) else {
            return Ok(());
        };
        if !self.config.create_topics {
            return Ok(());
        }
        let replication = match self.config.profile {
            Profile::Development => 1,
            Profile::Production => REPLICATION_IN_PRODUCTION,
        };
        let missing: Vec<NewTopic> = owned
            .iter()
            .filter(|topic| topics.get(*topic).copied().flatten().is_none())
            .map(|topic| NewTopic {
                name: topic.clone(),
                partitions,
                replication,
            })
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        create_topics(&self.config.kafka, &missing, TOPICS_TIMEOUT).await?;
        for topic in missing {
            tracing::info!(
                topic = topic.name,
                partitions,
                replication,
                "created a topic"
            );
            topics.insert(topic.name, Some(partitions));
        }
        Ok(())
    }

    fn kafka_problem(&self, error: &KafkaError) -> Problem {
        let (rule, mend) = match error.kind() {
            KafkaErrorKind::Unreachable => (
                "CFG-2",
                "start Kafka there, or correct KAFKA_BROKERS; if the brokers speak TLS, \
                 KAFKA_SECURITY_PROTOCOL must say so",
            ),
            KafkaErrorKind::Authentication => (
                "SEC-2",
                "correct the login or the certificate: KAFKA_SECURITY_PROTOCOL, KAFKA_SASL_MECHANISM, \
                 KAFKA_SASL_USERNAME, KAFKA_SASL_PASSWORD, KAFKA_SSL_CA_LOCATION",
            ),
            KafkaErrorKind::Authorization => {
                ("SEC-2", "give this service's user the right on the cluster")
            }
            _ => ("CFG-2", "do what the text before says"),
        };
        Problem::new(
            rule,
            format!("Kafka at {}", self.config.kafka.brokers),
            error.to_string(),
            mend,
        )
    }

    /// The lanes of this process when it runs alone.
    fn lanes(&self, topics: &BTreeMap<String, Option<u32>>) -> u32 {
        let partitions = self.consumers.iter().map(|c| partitions(c, topics));
        partitions.fold(0, u32::saturating_add)
    }

    fn database_settings(
        &self,
        topics: &BTreeMap<String, Option<u32>>,
        problems: &mut Vec<Problem>,
    ) -> DatabaseSettings {
        let beside = CONNECTIONS_BESIDE_LANES
            + if self.calls.is_some() {
                CONNECTIONS_OF_CALLS
            } else {
                0
            };
        let turns = |consumer: &Consumer| {
            // A lane at least, whatever the brokers said.
            let of_lanes = consumer.sessions(partitions(consumer, topics).max(1));
            // One for a replay.
            let of_retries = consumer.retry_connections().saturating_add(1);
            of_lanes.saturating_add(of_retries)
        };
        let turns = self.consumers.iter().map(turns);
        let wanted = turns.fold(0, u32::saturating_add).saturating_add(beside);
        let least = match self.consumers.as_slice() {
            [] => beside,
            [_, ..] => beside + LEAST_TURNS,
        };
        let max_connections = self.config.max_connections.unwrap_or(wanted);
        if max_connections < least {
            problems.push(Problem::new(
                "CFG-1",
                "the environment variable FACTUM_DATABASE_MAX_CONNECTIONS",
                format!(
                    "{} are too few: with {} the service needs at least {least}",
                    counted(max_connections as usize, "connection"),
                    counted(self.consumers.len(), "consumer"),
                ),
                format!(
                    "write {wanted}, or unset it: then the service takes as many as its lanes need"
                ),
            ));
        } else if max_connections < wanted {
            tracing::warn!(
                max_connections,
                wanted,
                turns = max_connections - beside,
                wanted_turns = wanted - beside,
                "with all partitions in this process lanes, workers and retries would take turns at the database;                  none is left out, but less is done at once"
            );
        }
        let max_connections = max_connections.max(least);
        let handler_timeout = self
            .consumers
            .iter()
            .map(Consumer::time_limit)
            .chain(self.calls.iter().map(Calls::time_limit))
            .max()
            .unwrap_or(self.config.database.handler_timeout);
        DatabaseSettings {
            max_connections,
            max_turns: (max_connections - beside).max(1),
            handler_timeout,
            ..self.config.database.clone()
        }
    }

    async fn check_database(
        &self,
        settings: &DatabaseSettings,
        problems: &mut Vec<Problem>,
    ) -> Option<Database> {
        let place = self.config.database_place();
        let db = match Database::connect(settings).await {
            Ok(db) => db,
            Err(error) => {
                let away = error.kind() == ErrorKind::Unavailable || error.is_refused();
                let problem = Problem::new(
                    "CFG-1",
                    place,
                    format!("the database cannot be used: {error}"),
                    "start PostgreSQL there, or correct host, port, database, user and password in \
                     DATABASE_URL",
                );
                problems.push(if away {
                    problem.of_database_away()
                } else {
                    problem
                });
                return None;
            }
        };
        match check_schema(&db).await {
            Ok(found) => problems.extend(
                found
                    .iter()
                    // The pass before the start makes it; and a relay alone has no need of it.
                    .filter(|problem| {
                        self.deduplicates() && !self.maintenance
                            || **problem != SchemaProblem::NoPartitionForToday
                    })
                    .map(|problem| schema_problem(&place, problem)),
            ),
            Err(error) => problems.push(Problem::new(
                "CFG-1",
                place,
                format!("the tables could not be checked: {error}"),
                "let the service's role read the catalog and its own tables",
            )),
        }
        self.check_relay_wake(&db, problems).await;
        Some(db)
    }

    fn deduplicates(&self) -> bool {
        !self.consumers.is_empty() || self.calls.is_some()
    }

    /// A relay that sleeps and is never notified would look once a second, and nobody would know why.
    async fn check_relay_wake(&self, db: &Database, problems: &mut Vec<Problem>) {
        if self.relay.is_none() || self.config.relay_wake != RelayWake::Listen {
            return;
        }
        let what = match relay_wake_is_on(db).await {
            Ok(true) => return,
            Ok(false) => {
                "FACTUM_RELAY_WAKE is listen, and the trigger outbox_wake that would notify is off"
                    .to_owned()
            }
            Err(error) => format!("whether writers notify could not be asked: {error}"),
        };
        problems.push(Problem::new(
            "CFG-1",
            self.config.database_place(),
            what,
            "switch it on as the tables' owner with `factum migrate up --relay-wake listen`, or unset FACTUM_RELAY_WAKE",
        ));
    }
}

/// The partitions that a consumer reads when it runs alone.
fn partitions(consumer: &Consumer, topics: &BTreeMap<String, Option<u32>>) -> u32 {
    let retry_topics = consumer.retry_topics();
    let read = consumer.topics().into_iter().chain(retry_topics.names());
    read.map(|topic| topics.get(topic).copied().flatten().unwrap_or(0))
        .fold(0, u32::saturating_add)
}

const NOT_COMPARED: &str = "the brokers don't tell for how long topics keep their records, so that the dedup window isn't \
                            compared with it; give this user the right DescribeConfigs";

/// What a consumer remembers of a topic's events.
struct Remembered {
    consumer: String,
    topic: String,
    retries: Duration,
    replays: Duration,
    window_days: u32,
    foreign_days: Option<u32>,
}

/// Those whose memory is too short for what their topic keeps.
async fn compare(
    kafka: &KafkaSettings,
    memories: &[Remembered],
) -> Result<Vec<Problem>, KafkaError> {
    let asked: BTreeSet<&str> = memories.iter().map(|m| m.topic.as_str()).collect();
    let asked: Vec<&str> = asked.into_iter().collect();
    let settings = topic_settings(kafka, &asked, SETTINGS_TIMEOUT).await?;
    let mut problems = Vec::new();
    for remembered in memories {
        let Some(found) = settings.get(&remembered.topic) else {
            continue;
        };
        let horizon = Horizon {
            topic: &remembered.topic,
            retention: found.retention,
            retries: remembered.retries,
            replays: remembered.replays,
        };
        let window = Memory::Window {
            days: remembered.window_days,
        };
        let foreign = remembered.foreign_days.map(|days| Memory::Foreign { days });
        for memory in [Some(window), foreign].into_iter().flatten() {
            if let Err(short) = horizon.compare(memory) {
                problems.push(Problem::new(
                    "IDEM-2",
                    format!(
                        "consumer `{}`, topic `{}`",
                        remembered.consumer, remembered.topic
                    ),
                    format!("{}; {}", short.what, short.why),
                    short.mend,
                ));
            }
        }
    }
    Ok(problems)
}

/// The text of a schema problem is `rule: what; mend`.
fn schema_problem(place: &str, problem: &SchemaProblem) -> Problem {
    let text = problem.to_string();
    let text = text
        .strip_prefix(problem.rule())
        .and_then(|rest| rest.strip_prefix(": "))
        .unwrap_or(&text);
    let (what, mend) = text
        .split_once("; ")
        .unwrap_or((text, "compare the tables with `factum migrate sql`"));
    Problem::new(problem.rule(), place, what, mend)
}

fn first_broker(brokers: &str) -> &str {
    brokers.split(',').next().unwrap_or(brokers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts are written in another crate; here they are taken apart.
    #[test]
    fn every_schema_problem_says_what_and_mend() {
        let problems = [
            SchemaProblem::MigrationPending {
                version: 1,
                name: "base",
            },
            SchemaProblem::MissingTable { table: "outbox" },
            SchemaProblem::MissingColumn {
                table: "outbox",
                column: "slot",
                data_type: "smallint",
            },
            SchemaProblem::NoRealDedup {
                fault: "has another key".to_owned(),
            },
            SchemaProblem::DefaultPartition {
                partition: "rest".to_owned(),
            },
            SchemaProblem::NoPartitionForToday,
            SchemaProblem::MissingPartialIndex {
                index: "outbox_unpublished",
            },
        ];
        for problem in problems {
            let told = schema_problem("PostgreSQL at db:5432/orders", &problem);
            assert_eq!(
                problem.to_string(),
                format!("{}: {}; {}", told.rule(), told.what(), told.mend())
            );
        }
    }

    #[test]
    fn the_first_broker_is_shown_in_commands() {
        assert_eq!(first_broker("a:1,b:2"), "a:1");
        assert_eq!(first_broker("a:1"), "a:1");
    }
}
