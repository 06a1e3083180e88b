//! What a run does when, decided by its seed before it begins.

use std::str::FromStr as _;

use factum::bigdecimal::BigDecimal;
use fastrand::Rng;

use super::services::ServiceName;
use crate::orders::NewOrder;

/// Each so many orders share a reference, so that there is an order to keep within a key.
const ORDERS_PER_REFERENCE: u64 = 8;

/// References of one customer.
const REFERENCES_PER_CUSTOMER: u64 = 2;

/// One order in so many is in a currency that billing has no account for.
const UNBILLED_EVERY: u64 = 400;

/// Rounds of duplicates and poison. The last one comes when all else is done: a late repeat.
const ROUNDS: u32 = 4;

/// Kills of the relay, of billing and of the mailer in a large run.
const MOST_KILLS: u64 = 3;

/// So large a part of its gauge's whole a kill may wait for a busy moment.
const PATIENCE: u64 = 20;

/// A run's script.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The orders to place.
    pub orders: Vec<NewOrder>,
    /// What to do, and when.
    pub steps: Vec<Step>,
}

/// Something to do once there is enough progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// When, at the earliest: this many of what the gauge counts.
    pub from: u64,
    /// When, at the latest. In between it waits for a busy moment.
    pub until: u64,
    /// What is counted.
    pub gauge: Gauge,
    /// What to do.
    pub action: Action,
}

/// What a step's time is told by. Progress and not a clock, so that a step falls into the middle of
/// the work on any machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gauge {
    /// Orders that are confirmed.
    Confirmed,
    /// Rows of the outbox that the broker has acknowledged.
    Published,
    /// Invoices.
    Invoices,
    /// Mails.
    Mails,
}

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// SIGKILL, and start it again.
    Kill(Victim),
    /// A round of duplicates, poison, unknown types and tombstones.
    Inject(Round),
}

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// A service.
    Service(ServiceName),
    /// Whichever service's relay is at work: orders or billing.
    Relay,
}

/// A round of injections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Round {
    /// The round, from 0.
    pub number: u32,
    /// Records to send a second time, over all topics.
    pub duplicates: u64,
}

impl Plan {
    /// The plan of a seed.
    pub fn new(seed: u64, orders: u64) -> Plan {
        let mut rng = Rng::with_seed(seed);
        let orders = place(&mut rng, orders);
        let billed = orders
            .iter()
            .filter(|order| is_billed(&order.currency))
            .count() as u64;
        let mut steps = kills(&mut rng, orders.len() as u64, billed);
        steps.extend(rounds(orders.len() as u64, billed));
        Plan { orders, steps }
    }

    /// How many orders billing writes an invoice for.
    pub fn billed(&self) -> u64 {
        self.orders
            .iter()
            .filter(|order| is_billed(&order.currency))
            .count() as u64
    }

    /// How many kills there are.
    pub fn kills(&self) -> usize {
        self.steps
            .iter()
            .filter(|step| matches!(step.action, Action::Kill(_)))
            .count()
    }
}

/// Whether billing has an account in that currency.
pub fn is_billed(currency: &str) -> bool {
    crate::BILLED_CURRENCIES
        .iter()
        .any(|billed| billed.code() == currency)
}

fn place(rng: &mut Rng, number: u64) -> Vec<NewOrder> {
    let references = number.div_ceil(ORDERS_PER_REFERENCE);
    (0..number)
        .map(|place| {
            let reference = rng.u64(1..=references);
            let cents = rng.i64(1..=500_000);
            let billed = rng
                .choice(crate::BILLED_CURRENCIES)
                .map_or("EUR", |c| c.code());
            let is_unbilled = place % UNBILLED_EVERY == UNBILLED_EVERY / 2;
            NewOrder {
                order_ref: format!(
                    "C{:05}-{reference:06}",
                    reference.div_ceil(REFERENCES_PER_CUSTOMER)
                ),
                customer_id: reference.div_ceil(REFERENCES_PER_CUSTOMER) as i64,
                total_amount: cents_of(cents),
                currency: if is_unbilled { "NOK" } else { billed }.to_owned(),
            }
        })
        .collect()
}

