//! Histories made by hand: a clean one, and for each anomaly the least that is wrong.

use super::*;
use crate::facts::{BusinessRow, Call, CallState, DeadLetter, Parked, Partition, Unsent};
use crate::history::{Begin, Calls, TopicRun};

/// Inputs of the clean run, by their number.
const A1: u8 = 1;
const A2: u8 = 2;
const B1: u8 = 3;
const POISON_A: u8 = 4;
const POISON_B: u8 = 5;
/// Nobody's id.
const NOBODY: u8 = 99;

/// Derived events have their cause's number and this.
const DERIVED: u8 = 100;

const NONE: [&str; 0] = [];

fn id(number: u8) -> Uuid {
    Uuid::from_u128(0x0197_a3c0_0000_7000_8000_0000_0000_0000 + u128::from(number))
}

fn at(partition: i32, offset: i64) -> Position {
    Position { partition, offset }
}

fn input(number: u8, key: &str, seq: Option<i64>) -> Input {
    Input {
        id: id(number),
        key: key.to_owned(),
        seq,
        fate: match seq {
            Some(_) => Fate::Effect,
            None => Fate::DeadLetter,
        },
    }
}

fn effect(row: i64, number: u8, account: &str, seq: i64) -> Effect {
    Effect {
        id: row,
        event_id: id(number),
        account: account.to_owned(),
        seq,
    }
}

fn event(position: Position, number: u8, account: &str, seq: i64) -> Record {
    Record {
        position,
        key: Some(account.to_owned()),
        label: Label::Absent,
        body: Some(Body {
            event_id: id(number),
            account: Some(account.to_owned()),
            seq: Some(seq),
            cause: None,
        }),
    }
}

fn derived(position: Position, cause: u8, account: &str, seq: i64) -> Record {
    let mut record = event(position, DERIVED + cause, account, seq);
    body(&mut record).cause = Some(id(cause));
    record
}

fn poison(position: Position, number: u8) -> Record {
    Record {
        position,
        key: None,
        label: Label::Names(id(number)),
        body: None,
    }
}

fn letter(position: Position) -> DeadLetter {
    DeadLetter {
        topic: "posted".to_owned(),
        position,
        reason: "malformed".to_owned(),
        is_replayed: false,
    }
}

fn parked(row: i64, number: u8, position: Position) -> Parked {
    Parked {
        id: row,
        event_id: id(number),
        topic: "posted".to_owned(),
        position,
    }
}

fn call(row: i64, number: u8, state: CallState) -> Call {
    Call {
        id: row,
        event_id: id(number),
        step: String::new(),
        key: id(number).to_string(),
        state,
    }
}

fn body(record: &mut Record) -> &mut Body {
    record.body.as_mut().expect("an event has one")
}

fn topic(ends: &[(i32, i64)], records: Vec<Record>) -> Topic {
    let partition = |(number, end): &(i32, i64)| {
        let partition = Partition {
            end: *end,
            committed: Some(*end),
        };
        (*number, partition)
    };
    Topic {
        partitions: ends.iter().map(partition).collect(),
        records,
    }
}

#[derive(Clone)]
struct Run {
    history: History,
    facts: Facts,
}

impl Run {
    /// A run in which everything that may happen has happened: duplicates in the source topic, poison
    /// twice, repeats of the relay, effects of other keys in between.
    fn clean() -> Run {
        let begin = |begins: &[(i32, i64)]| Begin(begins.iter().copied().collect());
        let rows = || {
            vec![
                effect(7, A1, "a", 1),
                effect(9, B1, "b", 1),
                effect(12, A2, "a", 2),
            ]
        };
        Run {
            history: History {
                consumer: "group".to_owned(),
                source: TopicRun {
                    topic: "posted".to_owned(),
                    begin: begin(&[(0, 10), (1, 5)]),
                },
                derived: Some(TopicRun {
                    topic: "booked".to_owned(),
                    begin: begin(&[(0, 3)]),
                }),
                effects: vec!["debit".to_owned(), "credit".to_owned()],
                business: None,
                calls: None,
                input: vec![
                    input(A1, "a", Some(1)),
                    input(A2, "a", Some(2)),
                    input(B1, "b", Some(1)),
                    input(POISON_A, "a", None),
                    input(POISON_B, "b", None),
                ],
            },
            facts: Facts {
                effects: vec![rows(), rows()],
                dead_letters: vec![letter(at(0, 11)), letter(at(0, 14)), letter(at(1, 6))],
                parked: Vec::new(),
                parked_keys: Vec::new(),
                calls: Vec::new(),
                business: Vec::new(),
                unsent: Vec::new(),
                source: topic(
                    &[(0, 15), (1, 8), (2, 0)],
                    vec![
                        event(at(0, 10), A1, "a", 1),
                        poison(at(0, 11), POISON_A),
                        event(at(0, 12), A2, "a", 2),
                        event(at(0, 13), A1, "a", 1),
                        poison(at(0, 14), POISON_A),
                        event(at(1, 5), B1, "b", 1),
                        poison(at(1, 6), POISON_B),
                        event(at(1, 7), B1, "b", 1),
                    ],
                ),
                derived: topic(
                    &[(0, 7), (1, 1)],
                    vec![
                        derived(at(0, 3), A1, "a", 1),
                        derived(at(0, 4), A2, "a", 2),
                        derived(at(0, 5), A2, "a", 2),
                        derived(at(0, 6), A1, "a", 1),
                        derived(at(1, 0), B1, "b", 1),
                    ],
                ),
            },
        }
    }

    fn found(&self, phase: Phase) -> Vec<Anomaly> {
        check(&self.history, &self.facts, phase)
    }

