//! A private, throwaway Apache Kafka broker.

use std::fmt;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::download;
use crate::keeper::{Keeper, free_port, tail};
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
const PORT_TRIES: u32 = 5;

/// Any 22 digits of base 64: two private clusters never meet.
const CLUSTER_ID: &str = "ZmFjdHVtLXRlc3RpbmctMQ";

/// A private Kafka broker: one node in KRaft mode on random ports of 127.0.0.1, with its data in a
/// temporary directory; gone when this value is dropped or its owner dies, even by SIGKILL.
///
/// Topics are never made by themselves, groups don't wait for late members, and short session
/// timeouts (from 1 s) are allowed, so that a killed consumer is noticed soon.
///
/// Needs Java 17 or newer, and Maven for the jars the first time: 60 MB under `target/`.
///
/// ```no_run
/// let broker = factum_testing::kafka::KafkaServer::start()?;
/// println!("Kafka on {}", broker.bootstrap());
/// # anyhow::Ok(())
/// ```
pub struct KafkaServer {
    keeper: Keeper,
    port: u16,
}

impl KafkaServer {
    /// Formats a directory and starts a broker on it; about seven seconds, and half a minute more
    /// the first time. Returns when the broker is part of its cluster and answers.
    ///
    /// # Errors
    ///
    /// When Java or Maven is missing (with the line that installs it), or with the last lines of
    /// the broker's log.
    pub fn start() -> Result<KafkaServer> {
        let java = java()?;
        let jars = jars()?;
        let class_path = format!("{}/*", jars.display());
        for attempt in 1.. {
            // A JVM has nothing to tidy up here, so the signal that can't be delayed will do.
            let mut keeper = Keeper::new("factum-kafka-", "KILL", None)?;
            let (port, controller_port) = (free_port()?, free_port()?);
            keeper.write("log4j2.properties", LOG_SETTINGS)?;
            keeper.write("server.properties", &settings(port, controller_port))?;
            let output = keeper
                .command(&java)
                .args([
                    "-XX:TieredStopAtLevel=1",
                    "-XX:+UseSerialGC",
                    "-cp",
                    &class_path,
                ])
                .args([
                    "-Dlog4j2.configurationFile=log4j2.properties",
                    "kafka.tools.StorageTool",
                ])
                .args([
                    "format",
                    "--standalone",
                    "-t",
                    CLUSTER_ID,
                    "-c",
                    "server.properties",
                ])
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
            keeper.start(
                &java,
                [
                    "-Xmx512m",
                    "-XX:TieredStopAtLevel=1",
                    "-XX:+UseSerialGC",
                    "-cp",
                    &class_path,
                    "-Dlog4j2.configurationFile=log4j2.properties",
                    "kafka.Kafka",
                    "server.properties",
                ],
            )?;
            match keeper.wait_until(READY_LIMIT, || {
                keeper.log().contains("Kafka Server started") && is_answering(port)
            }) {
                Ok(()) => return Ok(KafkaServer { keeper, port }),
                Err(failure) if failure.is_port_taken() && attempt < PORT_TRIES => {}
                Err(failure) => return Err(failure.into_error("Kafka")),
            }
        }
        unreachable!("the loop returns")
    }

    /// The broker's `host:port`, for `bootstrap.servers`.
    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Ends the broker at once, as a crash would; its data stay.
    ///
    /// # Errors
    ///
    /// When the shell that keeps the broker has gone.
    pub fn stop(&mut self) -> Result<()> {
        self.keeper.stop()
    }

    /// Starts the broker again, on the same data and the same port; returns when it answers.
    ///
    /// # Errors
    ///
    /// With the last lines of the broker's log.
    pub fn start_again(&mut self) -> Result<()> {
        let starts = self.starts();
        let port = self.port;
        self.keeper.start_again()?;
        self.keeper
            .wait_until(READY_LIMIT, || self.starts() > starts && is_answering(port))
            .map_err(|failure| failure.into_error("Kafka"))
    }

    fn starts(&self) -> usize {
        self.keeper.log().matches("Kafka Server started").count()
    }

    /// What the broker has logged so far: warnings and errors.
    pub fn log(&self) -> String {
        self.keeper.log()
    }
}

impl fmt::Debug for KafkaServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaServer")
            .field("port", &self.port)
            .field("dir", &self.keeper.dir())
            .finish_non_exhaustive()
    }
}

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

fn settings(port: u16, controller_port: u16) -> String {
    format!(
        "\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=data
auto.create.topics.enable=false
# One node holds everything.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
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
"
    )
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

/// Whether the broker answers an ApiVersions request, the first thing that every client asks.
fn is_answering(port: u16) -> bool {
    let ask = || -> std::io::Result<bool> {
        let limit = Duration::from_secs(2);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut socket = TcpStream::connect_timeout(&address, limit)?;
        socket.set_read_timeout(Some(limit))?;
        socket.set_write_timeout(Some(limit))?;
        // Length 10, then: ApiVersions (18), version 0, correlation 7, no client id (-1).
        socket.write_all(&[0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 0xff, 0xff])?;
        let mut answer = [0; 10];
        socket.read_exact(&mut answer)?;
        // Length, the same correlation, error 0.
        Ok(answer[4..] == [0, 0, 0, 7, 0, 0])
    };
    ask().unwrap_or(false)
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
}
