//! What makes a handler fail, as a function that every process computes alike.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// Of so many tries of an event one fails, whatever its account.
const ONE_TRY_IN: u64 = 50;
/// Of so many accounts one is in trouble for a while: whatever comes for it fails.
const ONE_ACCOUNT_IN: u64 = 10;

const SEED: &str = "TROUBLE_SEED";
const BEGIN: &str = "TROUBLE_BEGIN_MS";
const LASTS: &str = "TROUBLE_LASTS_MS";

/// Failures at random, and accounts at which everything fails for a while.
#[derive(Debug, Clone, Copy)]
pub struct Trouble {
    /// Other failures for another seed.
    pub seed: u64,
    /// When the first account's trouble begins.
    pub begin: SystemTime,
    /// How long an account's trouble may last; it begins within the same time.
    pub lasts: Duration,
}

impl Trouble {
    /// Passes it to a process.
    pub fn describe(&self, command: &mut Command) {
        let since_epoch = self.begin.duration_since(SystemTime::UNIX_EPOCH);
        let begin = since_epoch.expect("it begins in our time").as_millis();
        command
            .env(SEED, self.seed.to_string())
            .env(BEGIN, begin.to_string())
            .env(LASTS, self.lasts.as_millis().to_string());
    }

    /// What a process was passed; `None` if that is nothing sound.
    pub fn from_env() -> Option<Trouble> {
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        Some(Trouble {
            seed: number(SEED)?,
            begin: SystemTime::UNIX_EPOCH + Duration::from_millis(number(BEGIN)?),
            lasts: Duration::from_millis(number(LASTS)?),
        })
    }

    /// When an account is in trouble, from the beginning; `None` for most.
    pub fn of(&self, account: &str) -> Option<(Duration, Duration)> {
        let drawn = self.draw(&("account", account));
        if !drawn.is_multiple_of(ONE_ACCOUNT_IN) {
            return None;
        }
        let lasts = self.lasts.as_millis() as u64;
        let from = self.draw(&("from", account)) % lasts.max(1);
        // At least a third of the longest.
        let length = lasts / 3 + self.draw(&("length", account)) % (lasts * 2 / 3).max(1);
        Some((
            Duration::from_millis(from),
            Duration::from_millis(from + length),
        ))
    }

    /// When the last account's trouble is over at the latest.
    pub fn end(&self) -> SystemTime {
        self.begin + self.lasts * 2
    }

    /// Whether the `nth` try of an event fails at that time.
    pub fn befalls(&self, account: &str, seq: u64, nth: u32, now: SystemTime) -> bool {
        if self
            .draw(&("try", account, seq, nth))
            .is_multiple_of(ONE_TRY_IN)
        {
            return true;
        }
        let Some((from, to)) = self.of(account) else {
            return false;
        };
        now.duration_since(self.begin)
            .is_ok_and(|since| (from..to).contains(&since))
    }

    fn draw(&self, what: &impl std::hash::Hash) -> u64 {
        // Without keys of its own: the same in every process.
        let mut hasher = DefaultHasher::new();
        self.seed.hash(&mut hasher);
        what.hash(&mut hasher);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_tries_fail_and_some_accounts_for_a_while() {
        let trouble = Trouble {
            seed: 7,
            begin: SystemTime::UNIX_EPOCH + Duration::from_secs(1_000),
            lasts: Duration::from_secs(60),
        };
        let accounts: Vec<String> = (0..1_000).map(|n| format!("account-{n}")).collect();
        let troubled: Vec<&String> = accounts
            .iter()
            .filter(|account| trouble.of(account).is_some())
            .collect();
        assert!((60..140).contains(&troubled.len()), "{}", troubled.len());
        for account in troubled {
            let (from, to) = trouble.of(account).expect("it is in trouble");
            assert!(to - from >= Duration::from_secs(20), "{from:?} {to:?}");
            assert!(trouble.begin + to <= trouble.end());
            let inside = trouble.begin + (from + to) / 2;
            assert!((1..100).all(|nth| trouble.befalls(account, 1, nth, inside)));
        }
        let failed = accounts
            .iter()
            .filter(|account| trouble.befalls(account, 1, 1, trouble.end()))
            .count();
        assert!((5..50).contains(&failed), "{failed}");
        // A failure is no fate: a later try goes well.
        assert!(accounts.iter().all(|account| {
            !(1..10).all(|nth| trouble.befalls(account, 1, nth, trouble.end()))
        }));
    }
}