    fn kinds(&self, phase: Phase) -> Vec<&'static str> {
        self.found(phase).iter().map(|a| a.kind.as_str()).collect()
    }

    /// Finds the same in both phases, since no time can mend it; gives the texts.
    fn always(&self, kinds: &[&str]) -> Vec<String> {
        let found = self.found(Phase::Ended);
        assert_eq!(self.found(Phase::Running), found);
        assert_eq!(self.kinds(Phase::Ended), kinds, "{found:#?}");
        found.into_iter().map(|anomaly| anomaly.text).collect()
    }

    /// Finds it at the end only; gives the texts.
    fn at_the_end(&self, kinds: &[&str]) -> Vec<String> {
        assert_eq!(self.found(Phase::Running), []);
        let found = self.found(Phase::Ended);
        assert_eq!(self.kinds(Phase::Ended), kinds, "{found:#?}");
        found.into_iter().map(|anomaly| anomaly.text).collect()
    }

    fn source(&mut self, position: Position) -> &mut Record {
        record(&mut self.facts.source, position)
    }

    fn derived(&mut self, position: Position) -> &mut Record {
        record(&mut self.facts.derived, position)
    }

    fn commit(&mut self, partition: i32, offset: Option<i64>) {
        let partition = self.facts.source.partitions.get_mut(&partition);
        partition.expect("it is there").committed = offset;
    }

    /// A record more at the end of a partition, which the group has passed.
    fn send(&mut self, record: Record) {
        let partitions = &mut self.facts.source.partitions;
        let end = record.position.offset + 1;
        let partition = Partition {
            end,
            committed: Some(end),
        };
        partitions.insert(record.position.partition, partition);
        self.facts.source.records.push(record);
    }

    /// The clean run with one call for each event, carried out once.
    fn with_calls() -> Run {
        let mut run = Run::clean();
        run.facts.calls = [(1, A1), (2, B1), (3, A2)]
            .map(|(row, number)| call(row, number, CallState::Done))
            .to_vec();
        run.history.calls = Some(Calls {
            steps: vec![String::new()],
            book: [A1, A2, B1].map(|n| (id(n).to_string(), 1)).into(),
        });
        run
    }

    fn booked(&mut self, number: u8, times: i64) {
        let calls = self.history.calls.as_mut().expect("there are calls");
        calls.book.insert(id(number).to_string(), times);
    }

    /// The clean run with a row for each event that its publisher wrote.
    fn with_business() -> Run {
        let mut run = Run::clean();
        run.history.business = Some("entry".to_owned());
        run.facts.business = [(A1, "a", 1), (A2, "a", 2), (B1, "b", 1)]
            .map(|(number, account, seq)| BusinessRow {
                event_id: id(number),
                account: account.to_owned(),
                seq,
            })
            .to_vec();
        run
    }

    /// The clean run with B1 of this fate, and nothing of it anywhere.
    fn without_b1(fate: Fate) -> Run {
        let mut run = Run::with_business();
        run.history.input[2].fate = fate;
        run.facts.business.pop();
        run.undo(B1);
        let body_id = |record: &Record| record.body.as_ref().map(|body| body.event_id);
        run.facts
            .source
            .records
            .retain(|record| body_id(record) != Some(id(B1)));
        run
    }

    /// The clean run in which B1 fails for good, and is replayed or to be replayed.
    fn with_a_replay() -> Run {
        let mut run = Run::clean();
        run.history.input[2].fate = Fate::Replayed;
        // Both of its records: the repeat came before the replay.
        for offset in [5, 7] {
            let mut letter = letter(at(1, offset));
            letter.is_replayed = true;
            run.facts.dead_letters.push(letter);
        }
        run
    }

    /// Takes an event out of all that it caused.
    fn undo(&mut self, number: u8) {
        for rows in &mut self.facts.effects {
            rows.retain(|row| row.event_id != id(number));
        }
        let records = &mut self.facts.derived.records;
        records.retain(|record| record.body.as_ref().map(|b| b.cause) != Some(Some(id(number))));
    }
}

fn record(topic: &mut Topic, position: Position) -> &mut Record {
    topic
        .records
        .iter_mut()
        .find(|record| record.position == position)
        .expect("it is there")
}

#[test]
fn a_clean_run_has_no_anomaly() {
    Run::clean().always(&NONE);
}

#[test]
fn the_order_in_which_facts_come_does_not_matter() {
    let mut run = Run::clean();
    run.facts.effects.iter_mut().for_each(|rows| rows.reverse());
    run.facts.dead_letters.reverse();
    run.facts.source.records.reverse();
    run.facts.derived.records.reverse();
    run.always(&NONE);
}

#[test]
fn a_run_without_a_derived_topic_is_judged_without_it() {
    let mut run = Run::clean();
    run.history.derived = None;
    run.facts.derived = Topic::default();
    run.always(&NONE);
}

#[test]
fn a_run_without_input_is_clean() {
    let mut run = Run::clean();
    run.history.input.clear();
    run.facts.effects = vec![Vec::new(), Vec::new()];
    run.facts.dead_letters.clear();
    run.facts.derived = Topic::default();
    run.facts.source = topic(&[(0, 10), (1, 5)], Vec::new());
    run.commit(0, None);
    run.always(&NONE);
}

#[test]
fn what_is_not_there_yet_is_lost_only_at_the_end() {
    let mut run = Run::clean();
    run.facts = Facts {
        effects: vec![Vec::new(), Vec::new()],
        source: topic(&[(0, 10), (1, 5)], Vec::new()),
        ..Facts::default()
    };
    run.commit(1, None);
    run.at_the_end(&["lost"; 5]);
}

