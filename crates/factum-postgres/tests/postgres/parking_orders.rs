//! No race between the last parked event and a fresh one of its key: every order of a lane's and a retrier's steps,
//! and of two retriers', on the real database.
//!
//! A key has one parked event. Its lane takes two more, each in a transaction of three steps; a retrier handles the
//! parked one and frees the key, in five. All 462 orders are run, each on a key of its own. Where the database lets
//! a step wait for the other side, its turn passes, and it goes on as soon as it may. Afterwards everything is
//! worked off, and each key's events must have been handled once, in their order, and nothing be left behind.

use factum_event::EventId;
use factum_postgres::{
    Dedup, DedupVerdict, DueKey, ParkedHead, ParkedRecord, Parking, Session, TransactionId,
    new_event_id,
};
use sqlx::{Connection as _, PgConnection};
use tokio::task::JoinHandle;

use crate::fixture::{Fixture, LIMIT};

const CONSUMER: &str = "billing";
const TOPIC: &str = "orders.confirmed";

fn record(event: (i64, EventId), key: &[u8]) -> ParkedRecord<'_> {
    ParkedRecord {
        topic: TOPIC,
        partition: 0,
        offset: event.0,
        key,
        keyless: false,
        value: b"{}",
        headers: &[],
        event_id: event.1,
        event_type: "order.confirmed.v1",
    }
}

async fn handle(session: &mut Session, key: &[u8], id: EventId) {
    sqlx::query("INSERT INTO handled (key, event_id) VALUES ($1, $2)")
        .bind(key)
        .bind(id.as_uuid())
        .execute(session.conn())
        .await
        .unwrap();
}

/// A session, and how the server calls it.
async fn open(fixture: &Fixture) -> (Session, i32) {
    let mut session = Session::open(&fixture.db).await.unwrap();
    session.begin().await.unwrap();
    let pid = sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(session.conn())
        .await
        .unwrap();
    session.rollback().await.unwrap();
    (session, pid)
}

async fn fixture() -> Fixture {
    let fixture = Fixture::new().await;
    fixture
        .sql("CREATE TABLE handled (id bigint GENERATED ALWAYS AS IDENTITY, key bytea, event_id uuid)")
        .await;
    fixture
}

/// Parks a key with one event that failed and is due.
async fn park(session: &mut Session, due: &DueKey, event: (i64, EventId)) {
    let parking = Parking {
        attempts: 1,
        max_attempts: 8,
        wait: Some(std::time::Duration::ZERO),
        error: "not yet",
    };
    session.begin().await.unwrap();
    let xid = session.transaction_id().await.unwrap();
    let now = time::OffsetDateTime::now_utc();
    let row = record(event, &due.key);
    assert!(
        session
            .park_key(CONSUMER, &row, &parking, now)
            .await
            .unwrap()
    );
    session.commit(xid).await.unwrap();
}

/// A lane with events of one key, each in a transaction of three steps.
struct Lane {
    idle: Option<Session>,
    pid: i32,
    key: Vec<u8>,
    events: std::vec::IntoIter<(i64, EventId)>,
    stage: Stage,
}

enum Stage {
    Begin,
    /// The dedup statement is under way: it may wait for the retrier.
    Dedup((i64, EventId), JoinHandle<(Session, Dedup)>),
    Act((i64, EventId), Dedup),
    Commit(TransactionId),
}

impl Lane {
    async fn step(&mut self, watch: &mut PgConnection) {
        match std::mem::replace(&mut self.stage, Stage::Begin) {
            Stage::Begin => {
                let Some(event) = self.events.next() else {
                    return;
                };
                let mut session = self.idle.take().unwrap();
                let key = self.key.clone();
                let task = tokio::spawn(async move {
                    session.begin().await.unwrap();
                    let events = [(event.1, key.as_slice())];
                    let dedup = session.dedup_unless_parked(CONSUMER, TOPIC, &events);
                    let dedup = dedup.await.unwrap();
                    (session, dedup)
                });
                self.stage = Stage::Dedup(event, task);
                self.look(watch).await;
            }
            // Its turn passes: it waits.
            waiting @ Stage::Dedup(..) => self.stage = waiting,
            Stage::Act(event, dedup) => {
                let session = self.idle.as_mut().unwrap();
                match dedup.verdicts[0] {
                    DedupVerdict::Fresh => handle(session, &self.key, event.1).await,
                    DedupVerdict::Parked => {
                        let rows = [record(event, &self.key)];
                        let behind = session.park_behind(CONSUMER, TOPIC, &rows, Some(10)).await;
                        let behind = behind.unwrap();
                        assert_eq!((behind.added, behind.full), (1, false));
                    }
                    other => panic!("{other:?}"),
                }
                self.stage = Stage::Commit(dedup.xid);
            }
            Stage::Commit(xid) => self.idle.as_mut().unwrap().commit(xid).await.unwrap(),
        }
    }

