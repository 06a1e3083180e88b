//! What can happen where.

use std::fmt;

use factum_fault::Point;

/// What befalls the service when it comes to a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Harm {
    /// SIGKILL, and a restart.
    Kill,
    /// SIGKILL, a restart, and SIGKILL at the same point again.
    KillTwice,
    /// The thread is held at the point while a second service joins and takes the work over; then it goes
    /// on, too late. Afterwards the process is killed.
    Handover,
    /// The process is frozen (SIGSTOP) beyond the end of its session and of its lease, and wakes up when
    /// another one has done all the work.
    Zombie,
    /// The database ends all of the service's sessions while it stands at the point.
    Backend,
    /// The broker stops while the service stands at the point, and starts again.
    Broker,
}

impl Harm {
    /// All of them.
    pub const ALL: [Harm; 6] = [
        Harm::Kill,
        Harm::KillTwice,
        Harm::Handover,
        Harm::Zombie,
        Harm::Backend,
        Harm::Broker,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Harm::Kill => "kill",
            Harm::KillTwice => "kill-twice",
            Harm::Handover => "handover",
            Harm::Zombie => "zombie",
            Harm::Backend => "backend",
            Harm::Broker => "broker",
        }
    }
}

/// A part of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// From the outbox to Kafka.
    Relay,
    /// From Kafka to the effects.
    Lane,
    /// A lane that parks what fails.
    Parker,
    /// From what is parked to the effects.
    Retrier,
    /// From the dead letters to the effects.
    Replay,
    /// From a call that was decided to the other system, and its answer back.
    Caller,
}

impl Part {
    /// Those that the matrix's service has: at their points harm comes.
    pub const VISITED: [Part; 6] = [
        Part::Relay,
        Part::Lane,
        Part::Parker,
        Part::Retrier,
        Part::Replay,
        Part::Caller,
    ];

    /// Which one passes the point.
    pub fn of(point: Point) -> Part {
        match point {
            Point::LeaseBefore
            | Point::LeaseAfter
            | Point::ClaimBefore
            | Point::ClaimAfter
            | Point::ProduceBefore
            | Point::ProduceAfter
            | Point::AcknowledgeAfter
            | Point::MarkBefore
            | Point::MarkAfter => Part::Relay,
            Point::PollBefore
            | Point::PollAfter
            | Point::DecodeBefore
            | Point::DecodeAfter
            | Point::BeginBefore
            | Point::BeginAfter
            | Point::DedupBefore
            | Point::DedupAfter
            | Point::DeadLetterBefore
            | Point::DeadLetterAfter
            | Point::HandleBefore
            | Point::HandleHalfway
            | Point::HandleAfter
            | Point::OutboxBefore
            | Point::OutboxAfter
            | Point::CommitBefore
            | Point::CommitAfter
            | Point::OffsetStoreBefore
            | Point::OffsetStoreAfter
            | Point::OffsetCommitBefore
            | Point::OffsetCommitAfter => Part::Lane,
            Point::ParkBefore | Point::ParkAfter => Part::Parker,
            Point::RetryClaimBefore
            | Point::RetryClaimAfter
            | Point::RetrySettleBefore
            | Point::RetrySettleAfter
            | Point::UnparkBefore
            | Point::UnparkAfter => Part::Retrier,
            Point::ReplayClaimBefore
            | Point::ReplayClaimAfter
            | Point::ReplaySettleBefore
            | Point::ReplaySettleAfter => Part::Replay,
            Point::CallWriteBefore
            | Point::CallWriteAfter
            | Point::CallClaimBefore
            | Point::CallClaimAfter
            | Point::CallSendBefore
            | Point::CallSendAfter
            | Point::CallRecordBefore
            | Point::CallRecordAfter
            | Point::CallAnswerBefore
            | Point::CallAnswerAfter => Part::Caller,
        }
    }
}

/// One harm at one point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cell {
    /// What happens.
    pub harm: Harm,
    /// Where.
    pub point: Point,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.harm.name(), self.point)
    }
}