#[test]
fn a_run_in_the_middle_of_its_work_is_not_accused() {
    let mut run = Run::clean();
    run.undo(A2);
    run.undo(B1);
    run.facts.dead_letters = vec![letter(at(0, 11))];
    // Handled and committed up to A2; in the other partition handled, and nothing committed.
    run.commit(0, Some(12));
    run.commit(1, None);
    assert_eq!(run.kinds(Phase::Running), NONE);
    // Handled beyond what is committed, and no derived event is sent yet.
    let mut run = Run::clean();
    run.commit(0, Some(10));
    run.commit(1, Some(3));
    run.facts.derived.records.clear();
    assert_eq!(run.kinds(Phase::Running), NONE);
}

#[test]
fn lost_an_input_that_is_not_in_the_source_topic() {
    for (number, name) in [
        (B1, "event 0197a3c0-0000-7000-8000-000000000003 (b, seq 1)"),
        (POISON_B, "poison 0197a3c0-0000-7000-8000-000000000005 (b)"),
    ] {
        let mut run = Run::clean();
        run.facts.source.records.retain(|record| {
            let body = record.body.as_ref();
            record.label != Label::Names(id(number)) && body.map(|b| b.event_id) != Some(id(number))
        });
        run.facts.dead_letters.retain(|letter| {
            let is_of_it = letter.position.partition == 1 && number == POISON_B;
            !is_of_it
        });
        let texts = run.at_the_end(&["lost"]);
        assert_eq!(texts, [format!("{name} is not in posted")]);
    }
}

#[test]
fn lost_an_event_without_effect() {
    let mut run = Run::clean();
    run.undo(B1);
    run.commit(1, Some(5));
    assert_eq!(run.kinds(Phase::Running), NONE);
    assert_eq!(run.kinds(Phase::Ended), ["lost", "stuck"]);
    // Committed nevertheless, it is as bad while the run goes on.
    run.commit(1, Some(8));
    assert_eq!(run.kinds(Phase::Running), ["premature-commit"; 2]);
    let found = run.found(Phase::Ended);
    assert_eq!(found.len(), 3);
    assert_eq!(
        found[0].to_string(),
        "lost: event 0197a3c0-0000-7000-8000-000000000003 (b, seq 1) has no effect"
    );
}

#[test]
fn lost_a_poison_record_without_dead_letter() {
    let mut run = Run::clean();
    // The other one of the same input has one.
    run.facts.dead_letters.retain(|l| l.position != at(0, 14));
    run.commit(0, Some(14));
    assert_eq!(run.kinds(Phase::Running), NONE);
    assert_eq!(run.kinds(Phase::Ended), ["lost", "stuck"]);
    let text = &run.found(Phase::Ended)[0].text;
    assert_eq!(
        text,
        "poison 0197a3c0-0000-7000-8000-000000000004 (a) at posted/0@14 has no dead letter"
    );
}

#[test]
fn lost_an_effect_without_derived_event() {
    let mut run = Run::clean();
    run.facts.derived.records.pop();
    let texts = run.at_the_end(&["lost"]);
    assert_eq!(
        texts,
        ["event 0197a3c0-0000-7000-8000-000000000003 (b, seq 1) has no derived event in booked"]
    );
}

#[test]
fn duplicate_rows_of_an_event() {
    let mut run = Run::clean();
    run.facts.effects[1].push(effect(13, A1, "a", 1));
    run.facts.effects[1].push(effect(14, A1, "a", 1));
    let texts = run.always(&["duplicate"]);
    assert_eq!(
        texts,
        ["credit has 3 rows of event 0197a3c0-0000-7000-8000-000000000001 (a, seq 1)"]
    );
}

#[test]
fn duplicate_derived_events_of_one_cause() {
    let mut run = Run::clean();
    body(run.derived(at(0, 5))).event_id = id(77);
    let texts = run.always(&["duplicate"]);
    assert!(texts[0].contains("000000000002 (a, seq 2) has 2 derived events in booked"));
    assert!(texts[0].contains(&id(77).to_string()) && texts[0].contains(&id(102).to_string()));
}

#[test]
fn duplicate_dead_letters_of_one_position() {
    let mut run = Run::clean();
    run.facts.dead_letters.push(letter(at(0, 14)));
    assert_eq!(
        run.always(&["duplicate"]),
        ["posted/0@14 has 2 dead letters"]
    );
}

#[test]
fn phantom_an_effect_without_input() {
    let mut run = Run::clean();
    run.facts.effects[0].push(effect(13, NOBODY, "a", 3));
    let texts = run.always(&["phantom"]);
    assert_eq!(
        texts,
        ["debit row 13 is of event 0197a3c0-0000-7000-8000-000000000063, which is no input"]
    );
}

#[test]
fn phantom_an_effect_of_poison() {
    let mut run = Run::clean();
    run.facts.effects[0].push(effect(13, POISON_A, "a", 3));
    let texts = run.always(&["phantom"]);
    assert!(texts[0].starts_with("debit row 13 is an effect of poison "));
}

#[test]
fn phantom_an_effect_that_says_something_else() {
    for (account, seq) in [("b", 1), ("a", 3)] {
        let mut run = Run::clean();
        run.facts.effects[1][0] = effect(7, A1, account, seq);
        let texts = run.always(&["phantom"]);
        assert!(texts[0].starts_with("credit row 7 has another account or seq than event "));
    }
}

#[test]
fn phantom_a_source_record_that_nobody_sent() {
    let unreadable = |label| Record {
        label,
        ..poison(at(0, 15), NOBODY)
    };
    for record in [
        event(at(0, 15), NOBODY, "a", 3),
        poison(at(0, 15), NOBODY),
        unreadable(Label::Absent),
        unreadable(Label::Illegible),
        // A sound event under a poison's id is not the poison.
        event(at(0, 15), POISON_A, "a", 3),
    ] {
        let mut run = Run::clean();
        run.send(record);
        // It is passed, without effect: no premature commit.
        assert_eq!(run.always(&["phantom"]), ["posted/0@15 is no input"]);
    }
}

