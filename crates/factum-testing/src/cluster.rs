//! A private, throwaway cluster of Apache Kafka, whose nodes can be killed one by one.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context as _, Result, anyhow};

use crate::kafka_node::{COMMON_SETTINGS, Installation, Node, PORT_TRIES, lasting_ports};
use crate::kafka_wire;
use crate::keeper::StartFailure;

/// Three: the least of which one may be down while two copies of every record are kept.
const NODES: usize = 3;

/// Each node's data directory has an id that its peers know before it is formatted.
const DIRECTORY_IDS: [&str; NODES] = [
    "ZmFjdHVtLW5vZGUtMDAwMA",
    "ZmFjdHVtLW5vZGUtMDAwMQ",
    "ZmFjdHVtLW5vZGUtMDAwMg",
];

/// Not that of a single server: a client that confused the two would be told so.
const CLUSTER_ID: &str = "ZmFjdHVtLWNsdXN0ZXItMQ";

const HEAP: &str = "-Xmx384m";

/// Three nodes of Kafka in KRaft mode, each a broker and a controller in a process of its own, on
/// random ports of 127.0.0.1; gone when this value is dropped or its owner dies, even by SIGKILL.
///
/// Every topic has three copies unless it asks for fewer, and a write needs two of them
/// (`min.insync.replicas=2`); a copy that is behind never becomes the leader. Topics are never made
/// by themselves. A node that is killed is given up after 3 s (`broker.session.timeout.ms`, Kafka's own
/// default is 9), and then its partitions have another leader.
///
/// Nodes are numbered from 0; the number is also Kafka's `node.id`. All methods take `&self`: a test may
/// share the cluster and kill a node from a task of its own. Questions ask whichever node answers
/// first, so for some seconds after a kill an answer may still be the old one.
///
/// ```no_run
/// use factum_testing::cluster::KafkaCluster;
///
/// let cluster = KafkaCluster::start()?;
/// println!("Kafka on {}", cluster.bootstrap());
/// let coordinator = cluster.coordinator("billing-order-confirmed")?;
/// cluster.kill(coordinator)?;
/// cluster.start_again(coordinator)?;
/// # anyhow::Ok(())
/// ```
pub struct KafkaCluster {
    nodes: Vec<Mutex<Node>>,
    ports: Vec<u16>,
}

impl KafkaCluster {
    /// Formats and starts three nodes at the same time; some 15 s on two cores. Returns when all are
    /// part of the cluster and answer.
    ///
    /// # Errors
    ///
    /// When Java or Maven is missing (with the line that installs it), or with the last lines of a
    /// node's log.
    pub fn start() -> Result<KafkaCluster> {
        let kafka = Installation::find()?;
        for attempt in 1.. {
            let ports = lasting_ports(2 * NODES)?;
            let (clients, controllers) = ports.split_at(NODES);
            let mut nodes = format_all(&kafka, clients, controllers)?;
            for node in &mut nodes {
                node.start(&kafka, HEAP)?;
            }
            let ready: std::result::Result<(), StartFailure> =
                nodes.iter().try_for_each(Node::wait_ready);
            match ready {
                Ok(()) => {
                    return Ok(KafkaCluster {
                        nodes: nodes.into_iter().map(Mutex::new).collect(),
                        ports: clients.to_vec(),
                    });
                }
                Err(failure) if failure.is_port_taken() && attempt < PORT_TRIES => {}
                Err(failure) => return Err(failure.into_error("Kafka")),
            }
        }
        unreachable!("the loop returns")
    }

    /// `host:port` of all nodes, separated by commas, for `bootstrap.servers`.
    pub fn bootstrap(&self) -> String {
        let addresses: Vec<String> = self
            .ports
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        addresses.join(",")
    }

    /// How many nodes there are, whether they run or not.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Ends a node with SIGKILL; its data stay.
    ///
    /// # Errors
    ///
    /// When there is no such node, or the shell that keeps it has gone.
    pub fn kill(&self, node: usize) -> Result<()> {
        self.node(node)?.stop()
    }

    /// Starts a node again, on the same data and ports; returns when it is part of the cluster and answers.
    /// A node joins only where it makes two with those that run: after a fall of more, see
    /// [`start_all_again`](Self::start_all_again).
    ///
    /// # Errors
    ///
    /// With the last lines of the node's log.
    pub fn start_again(&self, node: usize) -> Result<()> {
        let mut node = self.node(node)?;
        node.start_again()?;
        node.wait_ready()
            .map_err(|failure| failure.into_error("Kafka"))
    }

