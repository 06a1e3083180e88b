//! In what order a batch is worked off: whole if it goes well, in ever smaller parts where it doesn't.
//!
//! Pure, so that every pattern of failures can be tried.

use std::ops::Range;

use factum_event::Failure;

/// Records in the first batch after a failure, so that one bad stretch isn't decoded over and over.
const CAREFUL_BATCH: usize = 32;

/// What is left to do of a batch, by index. Parts come in order, and none comes twice once it is done,
/// so whatever is done is always the beginning of the batch.
///
/// For `n` records there are fewer than `3 n` parts: of a part that fails nothing as long comes back, and a
/// record that fails alone comes back once, as [`Part::Failed`].
#[derive(Debug)]
pub(crate) struct WorkList {
    /// The next on top; a part that is known to fail carries its failure.
    parts: Vec<(Range<usize>, Option<Failure>)>,
}

/// The next thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// Handle these in one transaction. If some of them fail, [`WorkList::split`] says so.
    Attempt(Range<usize>),
    /// This record fails by itself: take it to its outcome.
    Failed(usize, Failure),
}

impl WorkList {
    /// All of a batch of that many records.
    pub(crate) fn new(records: usize) -> WorkList {
        WorkList {
            parts: match records {
                0 => Vec::new(),
                _ => vec![(0..records, None)],
            },
        }
    }

    /// The next part; nothing when all are done. The part before is done, unless it was split.
    pub(crate) fn next(&mut self) -> Option<Part> {
        let (range, failure) = self.parts.pop()?;
        Some(match failure {
            Some(failure) => Part::Failed(range.start, failure),
            None => Part::Attempt(range),
        })
    }