impl Cell {
    /// Every harm at every point where it can happen.
    pub fn all() -> Vec<Cell> {
        let cells = Harm::ALL.into_iter().flat_map(|harm| {
            Point::ALL.iter().map(move |point| Cell {
                harm,
                point: *point,
            })
        });
        cells.filter(|cell| !cell.is_void()).collect()
    }

    /// Which part of the service passes the point.
    pub fn part(self) -> Part {
        Part::of(self.point)
    }

    /// Where there is nothing to be harmed. When a relay asks for its first lease, its service has no session yet
    /// that the database could end; and what works on stored records alone has no broker.
    fn is_void(self) -> bool {
        let is_stored = matches!(self.part(), Part::Retrier | Part::Replay | Part::Caller);
        !Part::VISITED.contains(&self.part())
            || self.harm == Harm::Backend && self.point == Point::LeaseBefore
            || self.harm == Harm::Broker && is_stored
    }

    /// A part that takes a few minutes: one death at each point, and every other harm where most is at stake.
    pub fn is_in_subset(self) -> bool {
        match self.harm {
            Harm::Kill => true,
            Harm::KillTwice => matches!(self.point, Point::CommitAfter | Point::AcknowledgeAfter),
            Harm::Handover | Harm::Zombie => matches!(
                self.point,
                Point::HandleHalfway
                    | Point::CommitAfter
                    | Point::AcknowledgeAfter
                    | Point::ParkAfter
                    | Point::RetrySettleAfter
                    | Point::UnparkBefore
            ),
            Harm::Backend => matches!(
                self.point,
                Point::CommitBefore | Point::CommitAfter | Point::MarkBefore
            ),
            Harm::Broker => matches!(self.point, Point::ProduceAfter | Point::OffsetCommitBefore),
        }
    }

    /// At which passing of the point it happens: not the first where there are many, so that the service
    /// has work behind it and work before it.
    pub fn passing(self) -> u32 {
        match self.point {
            Point::HandleHalfway | Point::OutboxBefore | Point::OutboxAfter => 6,
            Point::LeaseBefore
            | Point::LeaseAfter
            | Point::DeadLetterBefore
            | Point::DeadLetterAfter
            | Point::OffsetCommitBefore
            | Point::OffsetCommitAfter
            // All answers that are there are handled at once.
            | Point::CallAnswerBefore
            | Point::CallAnswerAfter => 1,
            // Each of the two lanes comes here once before it has a session.
            Point::PollBefore | Point::PollAfter | Point::DecodeBefore | Point::DecodeAfter => 3,
            _ => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_cell_has_a_name_of_its_own() {
        let names: HashSet<String> = Cell::all().iter().map(Cell::to_string).collect();
        assert_eq!(names.len(), Cell::all().len());
        assert!(names.contains("kill-twice/commit.before"));
    }

    /// A point without its cells would be a hole that nobody sees.
    #[test]
    fn every_harm_comes_at_every_point_of_the_service_s_parts() {
        let left_out = |cell: &Cell| {
            cell.harm == Harm::Backend && cell.point == Point::LeaseBefore
                || cell.harm == Harm::Broker && !is_on_the_broker(cell.point)
        };
        let mut expected: Vec<Cell> = visited()
            .flat_map(|point| Harm::ALL.map(|harm| Cell { harm, point }))
            .collect();
        expected.retain(|cell| !left_out(cell));
        let all: HashSet<Cell> = Cell::all().into_iter().collect();
        assert_eq!(all, expected.into_iter().collect());
    }

    fn visited() -> impl Iterator<Item = Point> {
        Point::ALL
            .iter()
            .copied()
            .filter(|point| Part::VISITED.contains(&Part::of(*point)))
    }

    fn is_on_the_broker(point: Point) -> bool {
        matches!(Part::of(point), Part::Relay | Part::Lane | Part::Parker)
    }

    #[test]
    fn the_subset_kills_at_every_point_and_has_every_harm() {
        let subset: Vec<Cell> = Cell::all()
            .into_iter()
            .filter(|cell| cell.is_in_subset())
            .collect();
        let killed = subset.iter().filter(|cell| cell.harm == Harm::Kill).count();
        assert_eq!(killed, visited().count());
        for harm in Harm::ALL {
            assert!(subset.iter().any(|cell| cell.harm == harm), "{harm:?}");
        }
    }
}
