//! The records of a partition that several workers have in hand: which may begin, and below which all are done.
//!
//! Pure, and owned by its lane alone: workers tell of their end, and never touch it. So no result can be lost between
//! two of them, and every order of ends can be tried.

use std::collections::{HashMap, VecDeque};

use factum_kafka::Record;

/// What keeps records in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    /// They have it in common.
    Shared(Vec<u8>),
    /// A record that has none waits for nobody.
    Alone(u64),
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// From the first unfinished record on, in the order of the partition.
    places: VecDeque<Place>,
    /// The number of the first place.
    first: u64,
    /// Keys that a worker has, and the records that wait behind it; and those that are ready.
    keys: HashMap<Key, VecDeque<(u64, Record)>>,
    /// Keys with a record that may begin, each once, in the order in which they came to be so.
    ready: VecDeque<Key>,
    /// Of the values of unfinished records.
    bytes: usize,
}

#[derive(Debug)]
struct Place {
    /// The offset behind the record.
    next_offset: i64,
    finished: bool,
}

/// A record in the hands of a worker: its key is taken until the ticket comes back.
#[derive(Debug)]
#[must_use = "without it the record is never finished"]
pub(crate) struct Ticket {
    number: u64,
    key: Key,
    bytes: usize,
}

impl InFlight {
    /// Takes the partition's next record in. `key` keeps records in order; one without it stands alone.
    pub(crate) fn add(&mut self, record: Record, key: Option<Vec<u8>>) {
        let number = self.first + self.places.len() as u64;
        let key = key.map_or(Key::Alone(number), Key::Shared);
        self.places.push_back(Place {
            next_offset: record.offset + 1,
            finished: false,
        });
        self.bytes += value_bytes(&record);
        let queue = self.keys.entry(key.clone()).or_insert_with(|| {
            // Nobody has the key, and nothing of it waits.
            self.ready.push_back(key);
            VecDeque::new()
        });
        queue.push_back((number, record));
    }

    /// Records from the first unfinished one on.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Bytes of the values of unfinished records.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a record may begin.
    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next record that may begin: the first of a key that nobody has.
    pub(crate) fn take(&mut self) -> Option<(Ticket, Record)> {
        let key = self.ready.pop_front()?;
        // A ready key has a record.
        let (number, record) = self.keys.get_mut(&key)?.pop_front()?;
        let bytes = value_bytes(&record);
        Some((Ticket { number, key, bytes }, record))
    }

    /// A record has its outcome, and its key goes on. Gives the offset below which all are finished, if it has grown.
    pub(crate) fn finish(&mut self, ticket: Ticket) -> Option<i64> {
        let Ticket { number, key, bytes } = ticket;
        self.bytes -= bytes;
        if self.keys.get(&key).is_some_and(|queue| !queue.is_empty()) {
            self.ready.push_back(key);
        } else {
            self.keys.remove(&key);
        }
        let place = usize::try_from(number - self.first).ok();
        if let Some(place) = place.and_then(|place| self.places.get_mut(place)) {
            place.finished = true;
        }
        let mut below = None;
        while self.places.front().is_some_and(|place| place.finished) {
            below = self.places.pop_front().map(|place| place.next_offset);
            self.first += 1;
        }
        below
    }
}

