//! How far the work is, seen from outside: by the rows of the effects and of the outbox.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use factum::sqlx::{self, Connection as _, PgConnection};

use super::account::Accounts;

/// How often the tables are looked at: the precision of a recovery.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often everything is counted anew: a row that commits late is not seen in passing.
const COUNT_EVERY: Duration = Duration::from_secs(3);
/// Rows that are read at a time.
const ROWS: i64 = 5_000;
/// The longest wait for an answer, also where the server has gone without a word.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Looks at the tables all the time. A copy is the same.
#[derive(Debug, Clone)]
pub struct Progress(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Orders that have their effect.
    effects: u64,
    recovery: Option<Recovery>,
}

/// What is still to be seen after an outage.
#[derive(Debug)]
struct Recovery {
    begin: Instant,
    /// Whether what was committed before the outage has been seen; until then nothing counts.
    is_based: bool,
    partitions: BTreeSet<usize>,
    /// The slots that are to send something, each with its first row that was seen waiting.
    slots: BTreeMap<i16, Option<i64>>,
    /// The last order of each account when the outage began.
    placed: Vec<u64>,
    lasted: Option<Duration>,
}

/// A row of an effect.
struct Effect {
    account: usize,
    seq: u64,
}

impl Progress {
    /// Begins to look, in a task that ends when it is aborted.
    pub fn watch(url: String, accounts: Arc<Accounts>) -> (Progress, tokio::task::JoinHandle<()>) {
        let progress = Progress(Arc::default());
        let watched = progress.clone();
        let task = tokio::spawn(async move {
            let mut last_id = 0;
            loop {
                // While the database is away there is nothing to see.
                let _ = watched.look(&url, &accounts, &mut last_id).await;
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
        (progress, task)
    }

    /// Orders that have their effect.
    pub fn effects(&self) -> u64 {
        self.state().effects
    }

    /// From now on what happens counts as recovery from an outage of that time: in every partition an effect, and in
    /// every slot the sending of what waited then or came later. `placed` has the last order of each account.
    pub fn recover(&self, begin: Instant, accounts: &Accounts, placed: Vec<u64>) {
        let places = || (0..accounts.count()).map(|number| accounts.place(number));
        self.state().recovery = Some(Recovery {
            begin,
            is_based: false,
            partitions: places()
                .filter(|place| place.is_quiet)
                .map(|place| place.partition)
                .collect(),
            slots: places().map(|place| (place.slot, None)).collect(),
            placed,
            lasted: None,
        });
    }

    /// How long the recovery took, once it has ended.
    pub fn recovered(&self) -> Option<Duration> {
        self.state().recovery.as_ref()?.lasted
    }

    /// What stands still, for a person.
    pub fn standing(&self) -> String {
        let state = self.state();
        let Some(recovery) = &state.recovery else {
            return "nothing".to_owned();
        };
        format!(
            "partitions {:?}, slots {:?}",
            recovery.partitions,
            recovery.slots.keys().collect::<Vec<_>>()
        )
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks until the connection breaks.
    async fn look(&self, url: &str, accounts: &Accounts, last_id: &mut i64) -> Result<()> {
        let mut conn = answered(PgConnection::connect(url)).await?;
        let mut counted: Option<Instant> = None;
        loop {
            let rows: Vec<(i64, String, i64)> = answered(
                sqlx::query_as(
                    "SELECT id, account, seq FROM invoice WHERE id > $1 ORDER BY id LIMIT $2",
                )
                .bind(*last_id)
                .bind(ROWS)
                .fetch_all(&mut conn),
            )
            .await?;
            let waiting: Vec<(i16, Option<i64>)> = if self.is_recovering() {
                answered(
                    sqlx::query_as(
                        "SELECT slot::smallint, (
                             SELECT min(id) FROM outbox
                              WHERE outbox.slot = slots.slot::smallint AND published_at IS NULL)
                           FROM generate_series(0, 63) AS slots (slot)",
                    )
                    .fetch_all(&mut conn),
                )
                .await?
            } else {
                Vec::new()
            };
            let count = if counted.is_none_or(|at| at.elapsed() > COUNT_EVERY) {
                counted = Some(Instant::now());
                let sql = "SELECT count(*) FROM invoice";
                let count: i64 = answered(sqlx::query_scalar(sql).fetch_one(&mut conn)).await?;
                Some(u64::try_from(count)?)
            } else {
                None
            };
            if let Some((id, ..)) = rows.last() {
                *last_id = *id;
            }
            let is_behind = rows.len() as i64 == ROWS;
            let effects = rows.into_iter().filter_map(|(_, account, seq)| {
                Some(Effect {
                    account: accounts.number(&account)?,
                    seq: u64::try_from(seq).ok()?,
                })
            });
            let effects: Vec<Effect> = effects.collect();
            self.saw(accounts, &effects, &waiting, count, is_behind);
            if !is_behind {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }

    fn is_recovering(&self) -> bool {
        let state = self.state();
        state.recovery.as_ref().is_some_and(|r| r.lasted.is_none())
    }

    fn saw(
        &self,
        accounts: &Accounts,
        effects: &[Effect],
        waiting: &[(i16, Option<i64>)],
        count: Option<u64>,
        is_behind: bool,
    ) {
        let mut state = self.state();
        state.effects = count.unwrap_or(state.effects + effects.len() as u64);
        let Some(recovery) = &mut state.recovery else {
            return;
        };
        if recovery.lasted.is_none() {
            recovery.saw(accounts, effects, waiting, is_behind);
        }
    }
}

impl Recovery {
    fn saw(
        &mut self,
        accounts: &Accounts,
        effects: &[Effect],
        waiting: &[(i16, Option<i64>)],
        is_behind: bool,
    ) {
        if !self.is_based {
            // These were committed before the outage; the next ones were not, if these are all.
            self.is_based = !is_behind;
            return;
        }
        for effect in effects {
            let place = accounts.place(effect.account);
            if place.is_quiet {
                self.partitions.remove(&place.partition);
            }
            // An order that was placed after the outage was sent after it.
            if effect.seq > self.placed[effect.account] {
                self.slots.remove(&place.slot);
            }
        }
        for (slot, first) in waiting {
            let Some(seen) = self.slots.get_mut(slot) else {
                continue;
            };
            match (*seen, first) {
                (None, first) => *seen = *first,
                (Some(seen), Some(first)) if *first <= seen => {}
                // What waited has been sent.
                (Some(_), _) => {
                    self.slots.remove(slot);
                }
            }
        }
        if self.partitions.is_empty() && self.slots.is_empty() {
            self.lasted = Some(self.begin.elapsed());
        }
    }
}

async fn answered<T>(question: impl Future<Output = sqlx::Result<T>>) -> Result<T> {
    Ok(tokio::time::timeout(ANSWER_LIMIT, question).await??)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soak::order::Trouble;

    /// The first account that passes there.
    fn account(
        accounts: &Accounts,
        is_wanted: impl Fn(super::super::account::Place) -> bool,
    ) -> usize {
        let found = (0..accounts.count()).find(|number| is_wanted(accounts.place(*number)));
        found.expect("there are accounts everywhere")
    }

    fn recovery(accounts: &Accounts) -> Progress {
        let progress = Progress(Arc::default());
        progress.recover(Instant::now(), accounts, vec![10; accounts.count()]);
        // What was there before.
        progress.saw(accounts, &[], &[], None, false);
        progress
    }

    fn everything_but(accounts: &Accounts, left_out: impl Fn(usize) -> bool) -> Vec<Effect> {
        let numbers = (0..accounts.count()).filter(|number| !left_out(*number));
        numbers.map(|account| Effect { account, seq: 11 }).collect()
    }

    #[test]
    fn a_recovery_lasts_until_the_last_partition_and_the_last_slot_go_on() {
        let accounts = Accounts::in_slots(12, Trouble { seed: 7 });
        let progress = recovery(&accounts);
        progress.saw(
            &accounts,
            &everything_but(&accounts, |_| false),
            &[],
            None,
            false,
        );
        assert!(progress.recovered().is_some(), "{}", progress.standing());

        let progress = recovery(&accounts);
        let in_3 = |number| accounts.place(number).partition == 3;
        progress.saw(
            &accounts,
            &everything_but(&accounts, in_3),
            &[],
            None,
            false,
        );
        assert_eq!(progress.recovered(), None);
        // Those that are retried say nothing of the lane.
        let troubled = account(&accounts, |place| place.partition == 3 && !place.is_quiet);
        let effect = |account, seq| [Effect { account, seq }];
        progress.saw(&accounts, &effect(troubled, 11), &[], None, false);
        assert_eq!(progress.recovered(), None);
        let quiet = account(&accounts, |place| place.partition == 3 && place.is_quiet);
        progress.saw(&accounts, &effect(quiet, 11), &[], None, false);
        assert!(progress.recovered().is_some(), "{}", progress.standing());
    }

    #[test]
    fn a_slot_goes_on_when_a_row_that_waited_is_sent_or_a_new_order_took_effect() {
        let accounts = Accounts::in_slots(12, Trouble { seed: 7 });
        let in_5 = |number| accounts.place(number).slot == 5;
        let stands = || {
            let progress = recovery(&accounts);
            progress.saw(
                &accounts,
                &everything_but(&accounts, in_5),
                &[],
                None,
                false,
            );
            assert_eq!(progress.recovered(), None);
            progress
        };
        // An order that was placed before the outage may have been sent before it.
        let progress = stands();
        let one = account(&accounts, |place| place.slot == 5);
        let effect = |seq| [Effect { account: one, seq }];
        progress.saw(&accounts, &effect(10), &[], None, false);
        assert_eq!(progress.recovered(), None);
        progress.saw(&accounts, &effect(11), &[], None, false);
        assert!(progress.recovered().is_some());
        // Rows that wait, the first of them sent, and all of them.
        for after in [Some(8), None] {
            let progress = stands();
            for first in [None, Some(7), Some(7)] {
                progress.saw(&accounts, &[], &[(5, first)], None, false);
                assert_eq!(progress.recovered(), None);
            }
            progress.saw(&accounts, &[], &[(5, after)], None, false);
            assert!(progress.recovered().is_some());
        }
    }

    #[test]
    fn what_was_committed_before_the_outage_is_no_recovery() {
        let accounts = Accounts::in_slots(12, Trouble { seed: 7 });
        let progress = Progress(Arc::default());
        progress.recover(Instant::now(), &accounts, vec![10; accounts.count()]);
        let all = || everything_but(&accounts, |_| false);
        // A first look that did not see everything is followed by another first look.
        progress.saw(&accounts, &all(), &[], None, true);
        progress.saw(&accounts, &all(), &[], None, false);
        assert_eq!(progress.recovered(), None);
        progress.saw(&accounts, &all(), &[], None, false);
        assert!(progress.recovered().is_some());
    }
}
