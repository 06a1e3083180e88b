//! Four questions to a broker in Kafka's own protocol, so that the bare crate needs no client.
//!
//! Each asks one broker on the loopback address, and gives nothing when it doesn't answer soon.

use std::io::{Error, ErrorKind, Read as _, Result, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// How long a broker may take for an answer.
const LIMIT: Duration = Duration::from_secs(2);

/// No answer here is longer: it would be that of somebody else.
const ANSWER_MAX: usize = 1 << 20;

const CORRELATION: i32 = 7;

/// A partition as its broker sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartitionState {
    pub(crate) partition: i32,
    /// The leader's node id; `None` while there is none.
    pub(crate) leader: Option<i32>,
    pub(crate) replicas: Vec<i32>,
    pub(crate) in_sync: Vec<i32>,
}

/// Whether the broker answers an ApiVersions request, the first thing that every client asks.
pub(crate) fn is_answering(port: u16) -> bool {
    let answer = Question::new(18, 0).ask(port);
    answer.is_ok_and(|mut answer| answer.i16().is_ok_and(|error| error == 0))
}

/// The partitions of a topic; an error also when there is no such topic.
pub(crate) fn partitions(port: u16, topic: &str) -> Result<Vec<PartitionState>> {
    // Version 0 would leave out the copies whose nodes are down.
    let mut question = Question::new(3, 1);
    question.i32(1).text(topic);
    let mut answer = question.ask(port)?;
    for _ in 0..answer.i32()? {
        answer.i32()?;
        answer.text()?;
        answer.i32()?;
        answer.text()?; // the rack
    }
    // KRaft names any node here, so it says nothing about the controller.
    answer.i32()?;
    if answer.i32()? != 1 {
        return Err(unexpected("another number of topics"));
    }
    let error = answer.i16()?;
    answer.text()?;
    answer.take(1)?; // whether it is internal
    if error != 0 {
        return Err(unexpected(&format!("error {error} for the topic {topic}")));
    }
    let mut partitions = Vec::new();
    for _ in 0..answer.i32()? {
        // A partition without a leader says so here; so does its leader, -1.
        answer.i16()?;
        partitions.push(PartitionState {
            partition: answer.i32()?,
            leader: Some(answer.i32()?).filter(|leader| *leader >= 0),
            replicas: answer.i32_list()?,
            in_sync: answer.i32_list()?,
        });
    }
    Ok(partitions)
}

/// The node that coordinates a group.
pub(crate) fn coordinator(port: u16, group: &str) -> Result<i32> {
    let mut question = Question::new(10, 0);
    question.text(group);
    let mut answer = question.ask(port)?;
    match answer.i16()? {
        0 => answer.i32(),
        error => Err(unexpected(&format!("error {error} for the group {group}"))),
    }
}

/// The node whose controller is active.
pub(crate) fn controller(port: u16) -> Result<i32> {
    let mut question = Question::new(55, 0);
    // From here on lists and texts are compact: their lengths are one more, in one byte.
    const LOG: &str = "__cluster_metadata";
    question.bytes(&[0]); // no tags in the header
    question.bytes(&[2, LOG.len() as u8 + 1]);
    question.bytes(LOG.as_bytes());
    question.bytes(&[2]).i32(0);
    question.bytes(&[0, 0, 0]); // no tags of the partition, the topic, the question
    let mut answer = question.ask(port)?;
    answer.take(1)?; // tags of the header
    if answer.i16()? != 0 {
        return Err(unexpected("an error for the controllers' quorum"));
    }
    let named = answer.take(2)?[1];
    answer.take(usize::from(named.saturating_sub(1)))?;
    answer.take(1)?;
    answer.i32()?;
    if answer.i16()? != 0 {
        return Err(unexpected("an error for the controllers' quorum"));
    }
    answer.i32()
}

fn unexpected(what: &str) -> Error {
    Error::new(
        ErrorKind::InvalidData,
        format!("the broker answered {what}"),
    )
}

struct Question(Vec<u8>);

impl Question {
    fn new(key: i16, version: i16) -> Question {
        let mut question = Question(vec![0; 4]);
        question.bytes(&key.to_be_bytes());
        question.bytes(&version.to_be_bytes());
        question.i32(CORRELATION);
        question.bytes(&(-1_i16).to_be_bytes()); // no client id
        question
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend(bytes);
        self
    }

    fn i32(&mut self, number: i32) -> &mut Self {
        self.bytes(&number.to_be_bytes())
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(&(text.len() as i16).to_be_bytes());
        self.bytes(text.as_bytes())
    }

    fn ask(mut self, port: u16) -> Result<Answer> {
        let length = (self.0.len() - 4) as i32;
        self.0[..4].copy_from_slice(&length.to_be_bytes());
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut socket = TcpStream::connect_timeout(&address, LIMIT)?;
        socket.set_read_timeout(Some(LIMIT))?;
        socket.set_write_timeout(Some(LIMIT))?;
        socket.write_all(&self.0)?;
        let mut length = [0; 4];
        socket.read_exact(&mut length)?;
        let length = usize::try_from(i32::from_be_bytes(length)).unwrap_or(0);
        if length > ANSWER_MAX {
            return Err(unexpected("more than it should"));
        }
        let mut bytes = vec![0; length];
        socket.read_exact(&mut bytes)?;
        let mut answer = Answer { bytes, at: 0 };
        match answer.i32()? {
            CORRELATION => Ok(answer),
            _ => Err(unexpected("another question")),
        }
    }
}

struct Answer {
    bytes: Vec<u8>,
    at: usize,
}

impl Answer {
    fn take(&mut self, count: usize) -> Result<&[u8]> {
        let taken = self.bytes.get(self.at..self.at + count);
        self.at += count;
        taken.ok_or_else(|| unexpected("less than it should"))
    }

    fn i16(&mut self) -> Result<i16> {
        let bytes = self.take(2)?;
        Ok(i16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn i32(&mut self) -> Result<i32> {
        let bytes = self.take(4)?;
        Ok(i32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn i32_list(&mut self) -> Result<Vec<i32>> {
        (0..self.i32()?).map(|_| self.i32()).collect()
    }

    fn text(&mut self) -> Result<()> {
        let length = self.i16()?;
        self.take(usize::try_from(length).unwrap_or(0))?;
        Ok(())
    }
}