fn value_bytes(record: &Record) -> usize {
    record.value.as_ref().map_or(0, Vec::len)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use factum_kafka::Headers;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn record(offset: i64) -> Record {
        Record {
            topic: "t".into(),
            partition: 0,
            offset,
            key: None,
            value: Some(vec![0; 3]),
            headers: Headers::default(),
            timestamp_ms: None,
        }
    }

    /// A partition's records, some workers, and what must hold whatever they do in which order.
    #[derive(Debug)]
    struct World {
        /// Offset and key of each record, as they come.
        coming: VecDeque<(i64, Option<u8>)>,
        workers: usize,
        in_flight: InFlight,
        running: Vec<(Ticket, i64, Option<u8>)>,
        arrived: BTreeMap<i64, Option<u8>>,
        finished: BTreeSet<i64>,
        below: i64,
    }

    /// What happens next.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Step {
        Arrive,
        Begin,
        /// That one of the running.
        Finish(usize),
    }

    impl World {
        fn new(records: impl IntoIterator<Item = (i64, Option<u8>)>, workers: usize) -> World {
            World {
                coming: records.into_iter().collect(),
                workers,
                in_flight: InFlight::default(),
                running: Vec::new(),
                arrived: BTreeMap::new(),
                finished: BTreeSet::new(),
                below: 0,
            }
        }

        fn steps(&self) -> Vec<Step> {
            let mut steps = Vec::new();
            if !self.coming.is_empty() {
                steps.push(Step::Arrive);
            }
            if self.running.len() < self.workers && self.in_flight.is_ready() {
                steps.push(Step::Begin);
            }
            steps.extend((0..self.running.len()).map(Step::Finish));
            steps
        }

        fn step(&mut self, step: Step) {
            match step {
                Step::Arrive => {
                    let (offset, key) = self.coming.pop_front().expect("one is coming");
                    self.in_flight.add(record(offset), key.map(|key| vec![key]));
                    self.arrived.insert(offset, key);
                }
                Step::Begin => {
                    let (ticket, record) = self.in_flight.take().expect("one is ready");
                    let key = self.arrived[&record.offset];
                    if key.is_some() {
                        let doubled = self.running.iter().any(|(_, _, other)| *other == key);
                        assert!(!doubled, "two of one key run at once");
                        let overtaken =
                            self.arrived.range(..record.offset).any(|(offset, other)| {
                                *other == key && !self.finished.contains(offset)
                            });
                        assert!(!overtaken, "{} overtook one of its key", record.offset);
                    }
                    self.running.push((ticket, record.offset, key));
                }
                Step::Finish(index) => {
                    let (ticket, offset, _) = self.running.swap_remove(index);
                    assert!(self.finished.insert(offset), "{offset} was finished twice");
                    let below = self.in_flight.finish(ticket);
                    let mut unfinished = self.arrived.keys().filter(|o| !self.finished.contains(o));
                    let lowest = unfinished.next();
                    let last = self.arrived.keys().next_back().expect("one arrived");
                    if let Some(below) = below {
                        assert!(below > self.below, "the offset went back");
                        self.below = below;
                    }
                    let done = lowest.map_or(last + 1, |lowest| {
                        self.arrived
                            .range(..lowest)
                            .next_back()
                            .map_or(0, |(offset, _)| offset + 1)
                    });
                    assert_eq!(self.below, done, "below the lowest unfinished, and no less");
                }
            }
            let unfinished = self.arrived.len() - self.finished.len();
            assert_eq!(self.in_flight.bytes(), 3 * unfinished);
            assert!(self.in_flight.len() >= unfinished);
            assert!(
                !self.steps().is_empty() || unfinished == 0,
                "a record was lost: nothing can go on"
            );
        }
    }

    /// Every order of arrivals, begins and ends; gives how many there are.
    fn try_every_order(new: &dyn Fn() -> World) -> usize {
        let mut orders = 0;
        let mut paths = vec![Vec::new()];
        while let Some(path) = paths.pop() {
            let mut world = new();
            for step in &path {
                world.step(*step);
            }
            let steps = world.steps();
            if steps.is_empty() {
                assert_eq!(world.finished.len(), world.arrived.len());
                assert_eq!(world.in_flight.len(), 0);
                assert!(world.in_flight.keys.is_empty(), "a key is left behind");
                orders += 1;
            }
            for step in steps {
                paths.push([path.as_slice(), &[step]].concat());
            }
        }
        orders
    }

    /// spring-kafka's #3638: a failure that was noted between the copy of a list and its clearing was lost. Here the
    /// finished and the unfinished are noted by the lane alone; no order of ends loses one.
    #[test]
    fn case_32_no_order_of_ends_loses_or_doubles_a_record_or_moves_the_offset_too_far() {
        let (a, b) = (Some(b'a'), Some(b'b'));
        // Offsets have gaps where a topic was compacted.
        let one_key = || World::new([(0, a), (1, a), (5, a), (6, a)], 3);
        let two_keys = || World::new([(0, a), (2, b), (3, a), (4, b)], 2);
        let with_keyless = || World::new([(7, None), (8, a), (9, None), (11, a)], 3);
        let crowded = || World::new([(0, a), (1, b), (2, None), (3, a)], 2);
        let orders = [
            try_every_order(&one_key),
            try_every_order(&two_keys),
            try_every_order(&with_keyless),
            try_every_order(&crowded),
        ];
        assert!(orders.iter().all(|orders| *orders > 10), "{orders:?}");
        assert!(orders.iter().sum::<usize>() > 1_000, "{orders:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn keys_stay_in_order_and_the_offset_below_the_lowest_unfinished(
            records in vec((1_i64..4, prop::option::weighted(0.9, 0_u8..6)), 1..80),
            workers in 1_usize..9,
            choices in vec(any::<prop::sample::Index>(), 240),
        ) {
            let mut offset = -1;
            let records = records.into_iter().map(|(gap, key)| {
                offset += gap;
                (offset, key)
            });
            let mut world = World::new(records.collect::<Vec<_>>(), workers);
            let mut choices = choices.into_iter();
            loop {
                let steps = world.steps();
                if steps.is_empty() {
                    break;
                }
                let choice = choices.next().expect("three steps for each record");
                world.step(steps[choice.index(steps.len())]);
            }
            prop_assert_eq!(world.below, offset + 1);
            prop_assert_eq!(world.in_flight.len(), 0);
        }

        /// What a busy key has waiting takes no worker from the others.
        #[test]
        fn ready_keys_begin_in_turn(records in vec(0_u8..4, 1..60)) {
            let mut in_flight = InFlight::default();
            for (offset, key) in records.iter().enumerate() {
                in_flight.add(record(offset as i64), Some(vec![*key]));
            }
            let mut keys: Vec<u8> = Vec::new();
            let mut left: BTreeMap<u8, usize> = BTreeMap::new();
            for key in &records {
                *left.entry(*key).or_default() += 1;
            }
            while let Some((ticket, record)) = in_flight.take() {
                let key = records[record.offset as usize];
                // Since the key's last record, each other with records left has begun one.
                if let Some(last) = keys.iter().rposition(|other| *other == key) {
                    for (other, left) in &left {
                        let began = keys[last + 1..].contains(other);
                        prop_assert!(*other == key || *left == 0 || began, "{other} waits behind {key}");
                    }
                }
                keys.push(key);
                *left.get_mut(&key).expect("a key of the records") -= 1;
                let _ = in_flight.finish(ticket);
            }
            prop_assert_eq!(keys.len(), records.len());
        }
    }
}