#[test]
fn phantom_a_source_record_that_says_something_else() {
    for spoil in [
        (|record| body(record).account = Some("b".to_owned())) as fn(&mut Record),
        |record| body(record).account = None,
        |record| body(record).seq = Some(7),
        |record| body(record).seq = None,
        |record| {
            record.label = Label::Names(id(A1));
            body(record).event_id = id(A2);
        },
        |record| {
            record.label = Label::Names(id(A1));
            record.body = None;
        },
    ] {
        let mut run = Run::clean();
        spoil(run.source(at(0, 10)));
        let texts = run.always(&["phantom"]);
        assert!(texts[0].starts_with("posted/0@10 says something else than event "));
    }
}

#[test]
fn phantom_a_dead_letter_of_a_good_event() {
    let mut run = Run::clean();
    run.facts.dead_letters.push(letter(at(0, 12)));
    let texts = run.always(&["phantom"]);
    assert_eq!(
        texts,
        [
            "a dead letter (malformed) is of posted/0@12, which is event \
          0197a3c0-0000-7000-8000-000000000002 (a, seq 2)"
        ]
    );
    // In the place of its effects it is lost besides, and not committed too early: it was set aside.
    run.undo(A2);
    assert_eq!(run.kinds(Phase::Running), ["phantom"]);
    assert_eq!(run.kinds(Phase::Ended), ["lost", "phantom"]);
}

#[test]
fn phantom_a_dead_letter_of_nothing() {
    let mut run = Run::clean();
    run.facts.dead_letters.push(letter(at(0, 15)));
    assert_eq!(
        run.always(&["phantom"]),
        ["a dead letter (malformed) is of posted/0@15, where no record is"]
    );
    run.send(event(at(0, 15), NOBODY, "a", 3));
    assert_eq!(
        run.always(&["phantom"; 2])[0],
        "a dead letter (malformed) is of posted/0@15, which is no input"
    );
    let mut run = Run::clean();
    run.facts.dead_letters[0].topic = "booked".to_owned();
    run.facts.dead_letters.push(letter(at(0, 11)));
    let texts = run.always(&["phantom"]);
    assert!(texts[0].ends_with("of booked/0@11, a topic that group does not read"));
}

#[test]
fn a_dead_letter_of_an_earlier_run_is_nobody_s_fault() {
    let mut run = Run::clean();
    run.facts.dead_letters.push(letter(at(0, 9)));
    run.facts.dead_letters.push(letter(at(0, 9)));
    run.always(&NONE);
}

#[test]
fn phantom_a_derived_record_without_input() {
    for spoil in [
        (|record| record.body = None) as fn(&mut Record),
        |record| body(record).cause = None,
        |record| body(record).cause = Some(id(NOBODY)),
    ] {
        let mut run = Run::clean();
        spoil(run.derived(at(0, 5)));
        let texts = run.always(&["phantom"]);
        assert_eq!(texts, ["booked/0@5 has no input for a cause"]);
    }
    let mut run = Run::clean();
    body(run.derived(at(0, 5))).cause = Some(id(POISON_A));
    let texts = run.always(&["phantom"]);
    assert!(texts[0].starts_with("booked/0@5 is caused by poison "));
}

#[test]
fn phantom_a_derived_record_that_says_something_else() {
    for spoil in [
        (|record| record.key = None) as fn(&mut Record),
        |record| record.key = Some("b".to_owned()),
        |record| body(record).account = Some("b".to_owned()),
        |record| body(record).seq = Some(1),
    ] {
        let mut run = Run::clean();
        spoil(run.derived(at(0, 5)));
        let texts = run.always(&["phantom"]);
        assert!(
            texts[0].starts_with("booked/0@5 has another account, key or seq than its cause, ")
        );
    }
}

#[test]
fn phantom_a_derived_record_under_another_event_s_id() {
    let mut run = Run::clean();
    body(run.derived(at(0, 5))).event_id = id(DERIVED + A1);
    // For A2 there are two ids now, which is true as well.
    run.always(&["duplicate", "phantom"]);
}

#[test]
fn phantom_a_derived_record_without_its_effect() {
    let mut run = Run::clean();
    for rows in &mut run.facts.effects {
        rows.retain(|row| row.event_id != id(B1));
    }
    run.commit(1, Some(5));
    assert_eq!(run.kinds(Phase::Running), ["phantom"]);
    let text = &run.found(Phase::Running)[0].text;
    assert!(text.starts_with("booked/1@0 is caused by event ") && text.ends_with("no effect"));
}

#[test]
fn inversion_in_an_effect_table() {
    let mut run = Run::clean();
    run.facts.effects[0][0].id = 13;
    let texts = run.always(&["inversion"]);
    assert_eq!(
        texts,
        [
            "debit row 13: event 0197a3c0-0000-7000-8000-000000000001 (a, seq 1) comes after seq 2 \
          (event 0197a3c0-0000-7000-8000-000000000002)"
        ]
    );
}

#[test]
fn inversion_of_first_occurrences_in_a_topic() {
    let mut run = Run::clean();
    *run.source(at(0, 10)) = event(at(0, 10), A2, "a", 2);
    let texts = run.always(&["inversion"]);
    assert!(texts[0].starts_with("posted/0@13: event ") && texts[0].contains("after seq 2"));

    let mut run = Run::clean();
    *run.derived(at(0, 3)) = derived(at(0, 3), A2, "a", 2);
    let texts = run.always(&["inversion"]);
    assert!(texts[0].starts_with("booked/0@6: event ") && texts[0].contains("after seq 2"));
}