    /// Puts back a part of which `failed` failed together: what came before the failure, the failure,
    /// the rest. Nothing of the part is done.
    ///
    /// # Panics
    /// `failed` is empty or reaches out of `part`: work would be lost, or never end.
    pub(crate) fn split(&mut self, part: &Range<usize>, failed: Range<usize>, failure: Failure) {
        assert!(
            !failed.is_empty() && part.start <= failed.start && failed.end <= part.end,
            "records {failed:?} failed, but {part:?} were attempted"
        );
        let mut rest = failed.end;
        let mut chunks = Vec::new();
        while rest < part.end {
            let end = (rest + CAREFUL_BATCH).min(part.end);
            chunks.push((rest..end, None));
            rest = end;
        }
        self.parts.extend(chunks.into_iter().rev());
        if failed.len() == 1 {
            self.parts.push((failed.clone(), Some(failure)));
        } else {
            let middle = failed.start + failed.len() / 2;
            self.parts.push((middle..failed.end, None));
            self.parts.push((failed.start..middle, None));
        }
        if part.start < failed.start {
            self.parts.push((part.start..failed.start, None));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Works off a batch as a lane does, and checks at every step what holds for any failures.
    #[derive(Debug)]
    struct Run {
        /// Records that were committed by an attempt, or that failed alone, each once and in order.
        outcomes: Vec<Result<(), Failure>>,
        attempts: usize,
        /// Records in failed attempts, the first attempt not counted.
        repeated: usize,
    }

    /// `offsets` are the records'; they have gaps where a topic was compacted. `attempt` says which
    /// records of a range fail together.
    fn run(
        offsets: &[i64],
        mut attempt: impl FnMut(Range<usize>) -> Option<(Range<usize>, Failure)>,
    ) -> Run {
        let mut run = Run {
            outcomes: Vec::new(),
            attempts: 0,
            repeated: 0,
        };
        let mut work = WorkList::new(offsets.len());
        let mut handled_below = 0;
        let mut parts = 0;
        while let Some(part) = work.next() {
            parts += 1;
            assert!(parts < 3 * offsets.len(), "the work doesn't end");
            let done = run.outcomes.len();
            let end = match part {
                Part::Failed(index, failure) => {
                    assert_eq!(index, done, "an outcome out of order");
                    run.outcomes.push(Err(failure));
                    index + 1
                }
                Part::Attempt(range) => {
                    run.attempts += 1;
                    assert!(!range.is_empty());
                    assert_eq!(range.start, done, "an outcome out of order");
                    if let Some((failed, failure)) = attempt(range.clone()) {
                        if run.attempts > 1 {
                            run.repeated += range.len();
                        }
                        work.split(&range, failed, failure);
                        continue;
                    }
                    run.outcomes.resize(range.end, Ok(()));
                    range.end
                }
            };
            // What the lane gives to `handled_below`.
            let below = offsets[end - 1] + 1;
            assert!(below > handled_below, "an offset went back");
            handled_below = below;
            let covered = offsets.iter().filter(|offset| **offset < below).count();
            assert_eq!(covered, run.outcomes.len(), "an offset moved too far");
        }
        assert_eq!(run.outcomes.len(), offsets.len(), "records were left out");
        assert!(offsets.last().is_none_or(|last| handled_below == last + 1));
        run
    }

    fn transient(number: usize) -> Failure {
        Failure::Transient {
            description: number.to_string(),
        }
    }

    /// Offsets that grow, with gaps, from any begin.
    fn offsets(most: usize) -> impl Strategy<Value = Vec<i64>> {
        (0_i64..1 << 60, vec(1_i64..4, 0..=most)).prop_map(|(begin, steps)| {
            let offsets = steps.into_iter().scan(begin, |at, step| {
                *at += step;
                Some(*at)
            });
            offsets.collect()
        })
    }

    /// An event and its handler.
    #[derive(Debug, Clone, Copy)]
    struct Event {
        /// Neighbours of one kind are given to one handler together.
        kind: bool,
        fails: bool,
    }

    fn events(share_of_failing: f64) -> impl Strategy<Value = Vec<Event>> {
        let event = (any::<bool>(), prop::bool::weighted(share_of_failing))
            .prop_map(|(kind, fails)| Event { kind, fails });
        // Runs of one kind, some longer than a careful batch.
        vec((event, 1_usize..80), 0..12).prop_flat_map(move |runs| {
            let kinds: Vec<bool> = runs
                .iter()
                .flat_map(|(event, length)| std::iter::repeat_n(event.kind, *length))
                .collect();
            vec(prop::bool::weighted(share_of_failing), kinds.len()).prop_map(move |fails| {
                kinds
                    .iter()
                    .zip(fails)
                    .map(|(kind, fails)| Event { kind: *kind, fails })
                    .collect()
            })
        })
    }

    fn any_events() -> impl Strategy<Value = Vec<Event>> {
        prop_oneof![
            events(0.0),
            events(0.01),
            events(0.2),
            events(0.9),
            events(1.0)
        ]
    }

    /// The range that fails first: the event itself, or all of its run where the handler takes
    /// batches. `batches` says for which kinds it does.
    fn first_failure(
        events: &[Event],
        batches: [bool; 2],
        range: Range<usize>,
    ) -> Option<(Range<usize>, Failure)> {
        let mut start = range.start;
        for run in events[range].chunk_by(|a, b| a.kind == b.kind) {
            if let Some(first) = run.iter().position(|event| event.fails) {
                let failed = if batches[usize::from(run[0].kind)] {
                    start..start + run.len()
                } else {
                    start + first..start + first + 1
                };
                return Some((failed, transient(start + first)));
            }
            start += run.len();
        }
        None
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        /// Attempts fail as they like, the same records once and not the next time.
        #[test]
        fn whatever_fails_every_record_has_one_outcome_in_order(
            offsets in offsets(120),
            script in vec(prop::option::weighted(0.8, (any::<prop::sample::Index>(), any::<prop::sample::Index>())), 0..400),
        ) {
            let mut script = script.into_iter();
            let run = run(&offsets, |range| {
                let (start, length) = script.next()??;
                let start = range.start + start.index(range.len());
                let end = start + 1 + length.index(range.end - start);
                Some((start..end, transient(start)))
            });
            prop_assert!(run.attempts <= 2 * offsets.len());
        }

        /// What fails for its own sake is found, and takes nothing with it.
        #[test]
        fn of_events_that_fail_for_good_each_fails_alone_and_all_others_are_done(
            events in any_events(), batches in any::<[bool; 2]>(),
        ) {
            let offsets: Vec<i64> = (0..).take(events.len()).collect();
            let run = run(&offsets, |range| first_failure(&events, batches, range));
            for (event, outcome) in events.iter().zip(&run.outcomes) {
                prop_assert_eq!(event.fails, outcome.is_err());
            }
            let failing = events.iter().filter(|event| event.fails).count();
            if batches == [false, false] {
                // A failure is known by its index: it costs the attempt that showed it, and a careful
                // batch is short.
                prop_assert!(run.repeated <= CAREFUL_BATCH * failing);
                for (index, outcome) in run.outcomes.iter().enumerate() {
                    let own = outcome.as_ref().err().is_none_or(|failure| *failure == transient(index));
                    prop_assert!(own, "record {} has a neighbour's failure", index);
                }
            }
        }

        /// A COMMIT that fails blames all that was fresh in it.
        #[test]
        fn a_failing_commit_is_narrowed_down_to_the_event_that_fails_it(events in any_events()) {
            let offsets: Vec<i64> = (0..).take(events.len()).collect();
            let run = run(&offsets, |range| {
                let guilty = events[range.clone()].iter().any(|event| event.fails);
                guilty.then(|| (range.clone(), transient(range.start)))
            });
            for (event, outcome) in events.iter().zip(&run.outcomes) {
                prop_assert_eq!(event.fails, outcome.is_err());
            }
            // Bisected: a failing event is in one failing half after the other, and no more.
            let failing = events.iter().filter(|event| event.fails).count();
            let halvings = events.len().next_power_of_two().ilog2() as usize;
            prop_assert!(run.attempts <= 1 + 2 * failing * halvings + failing);
        }
    }

    #[test]
    fn an_empty_batch_is_no_work() {
        assert_eq!(WorkList::new(0).next(), None);
    }

    #[test]
    #[should_panic(expected = "records 3..3 failed, but 0..5 were attempted")]
    fn a_failure_of_no_record_is_refused() {
        WorkList::new(5).split(&(0..5), 3..3, transient(0));
    }
}
