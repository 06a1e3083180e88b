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

    /// When a relay asks for its first lease, its service has no session yet that the database could end.
    fn is_void(self) -> bool {
        self.harm == Harm::Backend && self.point == Point::LeaseBefore
    }

    /// A part that takes a few minutes: one death at each point, and every other harm where most is at stake.
    pub fn is_in_subset(self) -> bool {
        match self.harm {
            Harm::Kill => true,
            Harm::KillTwice => matches!(self.point, Point::CommitAfter | Point::AcknowledgeAfter),
            Harm::Handover | Harm::Zombie => matches!(
                self.point,
                Point::HandleHalfway | Point::CommitAfter | Point::AcknowledgeAfter
            ),
            Harm::Backend => matches!(
                self.point,
                Point::CommitBefore | Point::CommitAfter | Point::MarkBefore
            ),
            Harm::Broker => matches!(self.point, Point::ProduceAfter | Point::OffsetCommitBefore),
        }
    }

    /// Whether the relay passes the point.
    pub fn is_of_relay(self) -> bool {
        matches!(
            self.point,
            Point::LeaseBefore
                | Point::LeaseAfter
                | Point::ClaimBefore
                | Point::ClaimAfter
                | Point::ProduceBefore
                | Point::ProduceAfter
                | Point::AcknowledgeAfter
                | Point::MarkBefore
                | Point::MarkAfter
        )
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
            | Point::OffsetCommitAfter => 1,
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
        assert_eq!(names.len(), Harm::ALL.len() * Point::ALL.len() - 1);
        assert!(names.contains("kill-twice/commit.before"));
    }

    #[test]
    fn the_subset_kills_at_every_point_and_has_every_harm() {
        let subset: Vec<Cell> = Cell::all()
            .into_iter()
            .filter(|cell| cell.is_in_subset())
            .collect();
        let killed = subset.iter().filter(|cell| cell.harm == Harm::Kill).count();
        assert_eq!(killed, Point::ALL.len());
        for harm in Harm::ALL {
            assert!(subset.iter().any(|cell| cell.harm == harm), "{harm:?}");
        }
    }
}
