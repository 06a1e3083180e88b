//! The relay at work: it keeps its lease, claims rows, and sends them off in flights.
//!
//! # How the order of a key holds with several batches on their way
//!
//! A key is in at most one flight. While a flight is on its way, no claim returns rows of its slots. When it takes its time,
//! its slots are free for others, and the keys of what it still has are held instead, one by one: a slow topic keeps its
//! own keys waiting, and nobody else's. A row that fails is unpublished, and by the time its key is free again it
//! is the first of its key in the next claim.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use factum_fault::Point;
use factum_kafka::Producer;
use factum_postgres::{ClaimLimit, Lease, OutboxRow, RelayStore, SLOTS};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::flight::{Airport, Fate, Flight, Landing, Route, lock};
use super::held_keys::HeldKeys;
use super::stats::Counted;
use super::trouble::{Trouble, jittered};
use super::{Relay, RelayContext, RelayError, SENDING_LIMIT, covers_a_batch};
use crate::health::Vitals;
use crate::wake::Wake;

/// How often the lease is renewed at least, and how often a relay with too few slots looks for free ones.
const RENEWED_EVERY: Duration = Duration::from_secs(2);
const SLOTS_ASKED_EVERY: Duration = Duration::from_secs(1);
/// Marks at the same time: each holds a connection to the database.
const MARKS_MAX: usize = 2;
/// Flights at the same time, those included that take their time, as a multiple of the batches in flight.
const FLIGHTS_PER_BATCH: usize = 4;
/// Detours at the same time: each has a producer of its own.
const DETOURS_MAX: usize = 2;
/// How long a topic that kept others waiting goes by detours although nothing of it was sent since.
const DETOUR_FORGOTTEN: Duration = Duration::from_secs(600);
/// What a row holds in memory beside its payload, about.
const ROW_BYTES: u64 = 500;

/// A relay at work.
pub(super) struct Dispatch {
    relay: Relay,
    airport: Arc<Airport>,
    producer: Arc<Producer>,
    wake: Wake,
    vitals: Arc<Vitals>,
    shutdown: CancellationToken,
    broker: Trouble,

    lease: Option<Lease>,
    renew_at: Instant,
    /// Slots of which nothing is claimed any more, because they are to be given back.
    leaving: BTreeSet<i16>,

    claim_at: Instant,
    last_was_empty: bool,
    /// When the last claim began, if it found nothing: until something happens, the next one comes when the wake says so.
    found_nothing_at: Option<tokio::time::Instant>,
    /// Where the next claim begins, so that no slot starves.
    next_slot: i16,
    held: HeldKeys,
    /// Topics that kept others waiting, and since when.
    detoured: HashMap<String, Instant>,

    flights: HashMap<u64, OnItsWay>,
    next_number: u64,
    published_at: Option<Instant>,
    tasks: JoinSet<()>,
    to_landings: mpsc::UnboundedSender<Landing>,
    landings: mpsc::UnboundedReceiver<Landing>,
}

/// A flight, as the dispatch sees it.
struct OnItsWay {
    rows: Arc<[OutboxRow]>,
    route: Route,
    /// The slots that it keeps for itself; none once it takes its time.
    slots: HashSet<i16>,
    /// The rows that have not landed.
    left: HashSet<usize>,
    bytes: u64,
    began: Instant,
    /// Whether the broker had an answer for any row.
    answered: bool,
    troubled: bool,
    /// Whether there was room for each key that must wait.
    all_held: bool,
}

