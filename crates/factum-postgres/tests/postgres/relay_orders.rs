//! Two relays on one outbox, in every order of their steps.
//!
//! Each relay takes the lease, then twice claims, sends and marks, then gives the lease up. Twice,
//! at some points, the lease expires, and at some point a row commits late. Every order of all that is run on
//! PostgreSQL from the start. An order that has come to a state that another has led to is left there:
//! whatever can follow has been tried.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write;
use std::time::Duration;

use factum_postgres::{Lease, OutboxRow, RelayStore};
use sqlx::{AssertSqlSafe, PgConnection};

use crate::fixture::Fixture;

/// Longer than the test.
const LEASE: Duration = Duration::from_secs(3_600);
const CLAIM_LIMIT: u32 = 2;
const ROUNDS: u8 = 2;
const EXPIRIES: u8 = 2;
/// Rows in the order of their ids, by key. The first commits late: with its key to itself, as a key's rows
/// are written under its aggregate's lock.
const KEYS: [&str; 4] = ["late", "a", "b", "a"];
const LATE: i64 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Actor {
    Relay(usize),
    /// The lease's time runs out.
    Clock,
    /// The late row's transaction commits, once.
    Writer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Acquire,
    Claim,
    Send,
    Mark,
    Release,
    Over,
}

struct Relay {
    store: RelayStore,
    next: Step,
    rounds: u8,
    lease: Option<Lease>,
    claimed: Vec<OutboxRow>,
}

impl Relay {
    fn new(fixture: &Fixture, owner: &str) -> Relay {
        Relay {
            store: RelayStore::new(fixture.db.clone(), owner.to_owned(), LEASE),
            next: Step::Acquire,
            rounds: 0,
            lease: None,
            claimed: Vec::new(),
        }
    }
}

/// Who may send, as the lease's rules have it.
#[derive(Debug, Default)]
struct Holder {
    relay: Option<usize>,
    expired: bool,
}

/// One order, from an outbox with rows in it.
struct Run<'a> {
    conn: &'a mut PgConnection,
    relays: [Relay; 2],
    holder: Holder,
    expiries: u8,
    late_is_there: bool,
    published: BTreeSet<i64>,
    topic: Vec<i64>,
}

