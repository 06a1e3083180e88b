//! Two relays on one outbox, in every order of their steps.
//!
//! Each relay renews its lease (which takes what is free of its share), gives back what is above its share, claims, sends
//! and marks; all that twice; then it leaves. At some point a relay's lease expires, and at some point a row commits late.
//! Every order of all that is run on PostgreSQL from the start. An order that has come to a state that another has led to
//! is left there: whatever can follow has been tried.
//!
//! With two relays a share is all slots or half of them, so the slots go in two halves, and the rows' keys are in one or
//! the other.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write;
use std::time::Duration;

use factum_postgres::{ClaimLimit, Lease, OutboxRow, RelayStore};
use sqlx::{AssertSqlSafe, PgConnection};

use crate::fixture::Fixture;

/// Longer than the test.
const LEASE: Duration = Duration::from_secs(3_600);
const CLAIM_LIMIT: ClaimLimit = ClaimLimit {
    rows: 2,
    bytes: 1_000,
};
const ROUNDS: u8 = 2;
const EXPIRIES: u8 = 1;
/// Half of the slots.
const HALF: i16 = 32;
/// Rows in the order of their ids, by key, as places in [`Keys`]. The first commits late: with its key to itself, as a
/// key's rows are written under its aggregate's lock.
const ROWS: [usize; 4] = [2, 0, 1, 0];
const LATE: i64 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Actor {
    Relay(usize),
    /// The time of a relay's lease runs out.
    Clock(usize),
    /// The late row's transaction commits, once.
    Writer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Renew,
    GiveBack,
    Claim,
    Send,
    Mark,
    Leave,
    Over,
}

/// Three keys and their slots: one in the lower half, two in the upper.
#[derive(Debug)]
struct Keys([(String, i16); 3]);

impl Keys {
    async fn find(conn: &mut PgConnection) -> Keys {
        let mut find = async |lower: i16, upper: i16| -> (String, i16) {
            sqlx::query_as(
                "SELECT 'k' || n, slot FROM generate_series(1, 1000) AS n, \
                        LATERAL (SELECT (hashtextextended('k' || n, 0) & 63)::smallint AS slot) AS of_key \
                 WHERE slot >= $1 AND slot < $2 ORDER BY slot, n LIMIT 1",
            )
            .bind(lower)
            .bind(upper)
            .fetch_one(&mut *conn)
            .await
            .unwrap()
        };
        Keys([
            find(0, HALF).await,
            find(HALF, 63).await,
            find(63, 64).await,
        ])
    }

    fn of(&self, id: i64) -> &(String, i16) {
        &self.0[ROWS[usize::try_from(id).unwrap() - 1]]
    }

    fn half_of(&self, id: i64) -> usize {
        usize::from(self.of(id).1 >= HALF)
    }
}

struct Relay {
    store: RelayStore,
    next: Step,
    rounds: u8,
    lease: Option<Lease>,
    /// The lease as it was with the claim, for a batch on its way.
    claimed_under: Option<Lease>,
    claimed: Vec<OutboxRow>,
}

impl Relay {
    fn new(fixture: &Fixture, owner: &str) -> Relay {
        Relay {
            store: RelayStore::new(fixture.db.clone(), owner.to_owned(), LEASE),
            next: Step::Renew,
            rounds: 0,
            lease: None,
            claimed_under: None,
            claimed: Vec::new(),
        }
    }

    fn halves(&self) -> [bool; 2] {
        let slots = self.lease.as_ref().map_or_else(Vec::new, Lease::slots);
        let lower = slots.iter().filter(|slot| **slot < HALF).count();
        let upper = slots.len() - lower;
        assert!([0, 32].contains(&lower) && [0, 32].contains(&upper));
        [lower > 0, upper > 0]
    }
}

/// Who may send, as the rules have it.
#[derive(Debug, Default)]
struct Truth {
    /// The relay that has each half.
    holder: [Option<usize>; 2],
    announced: [bool; 2],
    expired: [bool; 2],
}