    /// Waits until the dedup statement is done, or waits for a lock.
    async fn look(&mut self, watch: &mut PgConnection) {
        let Stage::Dedup(_, task) = &self.stage else {
            return;
        };
        let pid = self.pid;
        let mut locked = false;
        factum_testing::eventually(LIMIT, "a lane that is done or waits", async || {
            if task.is_finished() {
                return true;
            }
            locked = sqlx::query_scalar(
                "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)",
            )
            .bind(pid)
            .fetch_one(&mut *watch)
            .await
            .unwrap();
            locked
        })
        .await;
        if !task.is_finished() {
            return;
        }
        let Stage::Dedup(event, task) = std::mem::replace(&mut self.stage, Stage::Begin) else {
            return;
        };
        let (session, dedup) = task.await.unwrap();
        self.idle = Some(session);
        self.stage = Stage::Act(event, dedup);
    }

    fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Begin) && self.events.as_slice().is_empty()
    }

    fn waits(&self) -> bool {
        matches!(self.stage, Stage::Dedup(..))
    }
}

/// A retrier with one key: it handles the first event in two steps, then frees the key in three.
struct Retrier {
    session: Session,
    due: DueKey,
    step: usize,
    claimed: Option<(ParkedHead, Dedup, EventId)>,
    first: EventId,
    locked: Option<TransactionId>,
}

impl Retrier {
    const STEPS: usize = 5;

    async fn step(&mut self) {
        self.step += 1;
        match self.step {
            1 => self.claim(self.first).await,
            2 => self.settle().await,
            3 => {
                self.session.begin().await.unwrap();
                let xid = self.session.transaction_id().await.unwrap();
                let locked = self.session.lock_parked_key(CONSUMER, &self.due).await;
                if locked.unwrap() {
                    self.locked = Some(xid);
                } else {
                    self.session.rollback().await.unwrap();
                }
            }
            4 if self.locked.is_some() => {
                let freed = self.session.free_parked_key(CONSUMER, &self.due).await;
                freed.unwrap();
            }
            5 => {
                if let Some(xid) = self.locked.take() {
                    self.session.commit(xid).await.unwrap();
                }
            }
            _ => {}
        }
    }

    async fn claim(&mut self, id: EventId) {
        let head = self.session.parked_events(CONSUMER, &self.due, 1).await;
        let head = head.unwrap().unwrap();
        self.session.begin().await.unwrap();
        let claimed = self.session.claim_parked(CONSUMER, &self.due, &head).await;
        if !claimed.unwrap() {
            self.session.rollback().await.unwrap();
            return;
        }
        let dedup = self.session.dedup(CONSUMER, &[id]).await.unwrap();
        self.claimed = Some((head, dedup, id));
    }

    async fn settle(&mut self) {
        let Some((head, dedup, id)) = self.claimed.take() else {
            return;
        };
        if dedup.verdicts[0] == DedupVerdict::Fresh {
            handle(&mut self.session, &self.due.key, id).await;
        }
        let settled = self.session.settle_parked(CONSUMER, &self.due, &head).await;
        settled.unwrap();
        self.session.commit(dedup.xid).await.unwrap();
    }

    /// Works the key off, nobody else being about. The ids by offset.
    async fn finish(&mut self, ids: &[EventId]) {
        while let Some(head) = self
            .session
            .parked_events(CONSUMER, &self.due, 1)
            .await
            .unwrap()
        {
            if let Some(event) = head.events.first() {
                self.claim(ids[usize::try_from(event.offset).unwrap()])
                    .await;
                self.settle().await;
                continue;
            }
            self.step = 2;
            while self.step < Retrier::STEPS {
                self.step().await;
            }
        }
    }
}

