//! The breaks: each takes one promise's guard away, in as few words as possible.

use std::fmt;

use anyhow::{Result, ensure};

/// One way to break the code.
pub(crate) struct Patch {
    /// Its name.
    pub(crate) name: &'static str,
    /// What is broken.
    pub(crate) what: &'static str,
    /// The file, from the root.
    pub(crate) file: &'static str,
    /// What stands there, exactly once.
    sound: &'static str,
    /// What stands there instead.
    broken: &'static str,
    /// What should notice; the first that does ends the search.
    pub(crate) catchers: &'static [Catcher],
}

/// Something that notices a break.
pub(crate) enum Catcher {
    /// A cell of the kill matrix, on the embedded broker.
    Cell(&'static str),
    /// Tests.
    Test {
        /// Cargo's words for the test program.
        target: &'static str,
        /// Part of the tests' names.
        name: &'static str,
    },
}

impl fmt::Display for Catcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Catcher::Cell(cell) => write!(f, "cell {cell}"),
            Catcher::Test { name, .. } => write!(f, "test {name}"),
        }
    }
}

impl Patch {
    /// The file's content, broken.
    pub(crate) fn apply(&self, content: &str) -> Result<String> {
        let places = content.matches(self.sound).count();
        ensure!(
            places == 1,
            "the break {} fits {places} places of {}: the code has changed, mend the patch",
            self.name,
            self.file
        );
        Ok(content.replacen(self.sound, self.broken, 1))
    }
}

const OUTBOUND_CALL: &str = "crates/factum-postgres/src/outbound_call.rs";
const CALL: &str = "crates/factum-runtime/src/call.rs";
const HANDLER: &str = "crates/factum-runtime/src/handler.rs";
const CALLER: &str = "crates/factum-runtime/src/caller.rs";
const LANE: &str = "crates/factum-runtime/src/lane.rs";
const WORKER: &str = "crates/factum-runtime/src/worker.rs";
const RETRIER: &str = "crates/factum-runtime/src/retrier.rs";
const PACE: &str = "crates/factum-runtime/src/pace.rs";
const PARKING: &str = "crates/factum-postgres/src/parking.rs";
const IN_FLIGHT: &str = "crates/factum-runtime/src/in_flight.rs";
const WORK_LIST: &str = "crates/factum-runtime/src/work_list.rs";
const GAP: &str = "crates/factum-kafka/src/gap.rs";
const GROUP: &str = "crates/factum-kafka/src/consumer.rs";
const LANES: &str = "crates/factum-kafka/src/lanes.rs";
const OUTCOME: &str = "crates/factum-event/src/outcome.rs";
const DECODE: &str = "crates/factum-event/src/decode.rs";
const VERSION: &str = "crates/factum-event/src/version.rs";
const RETENTION: &str = "crates/factum-postgres/src/retention.rs";
const HORIZON: &str = "crates/factum-runtime/src/horizon.rs";
const SESSION: &str = "crates/factum-postgres/src/session.rs";
const REPLAY_STORE: &str = "crates/factum-postgres/src/replay.rs";
const LETTER_COUNTS: &str = "crates/factum-postgres/src/dead_letter_group.rs";
const FLIGHT: &str = "crates/factum-runtime/src/relay/flight.rs";
const DISPATCH: &str = "crates/factum-runtime/src/relay/dispatch.rs";
const HEALTH: &str = "crates/factum-runtime/src/health.rs";
const WAKE: &str = "crates/factum-runtime/src/wake.rs";
const RELAY_WAKE: &str = "crates/factum-postgres/migrations/0009_relay_wake.sql";
const RELAY_STORE: &str = "crates/factum-postgres/src/relay.rs";
const PRODUCER: &str = "crates/factum-kafka/src/producer.rs";
const RETRY_TOPIC: &str = "crates/factum-runtime/src/retry_topic.rs";
const MIRROR: &str = "crates/factum-runtime/src/mirror.rs";

const CONSTRAINED_FIELDS: &str = "crates/factum-macros/src/fields.rs";
const CONSTRAINT: &str = "crates/factum-event/src/constraint.rs";
const ENCODE: &str = "crates/factum-event/src/encode.rs";

const CONSTRAINTS: &str = "--test constraints";
const CONSTRAINT_MODELS: &str = "--test constraint_models";
const PERSONAL: &str = "crates/factum-macros/src/personal.rs";
const VERBS: &str = "crates/factum-macros/src/verbs.rs";

const GATE: &str = "crates/factum-contract/src/gate.rs";
const COMPATIBILITY: &str = "crates/factum-contract/src/compatibility.rs";
const REVISION: &str = "crates/factum-cli/src/contract/revision.rs";

const REPLAY_PLAN: &str = "crates/factum-postgres/src/replay_plan.rs";
const PAYLOAD: &str = "crates/factum-cli/src/dlq/payload.rs";
const PLAIN: &str = "crates/factum-cli/src/plain.rs";