impl Truth {
    /// A relay renews: what it keeps, and free halves up to its share.
    fn renew(&mut self, n: usize) {
        let other = 1 - n;
        let share = if self.announced[other] && !self.expired[other] {
            1
        } else {
            2
        };
        let mut held = self
            .holder
            .iter()
            .filter(|holder| **holder == Some(n))
            .count();
        for half in 0..2 {
            let free =
                self.holder[half].is_none_or(|holder| holder == other && self.expired[other]);
            if free && held < share {
                self.holder[half] = Some(n);
                held += 1;
            }
        }
        self.announced[n] = true;
        self.expired[n] = false;
    }

    fn let_go(&mut self, n: usize, half: usize) {
        if self.holder[half] == Some(n) {
            self.holder[half] = None;
        }
    }

    fn holds(&self, n: usize, half: usize) -> bool {
        self.holder[half] == Some(n)
    }
}

/// One order, from an outbox with rows in it.
struct Run<'a> {
    conn: &'a mut PgConnection,
    keys: &'a Keys,
    relays: [Relay; 2],
    truth: Truth,
    expiries: u8,
    late_is_there: bool,
    published: BTreeSet<i64>,
    topic: Vec<i64>,
}

impl<'a> Run<'a> {
    async fn begin(fixture: &Fixture, conn: &'a mut PgConnection, keys: &'a Keys) -> Run<'a> {
        let mut reset = "DELETE FROM outbox; DELETE FROM relay_member; \
                         UPDATE relay_lease SET owner = '', expires_at = '-infinity' \
                         WHERE expires_at <> '-infinity';"
            .to_owned();
        for id in all_ids().filter(|id| *id != LATE) {
            reset.push_str(&insert(id, &keys.of(id).0));
        }
        sql(conn, reset).await;
        Run {
            conn,
            keys,
            relays: [Relay::new(fixture, "one"), Relay::new(fixture, "two")],
            truth: Truth::default(),
            expiries: 0,
            late_is_there: false,
            published: BTreeSet::new(),
            topic: Vec::new(),
        }
    }

    /// Who can go on.
    fn choices(&self) -> Vec<Actor> {
        let relays = (0..2).filter(|n| self.relays[*n].next != Step::Over);
        let mut choices: Vec<Actor> = relays.map(Actor::Relay).collect();
        if self.expiries < EXPIRIES {
            let alive = |n: &usize| self.truth.announced[*n] && !self.truth.expired[*n];
            choices.extend((0..2).filter(alive).map(Actor::Clock));
        }
        if !self.late_is_there {
            choices.push(Actor::Writer);
        }
        choices
    }

    async fn step(&mut self, actor: Actor) {
        match actor {
            Actor::Clock(n) => {
                self.expiries += 1;
                self.expire(n).await;
            }
            Actor::Writer => {
                self.late_is_there = true;
                sql(self.conn, insert(LATE, &self.keys.of(LATE).0)).await;
            }
            Actor::Relay(n) => self.relay_step(n).await,
        }
    }

    async fn expire(&mut self, n: usize) {
        self.truth.expired[n] = true;
        let owner = ["one", "two"][n];
        let before = "clock_timestamp() - interval '1 ms'";
        let expire = format!(
            "UPDATE relay_lease SET expires_at = {before} WHERE owner = '{owner}' AND expires_at > clock_timestamp(); \
             UPDATE relay_member SET expires_at = {before} WHERE owner = '{owner}'"
        );
        sql(self.conn, expire).await;
    }

    async fn relay_step(&mut self, n: usize) {
        let unpublished: Vec<i64> = all_ids()
            .filter(|id| self.late_is_there || *id != LATE)
            .filter(|id| !self.published.contains(id))
            .collect();
        let keys = self.keys;
        let relay = &mut self.relays[n];
        relay.next = match relay.next {
            Step::Renew => {
                match &mut relay.lease {
                    Some(lease) => {
                        relay.store.renew(lease).await.unwrap();
                    }
                    none => *none = Some(relay.store.join().await.unwrap()),
                }
                self.truth.renew(n);
                let expected = [0, 1].map(|half| self.truth.holds(n, half));
                assert_eq!(relay.halves(), expected, "{:?}", self.truth);
                match relay.lease.as_ref().map_or(0, Lease::surplus) {
                    0 => Step::Claim,
                    _ => Step::GiveBack,
                }
            }
            Step::GiveBack => {
                let lease = relay.lease.as_mut().expect("joined first");
                let slots = lease.slots();
                let surplus = &slots[slots.len() - lease.surplus()..];
                relay.store.give_back(lease, surplus).await.unwrap();
                assert_eq!(relay.halves(), [true, false]);
                self.truth.let_go(n, 1);
                Step::Claim
            }
            Step::Claim => {
                let lease = relay.lease.as_ref().expect("joined first");
                let claimed = relay
                    .store
                    .claim(lease, &lease.slots(), CLAIM_LIMIT, &[])
                    .await;
                relay.claimed = claimed.unwrap();
                relay.claimed_under = relay.lease.clone();
                let ids: Vec<i64> = relay.claimed.iter().map(|row| row.id).collect();
                let mut expected = unpublished;
                expected
                    .retain(|id| self.truth.holds(n, keys.half_of(*id)) && !self.truth.expired[n]);
                expected.sort_by_key(|id| (keys.of(*id).1, *id));
                expected.truncate(CLAIM_LIMIT.rows as usize);
                assert_eq!(ids, expected, "the first rows of its slots, and no others");
                relay.rounds += 1;
                match (relay.claimed.is_empty(), relay.rounds < ROUNDS) {
                    (false, _) => Step::Send,
                    (true, true) => Step::Renew,
                    (true, false) => Step::Leave,
                }
            }
            Step::Send => {
                self.topic.extend(relay.claimed.iter().map(|row| row.id));
                Step::Mark
            }
            Step::Mark => {
                let lease = relay.claimed_under.take().expect("claimed first");
                let ids: Vec<i64> = relay.claimed.drain(..).map(|row| row.id).collect();
                let marked = relay.store.mark_published(&lease, &ids).await.unwrap();
                let before = self.published.len();
                let held = ids
                    .iter()
                    .filter(|id| self.truth.holds(n, keys.half_of(**id)));
                self.published.extend(held);
                let expected = self.published.len() - before;
                assert_eq!(marked, expected as u64, "marked {ids:?}, {:?}", self.truth);
                if relay.rounds < ROUNDS {
                    Step::Renew
                } else {
                    Step::Leave
                }
            }
            Step::Leave => {
                let lease = relay.lease.take().expect("joined first");
                relay.store.leave(lease).await.unwrap();
                self.truth.let_go(n, 0);
                self.truth.let_go(n, 1);
                self.truth.announced[n] = false;
                Step::Over
            }
            Step::Over => unreachable!("not among the choices"),
        };
    }

    /// What holds at every moment, whoever stops here for ever.
    async fn check(&mut self) {
        let published = sqlx::query_scalar("SELECT id FROM outbox WHERE published_at IS NOT NULL")
            .fetch_all(&mut *self.conn)
            .await
            .unwrap();
        let published: BTreeSet<i64> = published.into_iter().collect();
        assert_eq!(published, self.published);
        let sent: BTreeSet<i64> = self.topic.iter().copied().collect();
        assert!(published.is_subset(&sent), "marked and never sent");
        for key in 0..3 {
            let firsts = self.firsts(key);
            assert!(firsts.is_sorted(), "{key}: {firsts:?} in {:?}", self.topic);
        }
    }

    /// The rows of a key in the order in which they first came.
    fn firsts(&self, key: usize) -> Vec<i64> {
        let mut met = HashSet::new();
        let of_key = |id: &i64| ROWS[usize::try_from(*id).unwrap() - 1] == key;
        let rows = self.topic.iter().copied().filter(of_key);
        rows.filter(|id| met.insert(*id)).collect()
    }

    /// All that can make a difference to what follows. The relays are alike, so it doesn't matter
    /// which of them is which.
    fn state(&self) -> String {
        let mut relays: Vec<String> = (0..2)
            .map(|n| {
                let relay = &self.relays[n];
                let ids: Vec<i64> = relay.claimed.iter().map(|row| row.id).collect();
                let holds = [0, 1].map(|half| self.truth.holds(n, half));
                // Halves that it believes to hold, and no longer does, make no difference: their tokens are old.
                format!(
                    "{:?} {} {holds:?} {} {} {ids:?}",
                    relay.next, relay.rounds, self.truth.announced[n], self.truth.expired[n]
                )
            })
            .collect();
        relays.sort();
        let mut state = relays.join(" | ");
        let firsts = [0, 1, 2].map(|key| self.firsts(key));
        write!(
            state,
            "{} {} {:?} {firsts:?}",
            self.expiries, self.late_is_there, self.published
        )
        .unwrap();
        state
    }

    /// Both relays are gone. A third finds what is left, and then nothing is.
    async fn end(mut self, fixture: &Fixture) {
        if !self.late_is_there {
            self.step(Actor::Writer).await;
        }
        for n in 0..2 {
            self.expire(n).await;
        }
        let third = Relay::new(fixture, "three");
        let lease = third.store.join().await.unwrap();
        assert_eq!(lease.slots().len(), 64, "all are free");
        loop {
            let rows = third
                .store
                .claim(&lease, &lease.slots(), CLAIM_LIMIT, &[])
                .await
                .unwrap();
            let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
            if ids.is_empty() {
                break;
            }
            self.topic.extend(&ids);
            third.store.mark_published(&lease, &ids).await.unwrap();
            self.published.extend(&ids);
        }
        self.check().await;
        let all: BTreeSet<i64> = all_ids().collect();
        assert_eq!(self.published, all, "rows were lost");
    }
}