fn cents_of(cents: i64) -> BigDecimal {
    // A whole number with two decimal places is always a decimal.
    BigDecimal::from_str(&format!("{}.{:02}", cents / 100, cents % 100)).unwrap_or_default()
}

/// Relay and consumers are killed some times, at moments spread over their work but for the very end;
/// the order desk once, in the middle.
fn kills(rng: &mut Rng, orders: u64, billed: u64) -> Vec<Step> {
    let times = (orders / 1_000).clamp(1, MOST_KILLS);
    let victims = [
        (
            Victim::Service(ServiceName::Orders),
            Gauge::Confirmed,
            orders,
            1,
        ),
        (Victim::Relay, Gauge::Published, orders + billed, times),
        (
            Victim::Service(ServiceName::Billing),
            Gauge::Invoices,
            billed,
            times,
        ),
        (
            Victim::Service(ServiceName::Mailer),
            Gauge::Mails,
            billed,
            times,
        ),
    ];
    let mut steps = Vec::new();
    for (victim, gauge, whole, times) in victims {
        for time in 0..times {
            // Within the first half of its share of the work.
            let share = (time as f64 + 0.1 + 0.4 * rng.f64()) / times as f64;
            let from = (share * whole as f64) as u64;
            let until = from + whole / PATIENCE;
            steps.push(Step {
                from,
                until,
                gauge,
                action: Action::Kill(victim),
            });
        }
    }
    steps
}

/// About 1 % of the records are sent again.
fn rounds(orders: u64, billed: u64) -> Vec<Step> {
    let duplicates = (orders + billed).div_ceil(100).div_ceil(u64::from(ROUNDS));
    (0..ROUNDS)
        .map(|number| {
            let from = (billed * u64::from(number + 1)).div_ceil(u64::from(ROUNDS));
            Step {
                from,
                until: from,
                gauge: Gauge::Mails,
                action: Action::Inject(Round { number, duplicates }),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_seed_decides_everything() {
        let (one, same, other) = (
            Plan::new(7, 5_000),
            Plan::new(7, 5_000),
            Plan::new(8, 5_000),
        );
        assert_eq!(one.orders, same.orders);
        assert_eq!(one.steps, same.steps);
        assert_ne!(one.orders, other.orders);
        assert_ne!(one.steps, other.steps);
    }

    #[test]
    fn there_is_something_to_break_at_any_size() {
        for orders in [1, 2, 10, 300, 10_000] {
            let plan = Plan::new(1, orders);
            assert_eq!(plan.orders.len() as u64, orders);
            let services = ServiceName::ALL.map(Victim::Service);
            for victim in services.into_iter().chain([Victim::Relay]) {
                assert!(
                    plan.steps
                        .iter()
                        .any(|step| step.action == Action::Kill(victim)),
                    "{victim:?}"
                );
            }
            let whole = |gauge| match gauge {
                Gauge::Confirmed => orders,
                Gauge::Published => orders + plan.billed(),
                Gauge::Invoices | Gauge::Mails => plan.billed(),
            };
            for step in &plan.steps {
                assert!(step.until <= whole(step.gauge), "{step:?} never comes");
                let is_kill = matches!(step.action, Action::Kill(_));
                assert!(
                    !is_kill || step.until < whole(step.gauge),
                    "{step:?} is not in mid-flight"
                );
            }
        }
        let plan = Plan::new(1, 10_000);
        assert_eq!(plan.kills(), 10);
        assert!(
            plan.billed() < 10_000,
            "some order must break billing's rule"
        );
        let references: HashSet<_> = plan.orders.iter().map(|order| &order.order_ref).collect();
        assert!(
            (1_000..=1_250).contains(&references.len()),
            "{}",
            references.len()
        );
    }
}