    /// Starts these nodes at the same time; returns when all are part of the cluster and answer.
    ///
    /// # Errors
    ///
    /// With the last lines of a node's log.
    pub fn start_all_again(&self, nodes: &[usize]) -> Result<()> {
        let mut started = Vec::with_capacity(nodes.len());
        for &node in nodes {
            let mut node = self.node(node)?;
            node.start_again()?;
            started.push(node);
        }
        for node in started {
            node.wait_ready()
                .map_err(|failure| failure.into_error("Kafka"))?;
        }
        Ok(())
    }

    /// What a node has logged so far: warnings and errors. Empty for a node that isn't there.
    pub fn log(&self, node: usize) -> String {
        self.node(node).map(|node| node.log()).unwrap_or_default()
    }

    /// The node that leads a partition; `None` while none does.
    ///
    /// # Errors
    ///
    /// When no node answers, or there is no such topic or partition.
    pub fn leader(&self, topic: &str, partition: i32) -> Result<Option<usize>> {
        let partitions = self.ask(|port| kafka_wire::partitions(port, topic))?;
        let found = partitions.iter().find(|of| of.partition == partition);
        let state = found.with_context(|| format!("{topic} has no partition {partition}"))?;
        state.leader.map(number).transpose()
    }

    /// Whether every partition of a topic has a leader and all of its copies are up to date: only then may
    /// another node go without taking the last complete copy but one.
    ///
    /// # Errors
    ///
    /// When no node answers, or there is no such topic.
    pub fn is_in_sync(&self, topic: &str) -> Result<bool> {
        let partitions = self.ask(|port| kafka_wire::partitions(port, topic))?;
        Ok(partitions
            .iter()
            .all(|of| of.leader.is_some() && of.in_sync.len() == of.replicas.len()))
    }

    /// The node that coordinates a consumer group, whether the group exists or not.
    ///
    /// # Errors
    ///
    /// When no node answers, or the group has no coordinator at the moment.
    pub fn coordinator(&self, group: &str) -> Result<usize> {
        number(self.ask(|port| kafka_wire::coordinator(port, group))?)
    }

    /// The node whose controller is active.
    ///
    /// # Errors
    ///
    /// When no node answers, or there is none at the moment.
    pub fn controller(&self) -> Result<usize> {
        number(self.ask(kafka_wire::controller)?)
    }

    /// The first answer of any node.
    fn ask<T>(&self, question: impl Fn(u16) -> std::io::Result<T>) -> Result<T> {
        let mut failure = anyhow!("the cluster has no node");
        for &port in &self.ports {
            match question(port) {
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    failure = anyhow!(error).context(format!("asking Kafka at 127.0.0.1:{port}"));
                }
            }
        }
        Err(failure)
    }

    fn node(&self, node: usize) -> Result<MutexGuard<'_, Node>> {
        let found = self.nodes.get(node);
        let found = found.with_context(|| format!("the cluster has no node {node}"))?;
        // What a panic left is still a node that can be killed and started.
        Ok(found.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for KafkaCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaCluster")
            .field("ports", &self.ports)
            .finish_non_exhaustive()
    }
}

fn number(node_id: i32) -> Result<usize> {
    usize::try_from(node_id).with_context(|| format!("the cluster has no node {node_id}"))
}

fn format_all(kafka: &Installation, clients: &[u16], controllers: &[u16]) -> Result<Vec<Node>> {
    let voters: Vec<String> = controllers
        .iter()
        .zip(DIRECTORY_IDS)
        .enumerate()
        .map(|(node, (port, id))| format!("{node}@127.0.0.1:{port}:{id}"))
        .collect();
    let voters = voters.join(",");
    let format = |node: usize| {
        let settings = settings(node, clients[node], controllers);
        let quorum = ["--initial-controllers", voters.as_str()];
        Node::format(kafka, clients[node], &settings, CLUSTER_ID, &quorum)
    };
    thread::scope(|scope| {
        let formats: Vec<_> = (0..NODES)
            .map(|node| scope.spawn(move || format(node)))
            .collect();
        formats
            .into_iter()
            .map(|format| match format.join() {
                Ok(formatted) => formatted,
                Err(panic) => std::panic::resume_unwind(panic),
            })
            .collect()
    })
}

fn settings(node: usize, port: u16, controllers: &[u16]) -> String {
    let own = controllers[node];
    let quorum: Vec<String> = controllers
        .iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    let quorum = quorum.join(",");
    format!(
        "\
node.id={node}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{own}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.quorum.bootstrap.servers={quorum}
default.replication.factor=3
min.insync.replicas=2
unclean.leader.election.enable=false
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
share.coordinator.state.topic.replication.factor=3
share.coordinator.state.topic.min.isr=2
# A node that is killed is given up soon.
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
{COMMON_SETTINGS}"
    )
}