impl Dispatch {
    pub(super) fn new(
        relay: Relay,
        context: RelayContext,
        shutdown: CancellationToken,
    ) -> Result<Dispatch, RelayError> {
        let cloud_events = relay.cloud_events.clone().or(context.cloud_events);
        let mut store = RelayStore::new(context.db, context.owner, relay.lease);
        if cloud_events.is_some() {
            store = store.with_occasions();
        }
        // A setting that the client refuses shows at the start, not at the first row.
        let producer = Producer::connect(&context.kafka, SENDING_LIMIT);
        let producer = Arc::new(producer.map_err(RelayError::Kafka)?);
        let now = Instant::now();
        let (to_landings, landings) = mpsc::unbounded_channel();
        let airport = Airport {
            store,
            cloud_events,
            counted: Counted::new(relay.stats(), context.service),
            lease_end: Mutex::new(now),
            lease_left: relay.lease_left(),
            attempts: relay.attempts,
            marks: Semaphore::new(MARKS_MAX),
            database: Mutex::new(Trouble::new("the database")),
            shutdown: shutdown.clone(),
        };
        Ok(Dispatch {
            relay,
            airport: Arc::new(airport),
            producer,
            wake: context.wake,
            vitals: context.vitals,
            shutdown,
            broker: Trouble::new("Kafka"),
            lease: None,
            renew_at: now,
            leaving: BTreeSet::new(),
            claim_at: now,
            last_was_empty: false,
            found_nothing_at: None,
            next_slot: 0,
            held: HeldKeys::default(),
            detoured: HashMap::new(),
            flights: HashMap::new(),
            next_number: 0,
            published_at: None,
            tasks: JoinSet::new(),
            to_landings,
            landings,
        })
    }