fn all_ids() -> impl Iterator<Item = i64> {
    (1..).take(ROWS.len())
}

fn insert(id: i64, key: &str) -> String {
    format!(
        "INSERT INTO outbox (id, event_id, event_type, aggregate_type, aggregate_id, topic, key, \
                             payload, occurred_at) \
         OVERRIDING SYSTEM VALUE \
         VALUES ({id}, gen_random_uuid(), 't', 'Order', '{key}', 'orders', '{key}', '{{}}', now());"
    )
}

async fn sql(conn: &mut PgConnection, sql: String) {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(conn)
        .await
        .unwrap();
}

#[tokio::test]
async fn two_relays_in_every_order_keep_each_keys_order_and_lose_nothing() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.connect().await;
    let keys = Keys::find(&mut conn).await;
    let mut met = HashSet::new();
    let mut ends = 0;
    // Orders to try: what is known to be new begins with the last step.
    let mut orders: Vec<Vec<Actor>> = vec![Vec::new()];
    while let Some(mut order) = orders.pop() {
        let mut run = Run::begin(&fixture, &mut conn, &keys).await;
        for actor in &order {
            run.step(*actor).await;
        }
        loop {
            run.check().await;
            if !met.insert(run.state()) {
                break;
            }
            let choices = run.choices();
            let Some((first, others)) = choices.split_first() else {
                ends += 1;
                break;
            };
            for other in others {
                orders.push([&order[..], &[*other]].concat());
            }
            order.push(*first);
            run.step(*first).await;
        }
        run.end(&fixture).await;
    }
    // Else some order was left out: the numbers change only with the model.
    assert_eq!((met.len(), ends), (1_367, 9));
}