impl<'a> Run<'a> {
    async fn begin(fixture: &Fixture, conn: &'a mut PgConnection) -> Run<'a> {
        let rows = (LATE + 1..).zip(&KEYS[1..]);
        let mut reset = "DELETE FROM outbox; \
                         UPDATE relay_lease SET owner = '', expires_at = '-infinity' \
                         WHERE expires_at <> '-infinity';"
            .to_owned();
        rows.for_each(|(id, key)| reset.push_str(&insert(id, key)));
        sql(conn, reset).await;
        Run {
            conn,
            relays: [Relay::new(fixture, "one"), Relay::new(fixture, "two")],
            holder: Holder::default(),
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
        // A lease that nobody has can't run out.
        if self.expiries < EXPIRIES && self.holder.relay.is_some() && !self.holder.expired {
            choices.push(Actor::Clock);
        }
        if !self.late_is_there {
            choices.push(Actor::Writer);
        }
        choices
    }

    async fn step(&mut self, actor: Actor) {
        match actor {
            Actor::Clock => {
                self.expiries += 1;
                self.holder.expired = true;
                let expire =
                    "UPDATE relay_lease SET expires_at = clock_timestamp() - interval '1 ms'";
                sql(self.conn, expire.to_owned()).await;
            }
            Actor::Writer => {
                self.late_is_there = true;
                sql(self.conn, insert(LATE, KEYS[0])).await;
            }
            Actor::Relay(n) => self.relay_step(n).await,
        }
    }

    async fn relay_step(&mut self, n: usize) {
        let holds = self.holder.relay == Some(n);
        let unpublished: Vec<i64> = (1..)
            .take(KEYS.len())
            .filter(|id| self.late_is_there || *id != LATE)
            .filter(|id| !self.published.contains(id))
            .collect();
        let relay = &mut self.relays[n];
        relay.next = match relay.next {
            Step::Acquire => {
                relay.lease = relay.store.acquire().await.unwrap();
                let free = self.holder.relay.is_none() || self.holder.expired;
                assert_eq!(relay.lease.is_some(), free, "one relay at a time");
                if free {
                    self.holder = Holder {
                        relay: Some(n),
                        expired: false,
                    };
                    Step::Claim
                } else {
                    Step::Over
                }
            }
            Step::Claim => {
                let lease = relay.lease.as_ref().expect("acquired first");
                let claimed = relay.store.claim(lease, CLAIM_LIMIT, &[]).await;
                relay.claimed = claimed.unwrap();
                let ids: Vec<i64> = relay.claimed.iter().map(|row| row.id).collect();
                let mut expected = unpublished;
                expected.truncate(CLAIM_LIMIT as usize);
                if !holds || self.holder.expired {
                    expected.clear();
                }
                assert_eq!(ids, expected, "the first rows, and none without the lease");
                relay.rounds += 1;
                match (relay.claimed.is_empty(), relay.rounds < ROUNDS) {
                    (false, _) => Step::Send,
                    (true, true) => Step::Claim,
                    (true, false) => Step::Release,
                }
            }
            Step::Send => {
                self.topic.extend(relay.claimed.iter().map(|row| row.id));
                Step::Mark
            }
            Step::Mark => {
                let lease = relay.lease.as_ref().expect("acquired first");
                let ids: Vec<i64> = relay.claimed.drain(..).map(|row| row.id).collect();
                let marked = relay.store.mark_published(lease, &ids).await.unwrap();
                let before = self.published.len();
                if holds {
                    self.published.extend(&ids);
                }
                let expected = self.published.len() - before;
                assert_eq!(marked, expected as u64, "marked {ids:?}, holding: {holds}");
                if holds && relay.rounds < ROUNDS {
                    Step::Claim
                } else {
                    // As the relay does: with nothing marked, the lease is lost.
                    Step::Release
                }
            }
            Step::Release => {
                let lease = relay.lease.take().expect("acquired first");
                relay.store.release(lease).await.unwrap();
                if holds {
                    self.holder = Holder::default();
                }
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
        for key in KEYS {
            let firsts = self.firsts(key);
            assert!(firsts.is_sorted(), "{key}: {firsts:?} in {:?}", self.topic);
        }
    }

    /// The rows of a key in the order in which they first came.
    fn firsts(&self, key: &str) -> Vec<i64> {
        let mut met = HashSet::new();
        let of_key = |id: &i64| KEYS[usize::try_from(*id).unwrap() - 1] == key;
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
                let holds = self.holder.relay == Some(n);
                format!("{:?} {} {holds} {ids:?}", relay.next, relay.rounds)
            })
            .collect();
        relays.sort();
        let mut state = relays.join(" | ");
        let firsts = KEYS.map(|key| self.firsts(key));
        write!(
            state,
            "{} {} {} {:?} {firsts:?}",
            self.holder.expired, self.expiries, self.late_is_there, self.published
        )
        .unwrap();
        state
    }

    /// Both relays are gone. A third finds what is left, and then nothing is.
    async fn end(mut self, fixture: &Fixture) {
        if !self.late_is_there {
            self.step(Actor::Writer).await;
        }
        if self.holder.relay.is_some() {
            self.step(Actor::Clock).await;
        }
        let third = Relay::new(fixture, "three");
        let lease = third.store.acquire().await.unwrap().expect("it is free");
        loop {
            let rows = third.store.claim(&lease, CLAIM_LIMIT, &[]).await.unwrap();
            let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
            if ids.is_empty() {
                break;
            }
            self.topic.extend(&ids);
            third.store.mark_published(&lease, &ids).await.unwrap();
            self.published.extend(&ids);
        }
        self.check().await;
        let all: BTreeSet<i64> = (1..).take(KEYS.len()).collect();
        assert_eq!(self.published, all, "rows were lost");
    }
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
    let mut met = HashSet::new();
    let mut ends = 0;
    // Orders to try: what is known to be new begins with the last step.
    let mut orders: Vec<Vec<Actor>> = vec![Vec::new()];
    while let Some(mut order) = orders.pop() {
        let mut run = Run::begin(&fixture, &mut conn).await;
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
    assert_eq!((met.len(), ends), (1_047, 28));
}