const DLQ_COMMAND: &str = "--test dlq";
const CONTRACT_GATE: &str = "--test gate";
const CONTRACT_PROPERTIES: &str = "--test properties";
const CONTRACT_COMMAND: &str = "--test contract";
const POSTGRES: &str = "--test postgres";
const CALLS: &str = "--test calls";
const CONCURRENCY: &str = "--test concurrency";
const CONSUMER: &str = "--test consumer";
const REPLAY: &str = "--test replay";
const JITTER: &str = "--test jitter";
const PARKING_TESTS: &str = "--test parking";
const VERSIONS: &str = "--test versions";
const RETRY_TOPICS: &str = "--test retry_topics";
const GAPS: &str = "--test gaps";
const UNIT: &str = "--lib";

pub(crate) const PATCHES: &[Patch] = &[
    Patch {
        name: "offset-before-commit",
        what: "the offset moves before the transaction commits",
        file: LANE,
        sound: "                    let records = &records[part.clone()];\n",
        broken: "                    let records = &records[part.clone()];\n                    self.feed.handled_below(records[records.len() - 1].offset + 1);\n",
        catchers: &[
            Catcher::Cell("handover/commit.before"),
            Catcher::Cell("handover/handle.halfway"),
        ],
    },
    Patch {
        name: "dedup-always-new",
        what: "every event counts as new",
        file: SESSION,
        sound: "                _ => DedupVerdict::Duplicate,\n",
        broken: "                _ => DedupVerdict::Fresh,\n",
        catchers: &[Catcher::Cell("kill/commit.after")],
    },
    Patch {
        name: "no-guard",
        what: "COMMIT is sent alone, so that PostgreSQL's silent ROLLBACK passes for success",
        file: SESSION,
        sound: "        match self.raw(sql).await {\n            Ok(()) => Ok(()),",
        broken: "        drop(sql);\n        match self.raw(\"COMMIT\").await {\n            Ok(()) => Ok(()),",
        catchers: &[Catcher::Test {
            target: CONSUMER,
            name: "embedded::a_swallowed_sql_error_loses_no_event",
        }],
    },
    Patch {
        name: "guard-without-the-id",
        what: "the guard lets a second transaction pass, one that a handler began after a COMMIT of its own",
        file: SESSION,
        sound: "THEN 1 ELSE 0 END); \\",
        broken: "THEN 1 ELSE 1 END); \\",
        catchers: &[Catcher::Test {
            target: POSTGRES,
            name: "what_follows_a_typed_commit_in_a_second_transaction",
        }],
    },
    Patch {
        name: "dedup-elsewhere",
        what: "the dedup rows commit in a transaction of their own",
        file: SESSION,
        sound: "                    let xid = parse_xid(WHAT, &xid)?;\n                    let verdicts",
        broken: "                    drop(xid);\n                    self.simple(WHAT, \"COMMIT\").await?;\n                    self.simple(WHAT, BEGIN).await?;\n                    let xid = self.transaction_id().await?;\n                    let verdicts",
        catchers: &[Catcher::Cell("kill/handle.halfway")],
    },
    Patch {
        name: "published-before-the-report",
        what: "published_at is set before the broker has acknowledged anything",
        file: FLIGHT,
        sound: "        let (told, mut outcomes) = mpsc::unbounded_channel();\n",
        broken: "        let all: Vec<i64> = self.rows.iter().map(|row| row.id).collect();\n        self.mark(&all).await;\n        let (told, mut outcomes) = mpsc::unbounded_channel();\n",
        catchers: &[Catcher::Cell("kill/produce.before")],
    },
    Patch {
        name: "health-token-begins-so",
        what: "the health endpoint takes the beginning of its token for the token",
        file: HEALTH,
        sound: "bool::from(said.ct_eq(token))",
        broken: "token.starts_with(said)",
        catchers: &[Catcher::Test {
            target: UNIT,
            name: "only_the_whole_token_opens_anything",
        }],
    },
    Patch {
        name: "sleep-without-a-last-look",
        what: "a relay sleeps after a claim from before writers notified",
        file: WAKE,
        sound: "if since <= asked_at =>",
        broken: "if since <= asked_at + SLEEPING_POLL =>",
        catchers: &[Catcher::Test {
            target: UNIT,
            name: "a_row_of_before_the_sleep_is_looked_for_once_more",
        }],
    },
    Patch {
        name: "notify-always",
        what: "every transaction that writes outbox rows notifies, also while no relay sleeps",
        file: RELAY_WAKE,
        sound: "THEN NOT pg_advisory_unlock",
        broken: "THEN pg_advisory_unlock",
        catchers: &[Catcher::Test {
            target: POSTGRES,
            name: "only_commits_notify_and_only_while_a_relay_sleeps",
        }],
    },
    Patch {
        name: "claim-above-the-last",
        what: "the relay claims rows with an id above the last published one",
        file: RELAY_STORE,
        sound: "AND key <> ALL($4) \\",
        broken: "AND key <> ALL($4) AND id > coalesce((SELECT max(p.id) FROM outbox AS p WHERE p.published_at IS NOT NULL), 0) \\",
        catchers: &[Catcher::Test {
            target: POSTGRES,
            name: "case_14_a_row_that_commits_late",
        }],
    },
    Patch {
        name: "retry-headers-appended",
        what: "a hop to a retry topic adds its headers to those of the hops before",
        file: RETRY_TOPIC,
        sound: "let mut headers = without(record, &HEADERS);",
        broken: "let mut headers = without(record, &[]);",
        catchers: &[Catcher::Test {
            target: UNIT,
            name: "case_41_fifty_hops",
        }],
    },
    Patch {
        name: "retry-of-another-consumer",
        what: "a consumer takes what another one sent to the retry topic that they share",
        file: RETRY_TOPIC,
        sound: "            Some(_) => Addressee::AnotherConsumer,",
        broken: "            Some(_) => Addressee::Anyone,",
        catchers: &[Catcher::Test {
            target: UNIT,
            name: "a_hop_leads_back_to_where_the_event_was_published",
        }],
    },
    Patch {
        name: "retry-wait-outlives-the-stop",
        what: "a lane that waits for a retry doesn't hear that it is to stop",
        file: LANE,
        sound: "                self.worker\n                    .pause(wait.unsigned_abs().min(CLOCK_TRUSTED))\n                    .await?;",
        broken: "                tokio::time::sleep(wait.unsigned_abs()).await;",
        catchers: &[Catcher::Test {
            target: RETRY_TOPICS,
            name: "embedded::a_stop_ends_the_wait_at_once",
        }],
    },
    Patch {
        name: "mirror-without-the-key",
        what: "a mirrored dead letter loses its key",
        file: MIRROR,
        sound: "            key: record.key.as_deref(),",
        broken: "            key: None,",
        catchers: &[Catcher::Test {
            target: RETRY_TOPICS,
            name: "embedded::mirrored_dead_letters",
        }],
    },
    Patch {
        name: "batch-failure-skips-the-rest",
        what: "the events behind a failed one of a batch are skipped",
        file: WORK_LIST,
        sound: "        self.parts.extend(chunks.into_iter().rev());\n",
        broken: "        chunks.clear();\n        self.parts.extend(chunks);\n",
        catchers: &[Catcher::Test {
            target: CONSUMER,
            name: "embedded::a_failure_in_a_batch_costs_only_the_failing_event",
        }],
    },
    Patch {
        name: "batch-failure-takes-the-neighbour",
        what: "of two events that fail together, one is never tried alone",
        file: WORK_LIST,
        sound: "        if failed.len() == 1 {\n",
        broken: "        if failed.len() <= 2 {\n",
        catchers: &[Catcher::Test {
            target: UNIT,
            name: "work_list::tests::of_events_that_fail_for_good",
        }],
    },
    Patch {
        name: "late-result-moves-the-offset",
        what: "a revoked lane stays in the table, and what it finishes late is committed",
        file: LANES,
        sound: ".filter_map(|key| lanes.live.remove_entry(key))",
        broken: ".filter_map(|key| {\n                    let lane = lanes.live.get(key)?;\n                    let (shared, epoch, committed) = (lane.shared.clone(), lane.epoch, lane.committed);\n                    Some((key.clone(), Lane { shared, epoch, committed }))\n                })",
        catchers: &[Catcher::Test {
            target: UNIT,
            name: "schedule::a_late_result_moves_no_offset_in_any_order",
        }],
    },
    Patch {
        name: "revoked-feed-stays-open",
        what: "a revoked lane can still take records, its successor's among them",
        file: LANES,
        sound: "            *lock(&lane.shared.queue) = Queue::default();\n",
        broken: "",
        catchers: &[Catcher::Test {
            target: UNIT,
            name: "schedule::a_closed_feed_takes_no_record_of_its_successor_in_any_order",
        }],
    },
    Patch {
        name: "end-of-a-lane-unsaid",
        what: "a revocation isn't woken when its lane has finished",
        file: LANES,
        sound: "        self.shared.finished_signal.notify_all();\n",
        broken: "",
        catchers: &[Catcher::Test {
            target: UNIT,
            name: "schedule::a_revocation_ends_when_the_lane_finishes_in_every_order",
        }],
    },
    Patch {
        name: "progress-read-too-early",
        what: "what a lane finishes while it drains is not committed at its revocation",
        file: LANES,
        sound: "        let mut drained = Vec::with_capacity(revoked.len());\n",
        broken: "        let mut drained = Vec::with_capacity(revoked.len());\n        let early: Vec<i64> = revoked.iter().map(|(_, lane)| lane.unsaved().unwrap_or(-1)).collect();\n        for ((_, lane), next) in revoked.iter().zip(early) {\n            lane.shared.wait_finished(until);\n            lane.shared.next_offset.store(next, Ordering::Release);\n        }\n",
        catchers: &[Catcher::Test {
            target: UNIT,
            name: "schedule::rebalances_in_random_order",
        }],
    },
    Patch {
        name: "one-attempt-too-many",
        what: "the failure policy's limit is off by one",
        file: OUTCOME,
        sound: "if attempt >= policy.max_attempts() {",
        broken: "if attempt > policy.max_attempts() {",
        catchers: &[Catcher::Test {
            target: UNIT,
            name: "every_failure_at_every_attempt_under_every_policy",
        }],
    },
    Patch {
        name: "stale-relay-frees-the-lease",
        what: "a relay that has lost its slots gives its successor's away",
        file: RELAY_STORE,
        sound: "USING (slot, token) \\\n                     WHERE l.owner = $1 ORDER BY l.slot FOR UPDATE OF l \\",
        broken: "USING (slot) \\\n                     WHERE $1 <> '' ORDER BY l.slot FOR UPDATE OF l \\",
        catchers: &[Catcher::Test {
            target: POSTGRES,
            name: "two_relays_in_every_order",
        }],
    },
    Patch {
        name: "old-token-claims",
        what: "a claim under an older token of a slot finds rows",
        file: RELAY_STORE,
        sound: "JOIN relay_lease AS l ON l.slot = given.slot AND l.token = given.token \\",
        broken: "JOIN relay_lease AS l ON l.slot = given.slot AND l.token >= given.token \\",
        catchers: &[Catcher::Test {
            target: POSTGRES,
            name: "slots_that_were_taken_by_a_lost_answer_are_taken_again",
        }],
    },
    Patch {
        name: "slot-of-two-relays",
        what: "a relay takes slots whose lease lasts",
        file: RELAY_STORE,
        sound: "WHERE (expires_at <= clock_timestamp() OR owner = $1) \\",
        broken: "WHERE (expires_at <= clock_timestamp() + interval '1 d' OR owner = $1) \\",
        catchers: &[Catcher::Test {
            target: POSTGRES,
            name: "case_16_one_relay_has_a_slot_at_a_time_and_a_stale_one_does_nothing",
        }],
    },
    Patch {
        name: "slot-in-two-flights",
        what: "the next batch is claimed from slots that have rows on their way",
        file: DISPATCH,
        sound: "slots.retain(|slot| !busy.contains(slot) && !self.leaving.contains(slot));",
        broken: "slots.retain(|slot| busy.len() <= 64 && !self.leaving.contains(slot));",
        catchers: &[Catcher::Test {
            target: UNIT,
            name: "the_next_batch_is_sent_while_the_last_is_acknowledged_and_each_key_keeps_its_order",
        }],
    },
    Patch {
        name: "slow-rows-keep-their-slots",
        what: "a batch keeps its slots until its last row is acknowledged",
        file: DISPATCH,
        sound: "            if !flight.slots.is_empty() && self.held.has_room(flight.left.len()) {",
        broken: "            if flight.left.is_empty() {",
        catchers: &[Catcher::Test {
            target: UNIT,
            name: "case_21_a_topic_whose_broker_is_slow_keeps_no_other_waiting",
        }],
    },
    Patch {
        name: "key-goes-on-past-a-failed-row",
        what: "later rows of a key are sent although an earlier one failed",
        file: PRODUCER,
        sound: "                    stopped_keys.extend(record.key);\n",
        broken: "",
        catchers: &[Catcher::Test {
            target: "--test producer",
            name: "too_large_a_record_holds_its_key_and_no_other",
        }],
    },
    Patch {
        name: "unsorted-ids",
        what: "the dedup statement inserts ids in the batch's order",
        file: SESSION,
        sound: "        given.sort_unstable();\n        given.dedup_by_key(|event| event.0);\n",
        broken: "        let mut seen = BTreeSet::new();\n        given.retain(|event| seen.insert(event.0));\n",
        catchers: &[Catcher::Test {
            target: POSTGRES,
            name: "batches_that_share_ids_in_opposite_orders_dont_deadlock",
        }],
    },
    Patch {
        name: "unknown-outcome-is-success",
        what: "a connection that was lost during COMMIT passes for a commit",
        file: SESSION,
        sound: "            Err(Failed::Lost(err)) => Err(CommitError::Unknown(err.because(WHAT))),\n            Err(Failed::Answer(err)) => self.after_refused_commit(xid, err).await,\n",
        broken: "            Err(Failed::Lost(_)) => Ok(()),\n            Err(Failed::Answer(err)) => match self.after_refused_commit(xid, err).await {\n                Err(CommitError::Unknown(_)) => Ok(()),\n                other => other,\n            },\n",
        catchers: &[Catcher::Cell("backend/commit.before")],
    },
    Patch {
        name: "stale-relay-marks",
        what: "a relay that has lost its slots still marks rows",
        file: RELAY_STORE,
        sound: "                                              JOIN unnest($2::smallint[], $4::bigint[]) \\\n                                                   AS held (slot, token) USING (slot, token) \\\n                                              WHERE l.owner = $1))\",",
        broken: "                                              WHERE $1 <> '' AND cardinality($2::smallint[]) = cardinality($4::bigint[])))\",",
        catchers: &[Catcher::Test {
            target: POSTGRES,
            name: "case_16_one_relay_has_a_slot_at_a_time_and_a_stale_one_does_nothing",
        }],
    },
    Patch {
        name: "offset-beyond-an-unfinished-record",
        what: "with several handlers at once the offset moves behind any record that is finished",
        file: IN_FLIGHT,
        sound: "        let mut below = None;\n",
        broken: "        let last = self.places.iter().rposition(|place| place.finished);\n        let mut below = last.map(|last| self.places[last].next_offset);\n",
        catchers: &[
            Catcher::Test {
                target: UNIT,
                name: "case_32_no_order_of_ends",
            },
            Catcher::Test {
                target: CONCURRENCY,
                name: "embedded::an_offset_stays_below_the_lowest_unfinished_event",
            },
        ],
    },
    Patch {
        name: "two-workers-of-one-key",
        what: "a key is ready again while a worker has it",
        file: IN_FLIGHT,
        sound: "        let bytes = value_bytes(&record);\n",
        broken: "        let bytes = value_bytes(&record);\n        if self.keys.get(&key).is_some_and(|queue| !queue.is_empty()) {\n            self.ready.push_back(key.clone());\n        }\n",
        catchers: &[
            Catcher::Test {
                target: UNIT,
                name: "keys_stay_in_order_and_the_offset_below_the_lowest_unfinished",
            },
            Catcher::Test {
                target: CONCURRENCY,
                name: "embedded::thirty_two_handlers_run_at_once_and_never_two_of_a_key",
            },
        ],
    },
    Patch {
        name: "a-lane-keeps-its-session",
        what: "a lane that has work doesn't let those in that wait for a turn",
        file: WORKER,
        sound: "        if db.is_turn_wanted() && !self.drain.is_cancelled() {\n",
        broken: "        if db.is_turn_wanted() && self.drain.is_cancelled() {\n",
        catchers: &[Catcher::Test {
            target: CONCURRENCY,
            name: "two_hundred_lanes_share_eight_connections_in_turn",
        }],
    },
    Patch {
        name: "poison-is-dropped",
        what: "what can't be decoded is skipped instead of set aside",
        file: WORKER,
        sound: "            Decoded::Poison(poison) => Item::DeadLetter {\n                reason: DeadLetterReason::Poison(poison.reason()),\n                poison: Some(poison),\n            },",
        broken: "            Decoded::Poison(_) => Item::Unknown,",
        catchers: &[Catcher::Cell("kill/poll.after")],
    },
    Patch {
        name: "no-constraints-when-publishing",
        what: "a value is written without a look at its field's constraints",
        file: CONSTRAINED_FIELDS,
        sound: "written = quote! {{ #checks #written }};",
        broken: "let _ = checks;",
        catchers: &[Catcher::Test {
            target: POSTGRES,
            name: "an_event_that_breaks_a_constraint_is_not_published",
        }],
    },
    Patch {
        name: "no-constraints-when-reading",
        what: "a value is read without a look at its field's constraints",
        file: CONSTRAINED_FIELDS,
        sound: "                    #checks\n",
        broken: "",
        catchers: &[Catcher::Test {
            target: CONSTRAINTS,
            name: "a_reader_refuses_what_breaks_a_constraint_and_names_path_and_rule",
        }],
    },
    Patch {
        name: "pattern-of-a-part",
        what: "a text passes when its beginning matches the pattern",
        file: CONSTRAINT,
        sound: "\"^(?:{})$\"",
        broken: "\"^(?:{})\"",
        catchers: &[Catcher::Test {
            target: CONSTRAINT_MODELS,
            name: "patterns_agree",
        }],
    },
    Patch {
        name: "other-of-a-named-value",
        what: "a catch-all that holds a named value is written, and read back as that variant",
        file: ENCODE,
        sound: "if named.contains(&text) {",
        broken: "if named.is_empty() && text.is_empty() {",
        catchers: &[Catcher::Test {
            target: CONSTRAINT_MODELS,
            name: "choices_agree",
        }],
    },
    Patch {
        name: "personal-data-is-not-seen-through",
        what: "an event of a broadcast topic compiles with a snapshot that holds personal data",
        file: PERSONAL,
        sound: "if !PARTS[1].is_empty() {",
        broken: "if false {",
        catchers: &[Catcher::Test {
            target: "--test derives",
            name: "every_mistake_has_its_error",
        }],
    },
    Patch {
        name: "any-word-in-ed-is-a-verb",
        what: "an event may be called `OrderNeed`",
        file: VERBS,
        sound: "return has(IN_EED, word);",
        broken: "return true;",
        catchers: &[Catcher::Test {
            target: UNIT,
            name: "names_that_are_not_in_the_past_tense_are_found",
        }],
    },
    Patch {
        name: "update-writes-a-broken-contract",
        what: "FACTUM_CONTRACTS=update overwrites the lock file of a contract that is broken",
        file: GATE,
        sound: "    if report.is_breaking() {\n        return Err",
        broken: "    if report.is_breaking() && mode == Mode::Compare {\n        return Err",
        catchers: &[Catcher::Test {
            target: CONTRACT_GATE,
            name: "a_breaking_change_is_never_written",
        }],
    },
    Patch {
        name: "presence-is-not-compared",
        what: "a field that becomes required or optional passes for compatible",
        file: COMPATIBILITY,
        sound: "                self.presence(before, field);\n",
        broken: "",
        catchers: &[Catcher::Test {
            target: CONTRACT_PROPERTIES,
            name: "what_is_called_compatible_is_read_by_both_sides",
        }],
    },
    Patch {
        name: "a-branch-removes-what-main-added",
        what: "a branch is compared with the tip of main and not with where it left it",
        file: REVISION,
        sound: "match merge_base(root, &commit) {",
        broken: "match merge_base(root, &commit).and(None) {",
        catchers: &[Catcher::Test {
            target: CONTRACT_COMMAND,
            name: "an_event_that_main_got_since_is_no_removal_on_a_branch",
        }],
    },
    Patch {
        name: "old-version-has-an-id-of-its-own",
        what: "the row of the older version gets another event id",
        file: VERSION,
        sound: "    let converted = Envelope::new(envelope.id(), event, envelope.occurred_at());\n",
        broken: "    let mut other = *envelope.id().as_uuid().as_bytes();\n    other[15] ^= 1;\n    let other = uuid::Uuid::from_bytes(other).try_into().unwrap_or(envelope.id());\n    let converted = Envelope::new(other, event, envelope.occurred_at());\n",
        catchers: &[Catcher::Test {
            target: VERSIONS,
            name: "embedded::listing_fault_07_one_id_for_both_versions",
        }],
    },
    Patch {
        name: "no-upcast",
        what: "a consumer of the new version skips the old one",
        file: DECODE,
        sound: "        self.decoders.get(record_type).or_else(upcast)\n",
        broken: "        drop(upcast);\n        self.decoders.get(record_type)\n",
        catchers: &[Catcher::Test {
            target: VERSIONS,
            name: "the_newest_version_takes_all_older_ones",
        }],
    },
    Patch {
        name: "dedup-by-version",
        what: "each version of a fact is deduplicated by itself",
        file: WORKER,
        sound: "                Item::Event { envelope, .. } => Some((envelope.id(), key_of(record, envelope))),\n",
        broken: "                Item::Event { envelope, .. } => {\n                    let mut id = envelope.id().to_string();\n                    id.pop();\n                    id.extend(envelope.sent_as().chars().last());\n                    id.parse().ok().map(|id| (id, key_of(record, envelope)))\n                }\n",
        catchers: &[Catcher::Test {
            target: VERSIONS,
            name: "embedded::both_versions_in_one_batch_act_once",
        }],
    },
    Patch {
        name: "replayed-letter-stays-open",
        what: "a replay's effect commits without its letter's new state",
        file: REPLAY_STORE,
        sound: "state_at = clock_timestamp() WHERE id = $2)",
        broken: "state_at = clock_timestamp() WHERE id = $2 AND false)",
        catchers: &[Catcher::Test {
            target: REPLAY,
            name: "case_10_outside_the_window",
        }],
    },
    Patch {
        name: "replay-backwards",
        what: "a replay takes its items from the end",
        file: REPLAY_STORE,
        sound: "ORDER BY i.topic, i.partition, i.record_offset LIMIT 1",
        broken: "ORDER BY i.topic, i.partition, i.record_offset DESC LIMIT 1",
        catchers: &[Catcher::Test {
            target: REPLAY,
            name: "a_run_pauses_after_so_many_and_goes_on",
        }],
    },
    Patch {
        name: "fold-forgets",
        what: "folding the counts of dead letters forgets what was counted before",
        file: LETTER_COUNTS,
        sound: "open = known.open + excluded.open",
        broken: "open = excluded.open",
        catchers: &[Catcher::Test {
            target: POSTGRES,
            name: "counts_are_exact_at_every_moment",
        }],
    },
    Patch {
        name: "replay-without-a-service",
        what: "a plan is made though no process of the consumer lives",
        file: REPLAY_PLAN,
        sound: "            return Ok(Err(ActionError::NoInstance { consumer }));\n",
        broken: "",
        catchers: &[Catcher::Test {
            target: DLQ_COMMAND,
            name: "a_plan_is_made_by_the_service_that_would_carry_it_out",
        }],
    },
    Patch {
        name: "discard-in-part",
        what: "a list of which a letter has changed is discarded all the same",
        file: REPLAY_PLAN,
        sound: "        if found != expected {\n",
        broken: "        if found > expected {\n",
        catchers: &[Catcher::Test {
            target: POSTGRES,
            name: "a_list_that_has_changed_is_discarded_neither_whole_nor_in_part",
        }],
    },
    Patch {
        name: "values-shown",
        what: "a dead letter shows its values without a contract",
        file: PAYLOAD,
        sound: "        if known.shows(&value.kind, text) {\n",
        broken: "        if !text.is_empty() {\n            drop(known);\n",
        catchers: &[Catcher::Test {
            target: DLQ_COMMAND,
            name: "a_canary_in_a_payload_shows_nowhere",
        }],
    },
    Patch {
        name: "controls-printed",
        what: "control characters reach the terminal",
        file: PLAIN,
        sound: "!stays(c) && (c.is_control() || turns_a_line(c))",
        broken: "!stays(c) && turns_a_line(c)",
        catchers: &[Catcher::Test {
            target: DLQ_COMMAND,
            name: "hostile_text_in_every_column_is_escaped",
        }],
    },
    Patch {
        name: "parked-keys-are-ignored",
        what: "a lane handles events whose key is parked",
        file: SESSION,
        sound: "        SELECT known.key FROM (SELECT DISTINCT key FROM unnest($4::bytea[]) AS given (key)) given \\\n        CROSS JOIN LATERAL ( \\\n            SELECT key FROM parked_key \\\n            WHERE consumer = $1 AND topic = $3 AND key = given.key \\\n            FOR KEY SHARE \\\n",
        broken: "        SELECT known.key FROM (SELECT DISTINCT key FROM unnest($4::bytea[]) AS given (key)) given \\\n        CROSS JOIN LATERAL ( \\\n            SELECT key FROM parked_key \\\n            WHERE false AND consumer = $1 AND topic = $3 AND key = given.key \\\n            FOR KEY SHARE \\\n",
        catchers: &[Catcher::Cell("kill/park.after")],
    },
    Patch {
        name: "parked-keys-are-not-held",
        what: "a key can be freed while a lane queues an event behind it",
        file: SESSION,
        sound: "        SELECT known.key FROM (SELECT DISTINCT key FROM unnest($4::bytea[]) AS given (key)) given \\\n        CROSS JOIN LATERAL ( \\\n            SELECT key FROM parked_key \\\n            WHERE consumer = $1 AND topic = $3 AND key = given.key \\\n            FOR KEY SHARE \\\n",
        broken: "        SELECT known.key FROM (SELECT DISTINCT key FROM unnest($4::bytea[]) AS given (key)) given \\\n        CROSS JOIN LATERAL ( \\\n            SELECT key FROM parked_key \\\n            WHERE consumer = $1 AND topic = $3 AND key = given.key \\\n",
        catchers: &[Catcher::Test {
            target: POSTGRES,
            name: "no_order_of_a_lane_and_a_retrier_loses_doubles_or_swaps",
        }],
    },
    Patch {
        name: "freed-without-a-second-look",
        what: "a key is freed though an event came behind it since it was found empty",
        file: PARKING,
        sound: "                   AND NOT EXISTS (SELECT FROM parked_event e \\\n                                    WHERE e.consumer = $1 AND e.topic = $2 AND e.key = $3)\",",
        broken: "                   AND true\",",
        catchers: &[Catcher::Test {
            target: POSTGRES,
            name: "no_order_of_a_lane_and_a_retrier_loses_doubles_or_swaps",
        }],
    },
    Patch {
        name: "two-retriers-have-one-event",
        what: "a retrier does not lock the first event of a parked key",
        file: PARKING,
        sound: "WHERE id = $1 FOR UPDATE SKIP LOCKED\")",
        broken: "WHERE id = $1\")",
        catchers: &[Catcher::Test {
            target: POSTGRES,
            name: "no_order_of_two_retriers_handles_an_event_twice",
        }],
    },
    Patch {
        name: "claimed-without-a-second-look",
        what: "a retrier takes an event that another one has just let wait again",
        file: PARKING,
        sound: "AND key = $3 AND attempts = $4 \\\n                      AND held_at IS NULL AND next_attempt_at <= clock_timestamp()) \\\n",
        broken: "AND key = $3 AND attempts = attempts + $4 * 0) \\\n",
        catchers: &[Catcher::Test {
            target: POSTGRES,
            name: "a_claim_finds_out_what_another_retrier_did",
        }],
    },
    Patch {
        name: "no-jitter-at-first",
        what: "keys that failed together come back together",
        file: LANE,
        sound: "up_to.mul_f64(fastrand::f64())",
        broken: "up_to",
        catchers: &[Catcher::Test {
            target: JITTER,
            name: "keys_that_failed_together_come_back_apart",
        }],
    },
    Patch {
        name: "no-jitter-again",
        what: "keys that failed again together come back together",
        file: RETRIER,
        sound: "up_to.mul_f64(fastrand::f64())",
        broken: "up_to",
        catchers: &[Catcher::Test {
            target: JITTER,
            name: "keys_that_failed_together_come_back_apart",
        }],
    },
    Patch {
        name: "no-damper",
        what: "failures of retried keys slow nothing down",
        file: PACE,
        sound: "        self.0 = (self.0 / 2.0).max(LEAST);\n",
        broken: "        self.0 = self.0.max(LEAST);\n",
        catchers: &[Catcher::Test {
            target: PARKING_TESTS,
            name: "embedded::many_failing_keys_are_not_woken_at_once",
        }],
    },
    Patch {
        name: "gap-jumped",
        what: "where records are gone, the consumer goes on at the end in silence",
        file: GAP,
        sound: "        (Some(_), _) => (low, true),",
        broken: "        (Some(_), _) => (high, false),",
        catchers: &[
            Catcher::Test {
                target: UNIT,
                name: "what_is_outside_the_partition_is_a_gap",
            },
            Catcher::Test {
                target: GAPS,
                name: "records_dropped_before_they_were_read",
            },
        ],
    },
    Patch {
        name: "added-partition-at-its-end",
        what: "what was published to a new partition before it was found is lost",
        file: GAP,
        sound: "(None, StartAt::Latest) if is_new =>",
        broken: "(None, StartAt::Latest) =>",
        catchers: &[Catcher::Test {
            target: UNIT,
            name: "a_partition_that_was_added",
        }],
    },
    Patch {
        name: "start-not-written",
        what: "a group that begins at the end jumps there again at its next start",
        file: GROUP,
        sound: "                    offsets.starts.insert(key.clone(), found.begin);",
        broken: "                    let _ = found.begin;",
        catchers: &[Catcher::Test {
            target: GAPS,
            name: "a_group_that_began_at_the_end",
        }],
    },
    Patch {
        name: "topic-made-anew-unnoticed",
        what: "a topic that is made anew behind a consumer's back is read on as if it were the old one",
        file: GROUP,
        sound: "accepted.filter(|accepted| written.get(key) < Some(accepted))",
        broken: "accepted.filter(|_| false)",
        catchers: &[Catcher::Test {
            target: GAPS,
            name: "a_topic_made_anew_with_more_records",
        }],
    },
    Patch {
        name: "call-outcome-without-token",
        what: "a caller that stood still overwrites what another has recorded",
        file: OUTBOUND_CALL,
        sound: "WHERE c.id = g.id AND c.claim_token = g.token AND c.state = 'pending'",
        broken: "WHERE c.id = g.id AND g.token > 0",
        catchers: &[Catcher::Test {
            target: POSTGRES,
            name: "calls::case_11_a_late_outcome",
        }],
    },
    Patch {
        name: "call-sent-after-its-key",
        what: "a call is sent although its key may be forgotten",
        file: OUTBOUND_CALL,
        sound: "state = CASE WHEN c.key_expires_at <= now THEN 'unknown' ELSE 'pending' END",
        broken: "state = CASE WHEN false THEN 'unknown' ELSE 'pending' END",
        catchers: &[Catcher::Test {
            target: POSTGRES,
            name: "calls::a_call_whose_key_has_expired",
        }],
    },
    Patch {
        name: "call-key-of-its-own",
        what: "a call's key isn't the event's id",
        file: CALL,
        sound: "let key = idempotency_key(cause.event_id, call.step.as_deref())?;",
        broken: "let key = idempotency_key(factum_postgres::new_event_id(), call.step.as_deref())?;",
        catchers: &[Catcher::Test {
            target: CALLS,
            name: "rule_idem_4",
        }],
    },
    Patch {
        name: "call-response-not-marked",
        what: "a response's handler is called again and again",
        file: CALLER,
        sound: "session.finish_answered_calls(&ids).await",
        broken: "session.finish_answered_calls(&[]).await",
        catchers: &[Catcher::Test {
            target: CALLS,
            name: "a_response_is_handled_once",
        }],
    },
    Patch {
        name: "call-409-given-up",
        what: "a call whose key is in progress is taken for refused",
        file: CALLER,
        sound: "        409 => (\n            CallNext::Retry(asked),",
        broken: "        409 => (\n            CallNext::SetAside,",
        catchers: &[Catcher::Test {
            target: UNIT,
            name: "case_13_what_becomes_of_a_call",
        }],
    },
    Patch {
        name: "refused-calls-are-retried",
        what: "a call that can never be written is tried again and again",
        file: HANDLER,
        sound: "let permanent = !matches!(error, OutboundCallError::Database(_));",
        broken: "let permanent = false & !matches!(error, OutboundCallError::Database(_));",
        catchers: &[Catcher::Test {
            target: UNIT,
            name: "an_error_of_factum_s_own",
        }],
    },
    Patch {
        name: "retention-of-waiting-rows",
        what: "outbox rows go by their age, published or not",
        file: RETENTION,
        sound: "    concat!(\"published_at < \", cutoff!()),\n",
        broken: "    concat!(\"created_at < \", cutoff!()),\n",
        catchers: &[Catcher::Test {
            target: POSTGRES,
            name: "retention::an_outbox_row_goes_only",
        }],
    },
    Patch {
        name: "retention-without-limit",
        what: "everything that is due goes in one statement",
        file: RETENTION,
        sound: "const BATCH: i64 = 1_000;",
        broken: "const BATCH: i64 = 1_000_000_000;",
        catchers: &[Catcher::Test {
            target: POSTGRES,
            name: "retention::case_39",
        }],
    },
    Patch {
        name: "retention-of-open-letters",
        what: "open dead letters go with the settled ones",
        file: RETENTION,
        sound: "by_time!(\"dead_letter\", \"state <> 'open'\", \"state_at\")",
        broken: "by_time!(\"dead_letter\", \"true\", \"last_seen\")",
        catchers: &[Catcher::Test {
            target: POSTGRES,
            name: "retention::what_is_settled",
        }],
    },
    Patch {
        name: "foreign-ids-not-remembered",
        what: "a foreign id counts as new each time",
        file: SESSION,
        sound: "        INSERT INTO processed_foreign_event (consumer_group, event_id, keep_until) \\\n        SELECT $1, id,",
        broken: "        INSERT INTO processed_foreign_event (consumer_group, event_id, keep_until) \\\n        SELECT $1 || gen_random_uuid(), id,",
        catchers: &[Catcher::Test {
            target: POSTGRES,
            name: "dedup::foreign_ids_are_remembered",
        }],
    },
    Patch {
        name: "horizon-without-replays",
        what: "the window is compared with the topic and the retries alone",
        file: HORIZON,
        sound: "            retention\n                .saturating_add(self.retries)\n                .saturating_add(self.replays),\n",
        broken: "            retention\n                .saturating_add(self.retries),\n",
        catchers: &[Catcher::Test {
            target: UNIT,
            name: "listing_fault_12",
        }],
    },
];