#[test]
fn inversion_is_told_once_for_each_that_comes_too_late() {
    let mut run = Run::clean();
    let more = [(6, 3), (7, 4)];
    for (number, seq) in more {
        run.history.input.push(input(number, "a", Some(seq)));
    }
    // In the order 1, 4, 2, 3 two come after 4.
    for rows in &mut run.facts.effects {
        rows.push(effect(8, 7, "a", 4));
        rows.push(effect(13, 6, "a", 3));
    }
    for (offset, (number, seq)) in (15..).zip(more) {
        run.send(event(at(0, offset), number, "a", seq));
    }
    for (offset, (number, seq)) in (7..).zip(more) {
        let records = &mut run.facts.derived.records;
        records.push(derived(at(0, offset), number, "a", seq));
    }
    let texts = run.always(&["inversion"; 4]);
    assert!(texts.iter().all(|text| text.contains("comes after seq 4")));
}

#[test]
fn inversion_a_key_in_two_partitions() {
    let mut run = Run::clean();
    // In the other partition it comes first for its key there: that alone is no wrong order.
    run.send(event(at(1, 8), A1, "a", 1));
    assert_eq!(
        run.always(&["inversion"]),
        ["posted: key a is in 2 partitions, first at 0@10 and 1@8"]
    );

    let mut run = Run::clean();
    run.source(at(1, 6)).label = Label::Names(id(POISON_A));
    run.history.input.pop();
    assert_eq!(
        run.always(&["inversion"]),
        ["posted: key a is in 2 partitions, first at 0@10 and 1@6"]
    );

    let mut run = Run::clean();
    run.facts
        .derived
        .records
        .push(derived(at(1, 1), A2, "a", 2));
    assert_eq!(
        run.always(&["inversion"]),
        ["booked: key a is in 2 partitions, first at 0@3 and 1@1"]
    );
}

#[test]
fn premature_commit_beyond_an_event_without_effects() {
    let mut run = Run::clean();
    run.undo(A2);
    // Exactly at the record: it is the next to come.
    run.commit(0, Some(12));
    assert_eq!(run.kinds(Phase::Running), NONE);
    run.commit(0, Some(13));
    let found = run.found(Phase::Running);
    assert_eq!(
        found.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["premature-commit: group is committed at 13, beyond event \
          0197a3c0-0000-7000-8000-000000000002 (a, seq 2) at posted/0@12, which is not finished"]
    );
}

#[test]
fn premature_commit_beyond_poison_without_dead_letter() {
    let mut run = Run::clean();
    run.facts.dead_letters.retain(|l| l.position != at(0, 14));
    run.commit(0, Some(14));
    assert_eq!(run.kinds(Phase::Running), NONE);
    run.commit(0, Some(15));
    assert_eq!(run.kinds(Phase::Running), ["premature-commit"]);
}

#[test]
fn premature_commit_beyond_the_end() {
    let mut run = Run::clean();
    run.commit(1, Some(9));
    assert_eq!(
        run.always(&["premature-commit"]),
        ["group is committed at 9 in posted/1, which ends at 8"]
    );
}

#[test]
fn half_effect_an_event_in_one_table_only() {
    let mut run = Run::clean();
    run.facts.effects[1].retain(|row| row.event_id != id(B1));
    run.commit(1, Some(5));
    let found = run.found(Phase::Running);
    assert_eq!(
        found.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "half-effect: event 0197a3c0-0000-7000-8000-000000000003 (b, seq 1) \
          is in debit and not in credit"
        ]
    );
    // Half an effect is not finished, so the offset must not pass it. It is not lost altogether.
    run.commit(1, Some(8));
    run.always(&["premature-commit", "premature-commit", "half-effect"]);
}

#[test]
fn half_effect_is_not_mended_by_a_second_row() {
    let mut run = Run::clean();
    run.facts.effects[1].retain(|row| row.event_id != id(B1));
    run.facts.effects[0].push(effect(13, B1, "b", 1));
    run.commit(1, Some(5));
    assert_eq!(run.kinds(Phase::Running), ["duplicate", "half-effect"]);
}

#[test]
fn stuck_an_offset_before_the_end() {
    let mut run = Run::clean();
    run.commit(0, Some(14));
    assert_eq!(
        run.at_the_end(&["stuck"]),
        ["group is committed at 14 in posted/0, which ends at 15"]
    );
    let mut run = Run::clean();
    run.commit(1, None);
    assert_eq!(
        run.at_the_end(&["stuck"]),
        ["group has committed nothing in posted/1, which ends at 8"]
    );
}

#[test]
fn stuck_is_not_a_partition_in_which_nothing_came() {
    let mut run = Run::clean();
    let fresh = Partition {
        end: 4,
        committed: None,
    };
    run.facts.source.partitions.insert(2, fresh);
    run.history.source.begin.0.insert(2, 4);
    run.always(&NONE);
    run.commit(2, Some(3));
    run.at_the_end(&["stuck"]);
}

#[test]
fn a_parked_event_is_set_aside_in_sight_while_the_run_goes_on() {
    let mut run = Run::clean();
    run.undo(A2);
    run.facts.parked = vec![parked(3, A2, at(0, 12))];
    // Committed beyond it; no effect, and not lost.
    assert_eq!(run.found(Phase::Running), []);
    let texts = run.at_the_end(&["stuck"]);
    let expected = format!(
        "parked_event row 3: event {} (a, seq 2) is still parked",
        id(A2)
    );
    assert_eq!(texts, [expected]);
    // Without the row nothing shows where it is.
    run.facts.parked.clear();
    assert_eq!(run.kinds(Phase::Running), ["premature-commit"]);
    assert_eq!(run.kinds(Phase::Ended), ["lost", "premature-commit"]);
}

