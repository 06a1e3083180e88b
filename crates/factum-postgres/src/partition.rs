//! The partitions of `processed_event` and their bounds.

use factum_event::EventId;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

/// One partition as the catalogue has it.
#[derive(Debug, Clone)]
pub(crate) struct Partition {
    pub(crate) schema: String,
    pub(crate) name: String,
    pub(crate) bounds: Bounds,
    /// `DETACH CONCURRENTLY` began and didn't end. It takes no rows any more.
    pub(crate) detach_pending: bool,
}

/// Lower bound inclusive, upper bound exclusive; `None` for MINVALUE and MAXVALUE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bounds {
    Range {
        lower: Option<Uuid>,
        upper: Option<Uuid>,
    },
    Default,
}

impl Bounds {
    pub(crate) fn holds(&self, id: Uuid) -> bool {
        match *self {
            Self::Range { lower, upper } => {
                lower.is_none_or(|lower| lower <= id) && upper.is_none_or(|upper| id < upper)
            }
            Self::Default => false,
        }
    }

    /// Parses PostgreSQL's own text: `FOR VALUES FROM ('…') TO ('…')` or `DEFAULT`.
    fn parse(text: &str) -> Option<Self> {
        if text == "DEFAULT" {
            return Some(Self::Default);
        }
        let (lower, upper) = text
            .strip_prefix("FOR VALUES FROM (")?
            .split_once(") TO (")?;
        let upper = upper.strip_suffix(')')?;
        Some(Self::Range {
            lower: bound(lower)?,
            upper: bound(upper)?,
        })
    }
}

fn bound(text: &str) -> Option<Option<Uuid>> {
    match text {
        "MINVALUE" | "MAXVALUE" => Some(None),
        _ => text
            .strip_prefix('\'')?
            .strip_suffix('\'')?
            .parse()
            .ok()
            .map(Some),
    }
}

/// Every partition of `processed_event`, by name.
pub(crate) async fn list(conn: &mut PgConnection) -> Result<Vec<Partition>, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT n.nspname::text, c.relname::text, i.inhdetachpending, \
                coalesce(pg_get_expr(c.relpartbound, c.oid), '') \
         FROM pg_inherits i \
         JOIN pg_class c ON c.oid = i.inhrelid \
         JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE i.inhparent = to_regclass('processed_event') \
         ORDER BY 1, 2",
    )
    .fetch_all(conn)
    .await?;
    rows.iter()
        .map(|row| {
            let bounds: String = row.try_get(3)?;
            Ok(Partition {
                schema: row.try_get(0)?,
                name: row.try_get(1)?,
                detach_pending: row.try_get(2)?,
                // An empty range for a bound that isn't one of uuid: it holds nothing of ours.
                bounds: Bounds::parse(&bounds).unwrap_or(Bounds::Range {
                    lower: Some(Uuid::nil()),
                    upper: Some(Uuid::nil()),
                }),
            })
        })
        .collect()
}

/// What the partitions say about an id that found none of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// There is a partition for it.
    Inside,
    /// Too old, or too far in the future: the event's own fault.
    OutOfWindow,
    /// Younger than every partition though its time has come: maintenance's fault.
    Missing,
}

/// How far ahead of the database's clock an id may be before it is the event's own fault.
const TOLERATED_AHEAD_MS: u64 = 24 * 60 * 60 * 1000;

pub(crate) fn place(partitions: &[Partition], id: EventId, now_unix_ms: u64) -> Place {
    let uuid = id.as_uuid();
    let mut live = partitions
        .iter()
        .filter(|partition| !partition.detach_pending)
        .peekable();
    if live.peek().is_none() {
        return Place::Missing;
    }
    let mut below_top = false;
    for partition in live {
        if partition.bounds.holds(uuid) {
            return Place::Inside;
        }
        below_top |= match partition.bounds {
            Bounds::Range { upper, .. } => upper.is_none_or(|upper| uuid < upper),
            Bounds::Default => false,
        };
    }
    // A gap below the youngest partition is a dropped one: what happened there isn't known any
    // more, so the event must not be handled as new.
    if below_top || id.unix_millis() > now_unix_ms.saturating_add(TOLERATED_AHEAD_MS) {
        Place::OutOfWindow
    } else {
        Place::Missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 60 * 60 * 1000;
    const NOW: u64 = 20_000 * DAY;

    fn partition(from_day: u64, to_day: u64) -> Partition {
        Partition {
            schema: "public".to_owned(),
            name: format!("d{from_day}"),
            bounds: Bounds::Range {
                lower: Some(EventId::floor(from_day * DAY).as_uuid()),
                upper: Some(EventId::floor(to_day * DAY).as_uuid()),
            },
            detach_pending: false,
        }
    }

    #[test]
    fn bounds_are_read_from_the_catalogue_text() {
        let id = Uuid::parse_str("0199c8d7-7c00-7000-8000-000000000000").unwrap();
        assert_eq!(
            Bounds::parse(&format!("FOR VALUES FROM ('{id}') TO (MAXVALUE)")),
            Some(Bounds::Range {
                lower: Some(id),
                upper: None
            })
        );
        assert_eq!(Bounds::parse("DEFAULT"), Some(Bounds::Default));
        assert_eq!(Bounds::parse("FOR VALUES IN ('a')"), None);
    }

    #[test]
    fn an_id_is_inside_out_of_the_window_or_missing_its_partition() {
        let mut partitions = vec![partition(19_990, 19_995), partition(19_996, 20_001)];
        let at = |ms| EventId::floor(ms);
        assert_eq!(place(&partitions, at(NOW), NOW), Place::Inside);
        assert_eq!(place(&partitions, at(19_990 * DAY), NOW), Place::Inside);
        assert_eq!(
            place(&partitions, at(19_990 * DAY - 1), NOW),
            Place::OutOfWindow
        );
        assert_eq!(
            place(&partitions, at(19_995 * DAY + 5), NOW),
            Place::OutOfWindow,
            "a gap"
        );
        assert_eq!(
            place(&partitions, at(20_001 * DAY), NOW),
            Place::Missing,
            "tomorrow"
        );
        assert_eq!(
            place(&partitions, at(20_001 * DAY + 1), NOW),
            Place::OutOfWindow,
            "too soon"
        );
        assert_eq!(
            place(&partitions, at(20_003 * DAY), NOW + 3 * DAY),
            Place::Missing,
            "stale"
        );
        assert_eq!(place(&[], at(0), NOW), Place::Missing);

        partitions[1].detach_pending = true;
        assert_eq!(
            place(&partitions, at(NOW), NOW),
            Place::Missing,
            "it takes no rows any more"
        );
    }
}