    /// Sends until the order to stop; then what is on its way is finished, and the slots are given back.
    pub(super) async fn run(mut self) -> Result<(), RelayError> {
        while !self.shutdown.is_cancelled() {
            while let Ok(landing) = self.landings.try_recv() {
                self.landed(landing)?;
            }
            if Instant::now() >= self.renew_at {
                self.renew().await;
            }
            self.give_back().await;
            let claims = self.may_claim();
            let rests_since = self.found_nothing_at.filter(|_| claims);
            if claims && rests_since.is_none() && Instant::now() >= self.claim_at {
                self.claim().await?;
                continue;
            }
            let wake = self.wake.clone();
            let mut until = self.renew_at;
            if claims && rests_since.is_none() {
                until = until.min(self.claim_at);
            }
            let idle_poll = self.relay.idle_poll;
            let woken = async {
                match rests_since {
                    Some(asked_at) => wake.rest(asked_at, idle_poll).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                landing = self.landings.recv() => self.landed(landing.expect("we hold a sender"))?,
                Some(ended) = self.tasks.join_next() => go_on_with(ended),
                () = tokio::time::sleep_until(until.into()) => {}
                _ = woken => self.claim_again(),
                () = self.shutdown.cancelled() => {}
            }
        }
        while !self.flights.is_empty() {
            tokio::select! {
                landing = self.landings.recv() => self.landed(landing.expect("we hold a sender"))?,
                Some(ended) = self.tasks.join_next() => go_on_with(ended),
            }
        }
        if let Some(lease) = self.lease.take()
            && let Err(error) = self.airport.store.leave(lease).await
        {
            tracing::warn!(%error, "the relay's slots were not given back; their lease ends by itself");
        }
        self.airport.counted.slots(0);
        if let Some(producer) = Arc::into_inner(self.producer) {
            producer.close(Duration::from_secs(1)).await;
        }
        Ok(())
    }

    /// Makes the lease last, takes free slots, drops those that others have taken.
    async fn renew(&mut self) {
        let store = &self.airport.store;
        let had = self.lease.as_ref().map_or(0, |lease| lease.slots().len());
        if had == 0 {
            factum_fault::at(Point::LeaseBefore);
        }
        let renewed = match &mut self.lease {
            Some(lease) => store.renew(lease).await.map(|change| change.lost),
            none => store.join().await.map(|lease| {
                *none = Some(lease);
                Vec::new()
            }),
        };
        let lost = match renewed {
            Ok(lost) => lost,
            Err(error) => {
                let pause = lock(&self.airport.database).pause(&error);
                self.renew_at = Instant::now() + pause;
                return;
            }
        };
        lock(&self.airport.database).over();
        let Some(lease) = &self.lease else { return };
        let has = lease.slots().len();
        if had == 0 && has > 0 {
            factum_fault::at(Point::LeaseAfter);
        }
        if !lost.is_empty() {
            tracing::warn!(slots = ?lost, "another relay has taken slots");
        }
        if had != has {
            let relays = lease.relays();
            tracing::info!(
                slots = has,
                relays,
                "the relay has the lease of its slots and sends"
            );
        }
        *lock(&self.airport.lease_end) = lease.expires_at();
        self.airport.counted.slots(has);
        if has == 0 {
            self.vitals.relay_waits();
            self.wake.busy();
        } else {
            self.vitals.relay_sends();
        }
        let pause = if has < lease.share() {
            SLOTS_ASKED_EVERY
        } else {
            RENEWED_EVERY
        };
        self.renew_at = Instant::now() + jittered(pause.min(self.relay.lease / 4));
        let surplus = lease.surplus();
        let slots = lease.slots();
        self.leaving.retain(|slot| slots.contains(slot));
        while self.leaving.len() > surplus {
            self.leaving.pop_first();
        }
        let staying = slots
            .into_iter()
            .rev()
            .filter(|slot| !self.leaving.contains(slot));
        let more: Vec<i16> = staying.take(surplus - self.leaving.len()).collect();
        self.leaving.extend(more);
    }

    /// Gives back what other relays lack, as soon as nothing of it is on its way.
    async fn give_back(&mut self) {
        if self.leaving.is_empty() {
            return;
        }
        let busy = self.busy_slots();
        let quiet: Vec<i16> = self
            .leaving
            .iter()
            .copied()
            .filter(|slot| !busy.contains(slot) && !self.held.fly_of(*slot))
            .collect();
        let Some(lease) = &mut self.lease else { return };
        if quiet.is_empty() {
            return;
        }
        match self.airport.store.give_back(lease, &quiet).await {
            Ok(()) => {
                self.airport.counted.slots(lease.slots().len());
                self.leaving.retain(|slot| !quiet.contains(slot));
                tracing::info!(slots = quiet.len(), "the relay gave slots back");
            }
            Err(error) => {
                let pause = lock(&self.airport.database).pause(&error);
                // They stay ours, and a later renewal says so again.
                self.leaving.clear();
                self.renew_at = self.renew_at.min(Instant::now() + pause);
            }
        }
    }

    /// The next claim begins at once.
    fn claim_again(&mut self) {
        self.found_nothing_at = None;
        self.claim_at = Instant::now();
    }

    fn busy_slots(&self) -> HashSet<i16> {
        let flights = self.flights.values();
        flights
            .flat_map(|flight| flight.slots.iter().copied())
            .collect()
    }

    /// The slots whose rows may be claimed, from the next one on.
    fn free_slots(&self) -> Vec<i16> {
        let busy = self.busy_slots();
        let mut slots = self.lease.as_ref().map_or_else(Vec::new, Lease::slots);
        slots.retain(|slot| !busy.contains(slot) && !self.leaving.contains(slot));
        let begin = slots.partition_point(|slot| *slot < self.next_slot);
        slots.rotate_left(begin);
        slots
    }

    /// Whether there is room for one more batch, and a slot to claim from.
    fn may_claim(&self) -> bool {
        let batches = self.relay.batches_in_flight;
        let flights = self.flights.values();
        let (mut in_time, mut bytes) = (0, 0);
        for flight in flights {
            in_time += usize::from(!flight.slots.is_empty());
            bytes += flight.bytes;
        }
        in_time < batches
            && self.flights.len() < batches * FLIGHTS_PER_BATCH
            && bytes < self.relay.claim_bytes * batches as u64
            && covers_a_batch(self.airport.lease_end(), self.airport.lease_left)
            && !self.free_slots().is_empty()
    }

    /// One claim, and the flights that carry its rows.
    async fn claim(&mut self) -> Result<(), RelayError> {
        let asked_at = tokio::time::Instant::now();
        match self.ask_for_rows().await {
            Ok(rows) => {
                self.vitals.relay_sends();
                if rows.is_empty() {
                    self.found_nothing_at = Some(asked_at);
                } else {
                    self.wake.busy();
                }
                self.send_off(rows)
            }
            Err(error) => {
                let pause = lock(&self.airport.database).pause(&error);
                self.claim_at = Instant::now() + pause;
                Ok(())
            }
        }
    }

    async fn ask_for_rows(&mut self) -> Result<Vec<OutboxRow>, factum_postgres::DatabaseError> {
        let store = &self.airport.store;
        let soon = Instant::now() + self.relay.idle_poll;
        let slots = self.free_slots();
        let Some(lease) = &self.lease else {
            return Ok(Vec::new());
        };
        if self.last_was_empty && !store.anything_waits().await? {
            lock(&self.airport.database).over();
            return Ok(Vec::new());
        }
        let tries = self
            .flights
            .values()
            .any(|flight| flight.route == Route::Trial);
        let held = self.held.waiting(Instant::now(), !tries);
        let limit = ClaimLimit {
            rows: self.relay.claim_limit,
            bytes: self.relay.claim_bytes,
        };
        factum_fault::at(Point::ClaimBefore);
        let rows = store.claim(lease, &slots, limit, &held).await?;
        lock(&self.airport.database).over();
        self.last_was_empty = rows.is_empty();
        if let Some(last) = rows.last() {
            factum_fault::at(Point::ClaimAfter);
            self.next_slot = (last.slot + 1) % i16::from(SLOTS);
        }
        let bytes: usize = rows.iter().map(|row| row.payload.len()).sum();
        let is_full = rows.len() as u64 >= u64::from(limit.rows) || bytes as u64 >= limit.bytes;
        self.claim_at = if is_full { Instant::now() } else { soon };
        Ok(rows)
    }

    fn send_off(&mut self, rows: Vec<OutboxRow>) -> Result<(), RelayError> {
        if rows.is_empty() {
            return Ok(());
        }
        if !covers_a_batch(self.airport.lease_end(), self.airport.lease_left) {
            // The claim took its time, or the process was stopped. They are unpublished still.
            self.renew_at = Instant::now();
            return Ok(());
        }
        if self.producer.is_fatal() {
            // What it knew is in the table.
            self.airport.counted.producer_rebuilt();
            let next = self.producer.successor().map_err(RelayError::Kafka)?;
            self.producer = Arc::new(next);
        }
        self.detoured
            .retain(|_, since| since.elapsed() < DETOUR_FORGOTTEN);
        let by_detour: HashSet<String> = rows
            .iter()
            .filter(|row| self.detoured.contains_key(&row.topic))
            .map(|row| row.key.clone())
            .collect();
        let (mut together, mut detour, mut trial) = (Vec::new(), Vec::new(), Vec::new());
        let mut tried = HashSet::new();
        for row in rows {
            if self.held.goes_alone(&row.key) {
                // The others of its key come when it is known what becomes of the first.
                if tried.insert(row.key.clone()) {
                    trial.push(row);
                }
            } else if by_detour.contains(&row.key) {
                detour.push(row);
            } else {
                together.push(row);
            }
        }
        self.take_off(together, Route::Shared);
        self.take_off(trial, Route::Trial);
        let detours = self
            .flights
            .values()
            .filter(|flight| flight.route == Route::Detour);
        if detours.count() < DETOURS_MAX && self.held.has_room(by_detour.len()) {
            self.take_off(detour, Route::Detour);
        } else {
            let keys: HashSet<&str> = detour.iter().map(|row| row.key.as_str()).collect();
            let mut all_held = true;
            for key in keys {
                all_held &= self.held.hold(key, false);
            }
            if !all_held {
                self.claim_at = Instant::now() + self.broker.next_pause();
            }
        }
        Ok(())
    }

    fn take_off(&mut self, rows: Vec<OutboxRow>, route: Route) {
        if rows.is_empty() {
            return;
        }
        let slots: HashSet<i16> = rows.iter().map(|row| row.slot).collect();
        let Some(lease) = &self.lease else { return };
        let lease = lease.part(&slots.iter().copied().collect::<Vec<_>>());
        let rows: Arc<[OutboxRow]> = rows.into();
        let number = self.next_number;
        self.next_number += 1;
        let payloads: usize = rows.iter().map(|row| row.payload.len()).sum();
        let mut on_its_way = OnItsWay {
            rows: Arc::clone(&rows),
            route,
            slots,
            left: (0..rows.len()).collect(),
            bytes: payloads as u64 + rows.len() as u64 * ROW_BYTES,
            began: Instant::now(),
            answered: false,
            troubled: false,
            all_held: true,
        };
        if route != Route::Shared {
            on_its_way.slots.clear();
            for row in rows.iter() {
                self.held.take_off(&row.key, row.slot);
            }
        }
        self.flights.insert(number, on_its_way);
        let flight = Flight {
            number,
            rows,
            lease,
            producer: Arc::clone(&self.producer),
            route,
            airport: Arc::clone(&self.airport),
            landings: self.to_landings.clone(),
        };
        self.tasks.spawn(flight.fly());
    }

    /// Notes what became of rows, and frees their keys and slots.
    fn landed(&mut self, landing: Landing) -> Result<(), RelayError> {
        let Some(flight) = self.flights.get_mut(&landing.number) else {
            return Ok(());
        };
        let now = Instant::now();
        self.found_nothing_at = None;
        if landing.lease_lost {
            self.renew_at = now;
        }
        if landing
            .rows
            .iter()
            .any(|(_, fate)| *fate == Fate::Published)
        {
            self.published_at = Some(now);
        }
        if let Some(trouble) = &landing.trouble {
            flight.troubled = true;
            self.broker.note(trouble);
        }
        // With others flowing, something is wrong with this topic or partition only, so its
        // keys wait, each for itself. Else the whole relay does.
        let others_flow = self.published_at.is_some_and(|at| at > flight.began);
        let rows = Arc::clone(&flight.rows);
        let mut paused: HashSet<&str> = HashSet::new();
        for (index, fate) in &landing.rows {
            let row = &rows[*index];
            flight.left.remove(index);
            if flight.slots.is_empty() {
                self.held.land(&row.key);
            }
            match fate {
                Fate::Published | Fate::SetAside => {
                    flight.answered = true;
                    self.held.let_go(&row.key);
                    if flight.route == Route::Detour {
                        self.detoured.remove(&row.topic);
                    }
                }
                Fate::Refused | Fate::RefusedTogether => {
                    flight.answered = true;
                    flight.all_held &= self.held.hold(&row.key, true);
                }
                Fate::Late if others_flow => {
                    flight.all_held &= self.held.hold(&row.key, false);
                    self.detoured.insert(row.topic.clone(), now);
                }
                // They have come this way because of a trouble, and it lasts.
                Fate::Late | Fate::Again
                    if flight.route != Route::Shared && landing.trouble.is_some() =>
                {
                    if paused.insert(&row.key) {
                        flight.all_held &= self.held.hold(&row.key, false);
                    }
                }
                Fate::Late | Fate::Again => {}
            }
        }
        let Some(end) = landing.end else {
            // It takes its time: from now on it keeps its own keys waiting, and no slot.
            let left = flight.left.iter().map(|index| &flight.rows[*index]);
            if !flight.slots.is_empty() && self.held.has_room(flight.left.len()) {
                left.for_each(|row| self.held.take_off(&row.key, row.slot));
                flight.slots.clear();
                self.claim_at = self.claim_at.min(now);
            }
            return Ok(());
        };
        if !flight.troubled && flight.answered {
            self.broker.over();
        }
        let is_stuck = !flight.all_held || (flight.troubled && !flight.answered && !others_flow);
        self.flights.remove(&landing.number);
        self.claim_at = if is_stuck {
            now + self.broker.next_pause()
        } else {
            self.claim_at.min(now)
        };
        end
    }
}

/// A flight that panicked would keep its slots for ever.
fn go_on_with(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
}