/// Every order of `a` steps of one side and `b` of the other; `true` is the first side's.
fn orders(a: usize, b: usize) -> Vec<Vec<bool>> {
    if a == 0 && b == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (side, left) in [(true, a.checked_sub(1)), (false, b.checked_sub(1))] {
        let Some(left) = left else { continue };
        let rest = if side {
            orders(left, b)
        } else {
            orders(a, left)
        };
        all.extend(rest.into_iter().map(|mut order| {
            order.insert(0, side);
            order
        }));
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn no_order_of_a_lane_and_a_retrier_loses_doubles_or_swaps_an_event() {
    let fixture = fixture().await;
    let mut watch = fixture.connect().await;
    let (mut lane_session, pid) = open(&fixture).await;
    let (mut retrier_session, _) = open(&fixture).await;
    let orders = orders(6, Retrier::STEPS);
    assert_eq!(orders.len(), 462);
    let mut waited = 0;
    let mut fresh_after_parked = 0;
    for (number, order) in orders.iter().enumerate() {
        let key = format!("k{number}").into_bytes();
        let due = DueKey {
            topic: TOPIC.to_owned(),
            key: key.clone(),
        };
        // Offsets are unique in the partition; the ids are found by them.
        let offset = i64::try_from(number).unwrap() * 3;
        let ids = [new_event_id(), new_event_id(), new_event_id()];
        park(&mut retrier_session, &due, (offset, ids[0])).await;
        let mut lane = Lane {
            idle: Some(lane_session),
            pid,
            key: key.clone(),
            events: vec![(offset + 1, ids[1]), (offset + 2, ids[2])].into_iter(),
            stage: Stage::Begin,
        };
        let mut retrier = Retrier {
            session: retrier_session,
            due,
            step: 0,
            claimed: None,
            first: ids[0],
            locked: None,
        };
        for lanes_turn in order {
            if *lanes_turn {
                lane.step(&mut watch).await;
                waited += usize::from(lane.waits());
            } else {
                retrier.step().await;
                lane.look(&mut watch).await;
            }
        }
        while !lane.is_done() {
            lane.step(&mut watch).await;
        }
        let parked: i64 = sqlx::query_scalar("SELECT count(*) FROM parked_event")
            .fetch_one(&mut watch)
            .await
            .unwrap();
        fresh_after_parked += usize::from(parked == 0);
        let mut by_offset = vec![ids[0]; usize::try_from(offset).unwrap()];
        by_offset.extend(ids);
        retrier.finish(&by_offset).await;

        let handled: Vec<uuid::Uuid> =
            sqlx::query_scalar("SELECT event_id FROM handled WHERE key = $1 ORDER BY id")
                .bind(&key)
                .fetch_all(&mut watch)
                .await
                .unwrap();
        let expected = ids.map(EventId::as_uuid);
        assert_eq!(handled, expected, "order {number}: {order:?}");
        let left: i64 = sqlx::query_scalar(
            "SELECT (SELECT count(*) FROM parked_event) + (SELECT count(*) FROM parked_key)",
        )
        .fetch_one(&mut watch)
        .await
        .unwrap();
        assert_eq!(left, 0, "order {number}: {order:?}");
        lane_session = lane.idle.take().unwrap();
        retrier_session = retrier.session;
    }
    // The orders do what they are for: some lanes wait for a deletion, some keys are free before the lane comes.
    assert!(
        waited > 0 && fresh_after_parked > 0,
        "{waited} {fresh_after_parked}"
    );
    watch.close().await.unwrap();
}

#[tokio::test]
async fn no_order_of_two_retriers_handles_an_event_twice() {
    let fixture = fixture().await;
    let mut watch = fixture.connect().await;
    let (mut first, _) = open(&fixture).await;
    let (mut second, _) = open(&fixture).await;
    // Freeing is one step here: settling waits for it.
    let orders = orders(3, 3);
    assert_eq!(orders.len(), 20);
    for (number, order) in orders.iter().enumerate() {
        let key = format!("k{number}").into_bytes();
        let due = DueKey {
            topic: TOPIC.to_owned(),
            key: key.clone(),
        };
        let offset = i64::try_from(number).unwrap();
        let id = new_event_id();
        park(&mut first, &due, (offset, id)).await;
        let retrier = |session, due| Retrier {
            session,
            due,
            step: 0,
            claimed: None,
            first: id,
            locked: None,
        };
        let mut one = retrier(first, due.clone());
        let mut two = retrier(second, due);
        for firsts_turn in order {
            let actor = if *firsts_turn { &mut one } else { &mut two };
            // A retrier whose key has gone meanwhile has nothing to do.
            let head = actor.session.parked_events(CONSUMER, &actor.due, 1).await;
            let gone = actor.step == 0 && head.is_ok_and(|head| head.is_none());
            if gone {
                actor.step = Retrier::STEPS;
            }
            actor.step().await;
            while (3..Retrier::STEPS).contains(&actor.step) {
                actor.step().await;
            }
        }
        let by_offset = vec![id; number + 1];
        one.finish(&by_offset).await;
        let handled: i64 = sqlx::query_scalar("SELECT count(*) FROM handled WHERE key = $1")
            .bind(&key)
            .fetch_one(&mut watch)
            .await
            .unwrap();
        assert_eq!(handled, 1, "order {number}: {order:?}");
        (first, second) = (one.session, two.session);
    }
    watch.close().await.unwrap();
}