#[test]
fn a_parked_record_that_will_be_a_dead_letter_is_not_missed_before() {
    let mut run = Run::clean();
    run.facts.dead_letters.retain(|l| l.position != at(1, 6));
    run.facts.parked = vec![parked(3, POISON_B, at(1, 6))];
    run.at_the_end(&["stuck"]);
    // A row of another of its records says nothing about this one.
    run.facts.parked = vec![parked(3, POISON_A, at(0, 11))];
    assert_eq!(run.kinds(Phase::Running), ["premature-commit"]);
}

#[test]
fn a_repeat_of_a_parked_event_waits_with_it() {
    let mut run = Run::clean();
    run.undo(B1);
    run.facts.parked = vec![parked(3, B1, at(1, 5)), parked(4, B1, at(1, 7))];
    run.at_the_end(&["stuck"; 2]);
    run.facts.parked.pop();
    run.at_the_end(&["stuck"]);
}

#[test]
fn stuck_a_parked_event_whose_effect_stands_already() {
    let mut run = Run::clean();
    run.facts.parked = vec![parked(3, A1, at(0, 13))];
    run.at_the_end(&["stuck"]);
}

#[test]
fn stuck_a_key_that_is_parked_with_nothing_behind_it() {
    let mut run = Run::clean();
    run.facts.parked_keys = vec!["a".to_owned()];
    let texts = run.at_the_end(&["stuck"]);
    assert_eq!(
        texts,
        ["key a is still parked, and nothing waits behind it"]
    );
    // With something behind it, that is what is told.
    run.facts.parked = vec![parked(3, A1, at(0, 13))];
    let texts = run.at_the_end(&["stuck"]);
    assert!(texts[0].starts_with("parked_event row 3"), "{texts:?}");
}

#[test]
fn a_held_event_is_parked_to_the_end() {
    let mut run = Run::clean();
    run.undo(A2);
    run.history.input[1].fate = Fate::Parked;
    run.facts.parked = vec![parked(3, A2, at(0, 12))];
    run.always(&NONE);
    run.facts.parked.clear();
    assert_eq!(run.kinds(Phase::Ended), ["lost", "premature-commit"]);
}

#[test]
fn phantom_an_effect_of_a_held_event() {
    let mut run = Run::clean();
    run.facts
        .derived
        .records
        .retain(|r| r.position.partition == 0);
    run.history.input[2].fate = Fate::Parked;
    run.facts.parked = vec![parked(3, B1, at(1, 5))];
    run.always(&["phantom", "phantom"]);
}

#[test]
fn phantom_a_parked_row_of_nothing() {
    let mut run = Run::clean();
    run.facts.parked = vec![
        parked(3, A1, at(0, 99)),
        // Of an earlier run: nobody's fault.
        parked(4, NOBODY, at(0, 9)),
        // Another event stands there.
        parked(5, A2, at(0, 10)),
        parked(6, B1, at(1, 5)),
    ];
    run.facts.parked[3].topic = "another".to_owned();
    let texts = run.always(&["phantom"; 3]);
    assert!(
        texts[2].starts_with("parked_event row 6 is of another/1@5"),
        "{texts:?}"
    );
}

#[test]
fn duplicate_a_record_parked_twice() {
    let mut run = Run::clean();
    run.undo(B1);
    run.facts.parked = vec![parked(3, B1, at(1, 5)), parked(4, B1, at(1, 5))];
    assert_eq!(run.kinds(Phase::Running), ["duplicate"]);
}

#[test]
fn inversion_an_effect_past_a_parked_event_of_its_key() {
    let mut run = Run::clean();
    run.undo(A1);
    run.facts.parked = vec![parked(3, A1, at(0, 10))];
    assert_eq!(run.kinds(Phase::Running), ["inversion"]);
    let expected = format!(
        "parked_event row 3: event {} (a, seq 1) waits, and seq 2 (event {}) has its effect already",
        id(A1),
        id(A2)
    );
    assert_eq!(run.found(Phase::Running)[0].text, expected);
    assert_eq!(run.kinds(Phase::Ended), ["inversion", "stuck"]);
}

#[test]
fn inversion_no_effect_past_a_dead_letter_of_its_key() {
    // The earlier one was given up: what came behind it may go.
    let mut run = Run::clean();
    run.undo(A1);
    run.history.input[0].fate = Fate::DeadLetter;
    for offset in [10, 13] {
        run.source(at(0, offset)).label = Label::Names(id(A1));
        run.facts.dead_letters.push(letter(at(0, offset)));
    }
    run.always(&NONE);
    // Also while it still waits for being given up.
    run.facts.dead_letters.retain(|l| l.position != at(0, 13));
    run.facts.parked = vec![parked(3, A1, at(0, 13))];
    assert_eq!(run.kinds(Phase::Running), NONE);
}

#[test]
fn inversion_parked_events_in_the_wrong_order() {
    let mut run = Run::clean();
    run.undo(A1);
    run.undo(A2);
    run.facts.parked = vec![parked(4, A1, at(0, 10)), parked(3, A2, at(0, 12))];
    assert_eq!(run.kinds(Phase::Running), ["inversion"]);
    run.facts.parked[0].id = 2;
    assert_eq!(run.kinds(Phase::Running), NONE);
}

