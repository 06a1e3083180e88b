//! What dies, and when: drawn from the seed, so that a run can be repeated.

use std::fmt;

use fastrand::Rng;

/// How many consumers, relays and brokers there are, each.
pub const OF_EACH: usize = 3;

/// What is killed. Numbers are from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Victim {
    /// A consumer's process, by SIGKILL; it is started again at once.
    Consumer(usize),
    /// A relay's process, likewise.
    Relay(usize),
    /// A node of Kafka, by SIGKILL; it is started again when the others have recovered.
    Broker(usize),
    /// PostgreSQL, stopped in immediate mode, and started again at once.
    Postgres,
}

impl fmt::Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Victim::Consumer(number) => write!(f, "consumer {}", number + 1),
            Victim::Relay(number) => write!(f, "relay {}", number + 1),
            Victim::Broker(number) => write!(f, "broker {}", number + 1),
            Victim::Postgres => f.write_str("PostgreSQL"),
        }
    }
}

/// How often each victim dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Each consumer and each relay.
    pub process: usize,
    /// Each broker.
    pub broker: usize,
    /// PostgreSQL.
    pub postgres: usize,
}

/// One death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    /// Who dies.
    pub victim: Victim,
    /// When so many thousandths of the outage's share of the orders are placed, at most half of it: the rest is work
    /// while it is recovered from.
    pub at_thousandth: u64,
}

/// The deaths in their order.
pub fn plan(seed: u64, times: Times) -> Vec<Outage> {
    let mut rng = Rng::with_seed(seed);
    let mut victims = Vec::new();
    for number in 0..OF_EACH {
        let processes = [Victim::Consumer(number), Victim::Relay(number)];
        victims.extend((0..times.process).flat_map(|_| processes));
        victims.extend((0..times.broker).map(|_| Victim::Broker(number)));
    }
    victims.extend((0..times.postgres).map(|_| Victim::Postgres));
    rng.shuffle(&mut victims);
    let outage = |victim| Outage {
        victim,
        at_thousandth: rng.u64(..=500),
    };
    victims.into_iter().map(outage).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const TIMES: Times = Times {
        process: 5,
        broker: 1,
        postgres: 2,
    };

    #[test]
    fn each_dies_as_often_as_it_should() {
        let plan = plan(7, TIMES);
        let mut deaths: HashMap<Victim, usize> = HashMap::new();
        for outage in &plan {
            *deaths.entry(outage.victim).or_default() += 1;
            assert!(outage.at_thousandth <= 500);
        }
        for number in 0..OF_EACH {
            assert_eq!(deaths[&Victim::Consumer(number)], 5);
            assert_eq!(deaths[&Victim::Relay(number)], 5);
            assert_eq!(deaths[&Victim::Broker(number)], 1);
        }
        assert_eq!(deaths[&Victim::Postgres], 2);
    }

    #[test]
    fn a_seed_repeats_the_run_and_another_does_not() {
        assert_eq!(plan(7, TIMES), plan(7, TIMES));
        assert_ne!(plan(7, TIMES), plan(8, TIMES));
    }
}
