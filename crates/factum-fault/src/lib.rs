//! Named points at every arrow of an event's path, at which a test stops or kills the process.
//!
//! The product calls [`at`] before and after each step. In users' builds that is an empty function: what
//! a point does exists only with the feature `armed`, and only in debug builds. Then the environment
//! decides, once, at the first point that is passed:
//!
//! ```text
//! FAULT_POINT="commit.before kill 2"
//! ```
//!
//! | word | meaning |
//! |---|---|
//! | `commit.before` | the point's name |
//! | `kill` | SIGKILL to this process: no destructor, no last word |
//! | `stop` | SIGSTOP to this process: it stands still, with all its threads, until SIGCONT |
//! | `pause` | this thread alone waits until the file that `FAULT_PAUSE_FILE` names is gone; the point makes it |
//! | `2` | at the second passing of the point, and at no other |
//!
//! ```
//! use factum_fault::Point;
//!
//! factum_fault::at(Point::CommitBefore);
//! assert_eq!(Point::CommitBefore.name(), "commit.before");
//! ```

use std::fmt;

macro_rules! points {
    ($($(#[$doc:meta])* $point:ident = $name:literal),* $(,)?) => {
        /// A place on an event's path. The list is the path, in order: the relay's half, the
        /// consumer's, then what comes later: the retrier, a replay, calls.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Point {
            $($(#[$doc])* $point,)*
        }

        impl Point {
            /// Every point, in the order of the path.
            pub const ALL: &[Point] = &[$(Point::$point),*];

            /// Its name, `<step>.<before or after>`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Point::$point => $name,)*
                }
            }
        }
    };
}

points! {
    /// The relay asks for its lease.
    LeaseBefore = "lease.before",
    /// The relay has its lease.
    LeaseAfter = "lease.after",
    /// The relay asks for unpublished rows.
    ClaimBefore = "claim.before",
    /// The relay has rows.
    ClaimAfter = "claim.after",
    /// The rows go to the Kafka client.
    ProduceBefore = "produce.before",
    /// The Kafka client has the rows; none need have reached the broker.
    ProduceAfter = "produce.after",
    /// The broker's reports about the rows are there.
    AcknowledgeAfter = "acknowledge.after",
    /// `published_at` is about to be set.
    MarkBefore = "mark.before",
    /// `published_at` is set and committed: the statement is a transaction of its own.
    MarkAfter = "mark.after",
    /// A lane asks for records.
    PollBefore = "poll.before",
    /// A lane has records.
    PollAfter = "poll.after",
    /// The records are about to be decoded.
    DecodeBefore = "decode.before",
    /// The records are decoded.
    DecodeAfter = "decode.after",
    /// BEGIN is about to be sent.
    BeginBefore = "begin.before",
    /// The transaction is open.
    BeginAfter = "begin.after",
    /// The dedup rows are about to be written.
    DedupBefore = "dedup.before",
    /// The dedup rows are written.
    DedupAfter = "dedup.after",
    /// A dead letter is about to be written.
    DeadLetterBefore = "dead-letter.before",
    /// A dead letter is written.
    DeadLetterAfter = "dead-letter.after",
    /// A parked event is about to be written.
    ParkBefore = "park.before",
    /// A parked event is written, in an open transaction.
    ParkAfter = "park.after",
    /// The handlers are about to be called.
    HandleBefore = "handle.before",
    /// A handler has made the first of its writes. The handler itself passes this point.
    HandleHalfway = "handle.halfway",
    /// The handlers have returned.
    HandleAfter = "handle.after",
    /// An outbox row is about to be written.
    OutboxBefore = "outbox.before",
    /// An outbox row is written.
    OutboxAfter = "outbox.after",
    /// Guard and COMMIT are about to be sent.
    CommitBefore = "commit.before",
    /// The database has answered COMMIT.
    CommitAfter = "commit.after",
    /// The lane is about to report how far it has come.
    OffsetStoreBefore = "offset-store.before",
    /// The lane has reported how far it has come.
    OffsetStoreAfter = "offset-store.after",
    /// The offsets are about to be committed to Kafka.
    OffsetCommitBefore = "offset-commit.before",
    /// The broker has answered the commit of the offsets.
    OffsetCommitAfter = "offset-commit.after",
    /// The retrier asks for a parked key that is due.
    RetryClaimBefore = "retry-claim.before",
    /// The retrier holds the first event of a parked key.
    RetryClaimAfter = "retry-claim.after",
    /// The retrier is about to take a parked event out, its handler having succeeded.
    RetrySettleBefore = "retry-settle.before",
    /// The retrier has taken a parked event out, in an open transaction.
    RetrySettleAfter = "retry-settle.after",
    /// The retrier is about to free a key behind which nothing waits.
    UnparkBefore = "unpark.before",
    /// The retrier has freed a key.
    UnparkAfter = "unpark.after",
    /// A replay asks for its next item.
    ReplayClaimBefore = "replay-claim.before",
    /// A replay holds an item.
    ReplayClaimAfter = "replay-claim.after",
    /// A replay is about to mark an item, in its open transaction.
    ReplaySettleBefore = "replay-settle.before",
    /// A replay has marked an item, in its open transaction.
    ReplaySettleAfter = "replay-settle.after",
    /// A call is about to be written, in a handler's transaction.
    CallWriteBefore = "call-write.before",
    /// A call is written, in a handler's transaction.
    CallWriteAfter = "call-write.after",
    /// The caller asks for calls that are due.
    CallClaimBefore = "call-claim.before",
    /// The caller holds a call, and has said so in the table.
    CallClaimAfter = "call-claim.after",
    /// A call is about to be sent.
    CallSendBefore = "call-send.before",
    /// A call's response, or its failure, is there.
    CallSendAfter = "call-send.after",
    /// A call's response is about to be recorded.
    CallRecordBefore = "call-record.before",
    /// A call's response is recorded.
    CallRecordAfter = "call-record.after",
    /// A response's handler is about to be called, in its transaction.
    CallAnswerBefore = "call-answer.before",
    /// A response's handler has returned, and its transaction is about to be committed.
    CallAnswerAfter = "call-answer.after",
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Passes a point. Does nothing in users' builds; see the crate's text.
///
/// # Panics
///
/// Armed, when `FAULT_POINT` can't be read: a test that asks for a fault must not run without it.
#[inline(always)]
pub fn at(point: Point) {
    #[cfg(all(feature = "armed", debug_assertions))]
    armed::at(point);
    #[cfg(not(all(feature = "armed", debug_assertions)))]
    let _ = point;
}

#[cfg(all(feature = "armed", debug_assertions))]
mod armed {
    use std::path::PathBuf;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use nix::sys::signal::{Signal, raise};

    use super::Point;

    /// How often a paused thread looks for its file.
    const LOOK_EVERY: Duration = Duration::from_millis(5);

    #[derive(Debug, PartialEq, Eq)]
    pub(super) enum Action {
        Kill,
        Stop,
        Pause,
    }

    #[derive(Debug)]
    pub(super) struct Fault {
        point: Point,
        action: Action,
        passing: u32,
        passed: AtomicU32,
    }

    impl Fault {
        pub(super) fn parse(text: &str) -> Result<Fault, String> {
            let words: Vec<&str> = text.split_whitespace().collect();
            let &[name, action, passing] = words.as_slice() else {
                return Err("it isn't of the form `POINT ACTION PASSING`".to_owned());
            };
            let point = Point::ALL.iter().find(|point| point.name() == name);
            let point = *point.ok_or_else(|| format!("there is no point `{name}`"))?;
            let action = match action {
                "kill" => Action::Kill,
                "stop" => Action::Stop,
                "pause" => Action::Pause,
                other => return Err(format!("`{other}` is none of kill, stop, pause")),
            };
            let passing = passing
                .parse()
                .ok()
                .filter(|passing| *passing > 0)
                .ok_or_else(|| format!("`{passing}` isn't a number from 1"))?;
            Ok(Fault {
                point,
                action,
                passing,
                passed: AtomicU32::new(0),
            })
        }

        /// Whether this is the passing that was asked for.
        pub(super) fn is_due(&self, point: Point) -> bool {
            point == self.point && self.passed.fetch_add(1, Ordering::Relaxed) + 1 == self.passing
        }
    }

    pub(super) fn at(point: Point) {
        static FAULT: OnceLock<Option<Fault>> = OnceLock::new();
        let fault = FAULT.get_or_init(|| {
            let text = std::env::var("FAULT_POINT").ok()?;
            match Fault::parse(&text) {
                Ok(fault) => Some(fault),
                Err(why) => panic!("FAULT_POINT can't be read: {why}"),
            }
        });
        let Some(fault) = fault.as_ref().filter(|fault| fault.is_due(point)) else {
            return;
        };
        match fault.action {
            Action::Kill => signal(Signal::SIGKILL),
            Action::Stop => signal(Signal::SIGSTOP),
            Action::Pause => pause(),
        }
    }

    /// To this thread: so it goes not one step further before the signal stops or ends the whole process.
    /// One to the process may be taken by another thread, while this one runs on.
    fn signal(signal: Signal) {
        if let Err(error) = raise(signal) {
            panic!("{signal} to this process failed: {error}");
        }
    }

    fn pause() {
        let Some(path) = std::env::var_os("FAULT_PAUSE_FILE").map(PathBuf::from) else {
            panic!("FAULT_PAUSE_FILE names no file, so nobody could end the pause");
        };
        if let Err(error) = std::fs::write(&path, "paused") {
            panic!("the file of FAULT_PAUSE_FILE can't be made: {error}");
        }
        while path.exists() {
            std::thread::sleep(LOOK_EVERY);
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_fault_is_due_at_its_passing_of_its_point_alone() {
            let fault = Fault::parse("commit.before kill 2").unwrap();
            let due = [
                fault.is_due(Point::CommitBefore),
                fault.is_due(Point::CommitAfter),
                fault.is_due(Point::CommitBefore),
                fault.is_due(Point::CommitBefore),
            ];
            assert_eq!(due, [false, false, true, false]);
        }

        #[test]
        fn what_cannot_be_read_is_refused() {
            for text in [
                "",
                "commit.before kill",
                "commit.before kill 0",
                "commit.before kill x",
                "commit.before shoot 1",
                "commit kill 1",
                "commit.before kill 1 2",
            ] {
                assert!(Fault::parse(text).is_err(), "{text:?}");
            }
            for point in Point::ALL {
                assert!(Fault::parse(&format!("{point} stop 1")).is_ok());
            }
        }
    }
}
