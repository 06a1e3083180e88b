//! One node of Apache Kafka: a Java process with its data in a temporary directory.

use std::fs;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::download;
use crate::kafka_wire;
use crate::keeper::{Keeper, StartFailure, tail};
use crate::tool::Tool;

/// The release of Apache Kafka, as `kafka/pom.xml` pins it.
pub const VERSION: &str = "4.3.1";

const POM: &str = include_str!("../kafka/pom.xml");

/// The plugin that copies the jars; pinned, or Maven takes whatever its own release prefers.
const COPY_GOAL: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";

/// How long a broker may take from its start to its first answer. Four seconds on an idle machine;
/// the limit is for a busy one.
const READY_LIMIT: Duration = Duration::from_secs(120);

/// How often a start is repeated with other ports.
pub(crate) const PORT_TRIES: u32 = 5;

/// What a broker prints once it is part of its cluster and may be asked.
const STARTED: &str = "Kafka Server started";

/// What makes a JVM start quickly and stay small.
const JAVA_OPTIONS: [&str; 2] = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"];

/// Warnings and errors, and the one line that says that the broker has joined its cluster.
const LOG_SETTINGS: &str = "\
rootLogger.level = WARN
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss.SSS} %-5p %c{1}: %m%n
logger.started.name = kafka.server.KafkaRaftServer
logger.started.level = INFO
";

/// What every node is set to, alone or not.
pub(crate) const COMMON_SETTINGS: &str = "\
process.roles=broker,controller
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=data
auto.create.topics.enable=false
offsets.topic.num.partitions=4
transaction.state.log.num.partitions=4
# A test doesn't wait for members that never come, nor long for one that was killed.
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.session.timeout.ms=6000
group.consumer.min.heartbeat.interval.ms=200
group.consumer.heartbeat.interval.ms=500
# Two cores are the smallest machine that the tests must suit.
num.network.threads=2
num.io.threads=4
";

/// Java and Kafka's jars on this machine.
pub(crate) struct Installation {
    java: PathBuf,
    class_path: String,
}

impl Installation {
    pub(crate) fn find() -> Result<Installation> {
        let java = java()?;
        let class_path = format!("{}/*", jars()?.display());
        Ok(Installation { java, class_path })
    }
}

/// A broker and controller, with its keeper.
pub(crate) struct Node {
    keeper: Keeper,
    port: u16,
    /// Starts that were ordered: the log has that many lines when the last one is done.
    starts: usize,
}

impl Node {
    /// Makes the node's directory and formats it; nothing runs yet. `port` is the one of `settings`
    /// that clients use.
    pub(crate) fn format(
        kafka: &Installation,
        port: u16,
        settings: &str,
        cluster_id: &str,
        quorum: &[&str],
    ) -> Result<Node> {
        // A JVM has nothing to tidy up here, so the signal that can't be delayed will do.
        let keeper = Keeper::new("factum-kafka-", "KILL", None)?;
        keeper.write("log4j2.properties", LOG_SETTINGS)?;
        keeper.write("server.properties", settings)?;
        let output = keeper
            .command(&kafka.java)
            .args(JAVA_OPTIONS)
            .args(["-cp", &kafka.class_path])
            .arg("-Dlog4j2.configurationFile=log4j2.properties")
            .args(["kafka.tools.StorageTool", "format", "-t", cluster_id])
            .args(["-c", "server.properties"])
            .args(quorum)
            .output()
            .context("running Kafka's storage tool")?;
        ensure!(
            output.status.success(),
            "Kafka's storage tool failed:\n{}",
            tail(
                &String::from_utf8_lossy(&[output.stdout, output.stderr].concat()),
                10
            )
        );
        Ok(Node {
            keeper,
            port,
            starts: 0,
        })
    }

    /// Starts the node with a heap such as `-Xmx512m`; [`wait_ready`](Self::wait_ready) waits for it.
    pub(crate) fn start(&mut self, kafka: &Installation, heap: &str) -> Result<()> {
        let mut arguments = vec![heap];
        arguments.extend(JAVA_OPTIONS);
        arguments.extend(["-cp", &kafka.class_path]);
        arguments.push("-Dlog4j2.configurationFile=log4j2.properties");
        arguments.extend(["kafka.Kafka", "server.properties"]);
        self.keeper.start(&kafka.java, arguments)?;
        self.starts += 1;
        Ok(())
    }