#[test]
fn a_replay_gives_a_dead_letter_its_effects_in_any_order() {
    let mut run = Run::with_a_replay();
    run.always(&NONE);
    // An elder of its key comes later.
    run.history.input[0].fate = Fate::Replayed;
    for offset in [10, 13] {
        let mut letter = letter(at(0, offset));
        letter.is_replayed = true;
        run.facts.dead_letters.push(letter);
    }
    for rows in &mut run.facts.effects {
        rows[0].id = 90;
    }
    run.derived(at(0, 3)).position = at(0, 7);
    run.always(&NONE);
    // It may not come twice, though.
    run.facts.effects[0].push(effect(91, A1, "a", 1));
    run.always(&["duplicate"]);
}

#[test]
fn stuck_a_dead_letter_that_nobody_replayed() {
    let mut run = Run::with_a_replay();
    run.undo(B1);
    for letter in &mut run.facts.dead_letters {
        letter.is_replayed = false;
    }
    run.at_the_end(&["lost", "stuck", "stuck"]);
}

#[test]
fn lost_a_replayed_dead_letter_without_effect() {
    let mut run = Run::with_a_replay();
    run.undo(B1);
    assert_eq!(run.kinds(Phase::Running), ["lost"; 2]);
    assert_eq!(run.kinds(Phase::Ended), ["lost"; 3]);
}

#[test]
fn a_call_for_each_event_that_was_carried_out_once_is_clean() {
    Run::with_calls().always(&NONE);
}

#[test]
fn calls_that_the_history_does_not_name_are_not_judged() {
    let mut run = Run::with_calls();
    run.history.calls = None;
    run.facts.calls[0].state = CallState::Open;
    run.always(&NONE);
}

#[test]
fn duplicate_a_call_that_was_carried_out_twice() {
    let mut run = Run::with_calls();
    run.booked(B1, 2);
    for state in [CallState::Done, CallState::InDoubt] {
        run.facts.calls[1].state = state;
        let texts = run.always(&["duplicate"]);
        let expected = format!(
            "call 2 (step ``) of event {} (b, seq 1) was carried out 2 times",
            id(B1)
        );
        assert_eq!(texts, [expected]);
    }
}

#[test]
fn duplicate_two_calls_of_one_step_or_of_one_key() {
    let mut run = Run::with_calls();
    let mut again = call(4, A1, CallState::Done);
    again.key = "another".to_owned();
    run.facts.calls.push(again);
    run.booked(A1, 1);
    run.history
        .calls
        .as_mut()
        .unwrap()
        .book
        .insert("another".to_owned(), 1);
    run.always(&["duplicate"]);
    let mut run = Run::with_calls();
    run.facts.calls[1].key = id(A1).to_string();
    run.booked(B1, 0);
    run.always(&["duplicate"]);
}

#[test]
fn lost_a_call_that_is_done_and_was_never_carried_out() {
    let mut run = Run::with_calls();
    run.booked(B1, 0);
    run.at_the_end(&["lost"]);
    // In doubt, it is in sight: somebody will ask the other system.
    run.facts.calls[1].state = CallState::InDoubt;
    run.always(&NONE);
}

#[test]
fn stuck_a_call_that_is_not_finished() {
    let mut run = Run::with_calls();
    run.facts.calls[1].state = CallState::Open;
    run.at_the_end(&["stuck"]);
}

#[test]
fn half_effect_a_call_without_the_effects_or_the_effects_without_a_call() {
    let mut run = Run::with_calls();
    run.facts.calls.remove(1);
    run.booked(B1, 0);
    run.always(&["half-effect"]);
    let mut run = Run::with_calls();
    run.undo(B1);
    assert_eq!(
        run.kinds(Phase::Ended),
        [
            "lost",
            "premature-commit",
            "premature-commit",
            "half-effect"
        ]
    );
}

#[test]
fn phantom_a_call_that_nothing_caused() {
    let mut run = Run::with_calls();
    run.facts.calls[1].step = "refund".to_owned();
    run.booked(B1, 0);
    run.always(&["phantom", "half-effect"]);
    let mut run = Run::with_calls();
    run.facts.calls.push(call(4, NOBODY, CallState::Done));
    run.always(&["phantom"]);
    let mut run = Run::with_calls();
    run.booked(NOBODY, 1);
    let texts = run.always(&["phantom"]);
    assert!(
        texts[0].starts_with("the other system carried out "),
        "{texts:?}"
    );
}

#[test]
fn every_kind_has_its_name_and_its_place() {
    let mut run = Run::clean();
    run.undo(A2);
    run.facts.effects[0].push(effect(1, NOBODY, "a", 9));
    run.facts.effects[0].push(effect(2, B1, "b", 1));
    run.facts.effects[1].retain(|row| row.event_id != id(A1));
    run.facts
        .derived
        .records
        .push(derived(at(0, 9), B1, "b", 1));
    run.commit(1, Some(7));
    let found = run.found(Phase::Ended);
    let mut kinds: Vec<&str> = found.iter().map(|a| a.kind.as_str()).collect();
    kinds.dedup();
    assert_eq!(
        kinds,
        [
            "lost",
            "duplicate",
            "phantom",
            "inversion",
            "premature-commit",
            "half-effect",
            "stuck"
        ]
    );
    assert!(found.is_sorted());
}

