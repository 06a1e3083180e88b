//! A private, throwaway Apache Kafka broker.

use std::fmt;

use anyhow::Result;

use crate::kafka_node::{COMMON_SETTINGS, Installation, Node, PORT_TRIES, lasting_ports};

pub use crate::kafka_node::VERSION;

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
    node: Node,
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
        let kafka = Installation::find()?;
        for attempt in 1.. {
            let ports = lasting_ports(2)?;
            let settings = settings(ports[0], ports[1]);
            let mut node =
                Node::format(&kafka, ports[0], &settings, CLUSTER_ID, &["--standalone"])?;
            node.start(&kafka, "-Xmx512m")?;
            match node.wait_ready() {
                Ok(()) => return Ok(KafkaServer { node }),
                Err(failure) if failure.is_port_taken() && attempt < PORT_TRIES => {}
                Err(failure) => return Err(failure.into_error("Kafka")),
            }
        }
        unreachable!("the loop returns")
    }

    /// The broker's `host:port`, for `bootstrap.servers`.
    pub fn bootstrap(&self) -> String {
        self.node.address()
    }

    /// Ends the broker at once, as a crash would; its data stay.
    ///
    /// # Errors
    ///
    /// When the shell that keeps the broker has gone.
    pub fn stop(&mut self) -> Result<()> {
        self.node.stop()
    }

    /// Starts the broker again, on the same data and the same port; returns when it answers.
    ///
    /// # Errors
    ///
    /// With the last lines of the broker's log.
    pub fn start_again(&mut self) -> Result<()> {
        self.node.start_again()?;
        self.node
            .wait_ready()
            .map_err(|failure| failure.into_error("Kafka"))
    }

    /// What the broker has logged so far: warnings and errors.
    pub fn log(&self) -> String {
        self.node.log()
    }
}

impl fmt::Debug for KafkaServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaServer")
            .field("port", &self.node.port())
            .field("dir", &self.node.dir())
            .finish_non_exhaustive()
    }
}

fn settings(port: u16, controller_port: u16) -> String {
    format!(
        "\
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}
# One node holds everything.
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
{COMMON_SETTINGS}"
    )
}