    /// Starts the node again, on the same data and ports.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        // A start that was cut off has said nothing, and the log keeps what the earlier ones said.
        self.starts = self.started() + 1;
        self.keeper.start_again()
    }

    /// Waits until the node is part of its cluster and answers.
    pub(crate) fn wait_ready(&self) -> std::result::Result<(), StartFailure> {
        self.keeper.wait_until(READY_LIMIT, || {
            self.started() >= self.starts && kafka_wire::is_answering(self.port)
        })
    }

    /// Ends the node at once, as a crash would; its data stay.
    pub(crate) fn stop(&mut self) -> Result<()> {
        self.keeper.stop()
    }

    /// Where clients find it.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn dir(&self) -> &Path {
        self.keeper.dir()
    }

    pub(crate) fn log(&self) -> String {
        self.keeper.log()
    }

    fn started(&self) -> usize {
        self.keeper.log().matches(STARTED).count()
    }
}

/// So many ports that were free a moment ago and that a node finds free again after a restart: they
/// lie below those that the system gives to outgoing connections. A client that tries to reach a
/// broker that is down could else be given the broker's own port.
pub(crate) fn lasting_ports(count: usize) -> Result<Vec<u16>> {
    const TRIES: usize = 1000;
    let random = RandomState::new();
    // Held until all are chosen, so that none is chosen twice.
    let mut held: Vec<TcpListener> = Vec::with_capacity(count);
    for attempt in 0..TRIES {
        let mut hasher = random.build_hasher();
        hasher.write_usize(attempt);
        let port = 15_000 + (hasher.finish() % 17_000) as u16;
        held.extend(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok());
        if held.len() == count {
            let ports = held
                .iter()
                .map(|listener| Ok(listener.local_addr()?.port()));
            return ports.collect();
        }
    }
    bail!("no {count} free ports between 15000 and 32000")
}

/// Java 17 or newer.
fn java() -> Result<PathBuf> {
    const INSTALL: &str = "on Debian run: apt-get install -y default-jre-headless";
    let java = match std::env::var_os("JAVA_HOME") {
        Some(home) if Path::new(&home).join("bin/java").is_file() => {
            Path::new(&home).join("bin/java")
        }
        _ => PathBuf::from("java"),
    };
    let output = Tool::output(Command::new(&java).arg("-version"))
        .with_context(|| format!("Kafka needs Java 17 or newer, and there is none; {INSTALL}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    if let Some(major) = java_major(&text) {
        ensure!(
            major >= 17,
            "Kafka needs Java 17 or newer, this is Java {major}; {INSTALL}"
        );
    }
    Ok(java)
}

/// `openjdk version "17.0.15" 2025-04-15` is 17; `java version "1.8.0_402"` is 8.
fn java_major(version: &str) -> Option<u32> {
    let mut numbers = version.split('"').nth(1)?.split(['.', '-', '_']);
    match numbers.next()?.parse().ok()? {
        1 => numbers.next()?.parse().ok(),
        major => Some(major),
    }
}

/// The directory with the broker's jars, resolved by Maven the first time.
fn jars() -> Result<PathBuf> {
    download::once(&format!("kafka-libs-{VERSION}"), |dir| {
        let pom = dir.join("pom.xml");
        fs::write(&pom, POM).context("writing pom.xml")?;
        let mut mvn = Command::new("mvn");
        mvn.args(["-q", "-B", "-f"])
            .arg(&pom)
            .args([COPY_GOAL, "-DincludeScope=runtime"])
            .arg(format!("-DoutputDirectory={}", dir.display()))
            .current_dir(dir);
        let output = Tool::output(&mut mvn).context(
            "Kafka's jars are resolved by Maven, and `mvn` is missing; \
                 on Debian run: apt-get install -y maven",
        )?;
        ensure!(
            output.status.success(),
            "Maven could not resolve Kafka's jars:\n{}",
            tail(
                &String::from_utf8_lossy(&[output.stdout, output.stderr].concat()),
                12
            )
        );
        Ok(())
    })
    .context("fetching Kafka's jars")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_java_release_is_read_from_what_it_prints() {
        assert_eq!(
            java_major("openjdk version \"17.0.15\" 2025-04-15"),
            Some(17)
        );
        assert_eq!(java_major("openjdk version \"25-ea\" 2025-09-16"), Some(25));
        assert_eq!(java_major("java version \"1.8.0_402\""), Some(8));
        assert_eq!(java_major(""), None);
    }

    #[test]
    fn the_pom_pins_the_release_that_is_promised() {
        assert!(POM.contains(&format!("<version>{VERSION}</version>")));
    }

    #[test]
    fn ports_that_last_differ_and_are_no_ports_of_outgoing_connections() {
        let mut ports = lasting_ports(50).unwrap();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 50);
        assert!(ports.iter().all(|port| (15_000..32_000).contains(port)));
    }
}