/// Nothing in the check may grow with the square of the input: this takes a second or two in a debug
/// build, and would take hours.
#[test]
fn a_hundred_thousand_inputs_are_judged_at_once() {
    const INPUTS: u32 = 100_000;
    const KEYS: u32 = 100;
    let number = |n: u32| Uuid::from_u128(u128::from(n) + 1);
    let mut run = Run::clean();
    let mut source = Vec::new();
    let mut booked = Vec::new();
    let mut rows = Vec::new();
    run.history.input.clear();
    for n in 0..INPUTS {
        let (key, seq) = (format!("account-{}", n % KEYS), i64::from(n / KEYS));
        let mut sent = event(at(0, 10 + i64::from(n)), A1, &key, seq);
        body(&mut sent).event_id = number(n);
        let mut answer = event(at(0, 3 + i64::from(n)), A1, &key, seq);
        body(&mut answer).event_id = number(INPUTS + n);
        body(&mut answer).cause = Some(number(n));
        source.push(sent);
        booked.push(answer);
        rows.push(Effect {
            id: i64::from(n),
            event_id: number(n),
            account: key.clone(),
            seq,
        });
        run.history.input.push(Input {
            id: number(n),
            key,
            seq: Some(seq),
            fate: Fate::Effect,
        });
    }
    run.facts = Facts {
        effects: vec![rows.clone(), rows],
        dead_letters: Vec::new(),
        parked: Vec::new(),
        parked_keys: Vec::new(),
        calls: Vec::new(),
        business: Vec::new(),
        unsent: Vec::new(),
        source: topic(&[(0, 10 + i64::from(INPUTS))], source),
        derived: topic(&[(0, 3 + i64::from(INPUTS))], booked),
    };
    run.always(&NONE);
    // The same with everything parked, and with a call each.
    run.facts.parked = (0..INPUTS)
        .map(|n| {
            let mut row = parked(i64::from(n), A1, at(0, 10 + i64::from(n)));
            row.event_id = number(n);
            row
        })
        .collect();
    run.facts.calls = (0..INPUTS)
        .map(|n| {
            let mut call = call(i64::from(n), A1, CallState::InDoubt);
            (call.event_id, call.key) = (number(n), n.to_string());
            call
        })
        .collect();
    run.history.calls = Some(Calls {
        steps: vec![String::new()],
        ..Calls::default()
    });
    assert_eq!(run.kinds(Phase::Running), NONE);
    assert_eq!(run.kinds(Phase::Ended).len(), INPUTS as usize);
}

#[test]
fn sorted_means_by_kind_and_then_by_text() {
    let mut run = Run::clean();
    for row in [13, 14] {
        run.facts.effects[0].push(effect(row, NOBODY, "a", 3));
    }
    let texts = run.always(&["phantom"; 2]);
    assert!(texts[0].starts_with("debit row 13") && texts[1].starts_with("debit row 14"));
}

#[test]
fn rows_that_were_written_with_the_events_are_clean() {
    let run = Run::with_business();
    assert_eq!(run.found(Phase::Running), []);
    assert_eq!(run.found(Phase::Ended), []);
}

#[test]
fn lost_an_event_without_the_row_of_its_publisher() {
    let mut run = Run::with_business();
    run.facts.business.pop();
    let texts = run.always(&["lost"]);
    assert!(texts[0].ends_with("has no row in entry"), "{texts:?}");
}

#[test]
fn an_event_that_is_not_published_yet_has_no_row_yet() {
    let run = Run::without_b1(Fate::Effect);
    let texts = run.at_the_end(&["lost", "lost"]);
    assert!(texts[0].ends_with("has no row in entry"), "{texts:?}");
    assert!(texts[1].ends_with("is not in posted"), "{texts:?}");
}

#[test]
fn phantom_a_row_that_no_publisher_should_have_written() {
    let mut run = Run::with_business();
    run.facts.business[1].seq = 7;
    run.always(&["phantom"]);
    run.facts.business[1].seq = 2;
    run.facts.business[1].account = "b".to_owned();
    run.always(&["phantom"]);
    let mut run = Run::with_business();
    run.facts.business[1].event_id = id(NOBODY);
    run.always(&["lost", "phantom"]);
}

#[test]
fn what_was_rolled_back_is_nowhere() {
    let run = Run::without_b1(Fate::RolledBack);
    assert_eq!(run.found(Phase::Running), []);
    assert_eq!(run.found(Phase::Ended), []);
}

#[test]
fn phantom_anything_of_what_was_rolled_back() {
    // Its row.
    let mut run = Run::without_b1(Fate::RolledBack);
    run.facts.business = Run::with_business().facts.business;
    run.always(&["phantom"]);
    // Its record.
    let mut run = Run::without_b1(Fate::RolledBack);
    run.send(event(at(2, 0), B1, "b", 1));
    let texts = run.found(Phase::Ended);
    assert!(
        texts.iter().any(|found| found.kind == AnomalyKind::Phantom
            && found.text.contains("is rolled back event")),
        "{texts:?}"
    );
    // Its effects.
    let mut run = Run::without_b1(Fate::RolledBack);
    run.facts.effects = Run::clean().facts.effects;
    run.always(&["phantom", "phantom"]);
}

#[test]
fn the_row_tells_what_became_of_an_event_of_unknown_fate() {
    let mut committed = Run::with_business();
    committed.history.input[2].fate = Fate::Unknown;
    assert_eq!(committed.found(Phase::Ended), []);
    let rolled_back = Run::without_b1(Fate::Unknown);
    assert_eq!(rolled_back.found(Phase::Ended), []);
    // It committed, and nothing came of it.
    let mut lost = Run::without_b1(Fate::Unknown);
    lost.facts.business = Run::with_business().facts.business;
    lost.at_the_end(&["lost"]);
    // It did not, and something came of it.
    let mut phantom = Run::without_b1(Fate::Unknown);
    phantom.facts.effects = Run::clean().facts.effects;
    phantom.always(&["phantom", "phantom"]);
}

#[test]
fn stuck_what_no_relay_has_marked_at_the_end() {
    let mut run = Run::with_business();
    run.facts.unsent.push(Unsent {
        id: 17,
        event_id: id(B1),
    });
    let texts = run.at_the_end(&["stuck"]);
    assert!(texts[0].contains("outbox row 17"), "{texts:?}");
}
