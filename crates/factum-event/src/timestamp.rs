//! Times on the wire: RFC 3339 read strictly, one canonical form written (public case 51).

use time::{Date, Month, OffsetDateTime, Time, UtcOffset};

/// What PostgreSQL keeps of an instant: UTC and microseconds, the rest cut off.
///
/// `None` outside the years 1 to 9999 in UTC.
pub(crate) fn normalise(at: OffsetDateTime) -> Option<OffsetDateTime> {
    let utc = at.checked_to_offset(UtcOffset::UTC)?;
    let whole_microseconds = utc.nanosecond() / 1_000 * 1_000;
    let cut = utc.replace_nanosecond(whole_microseconds).ok()?;
    (1..=9999).contains(&cut.year()).then_some(cut)
}

/// `2026-06-01T12:00:00Z`, with 3 or 6 digits of a second's fraction where it has one.
pub(crate) fn format(at: OffsetDateTime) -> Option<String> {
    let at = normalise(at)?;
    let (hour, minute, second) = at.to_hms();
    let mut text = format_date(at.date())?;
    text.push_str(&format!("T{hour:02}:{minute:02}:{second:02}"));
    match at.microsecond() {
        0 => {}
        micros if micros % 1_000 == 0 => text.push_str(&format!(".{:03}", micros / 1_000)),
        micros => text.push_str(&format!(".{micros:06}")),
    }
    text.push('Z');
    Some(text)
}

/// `2026-06-01`
pub(crate) fn format_date(date: Date) -> Option<String> {
    let (year, month, day) = date.to_calendar_date();
    (1..=9999)
        .contains(&year)
        .then(|| format!("{year:04}-{:02}-{day:02}", u8::from(month)))
}

/// Reads `YYYY-MM-DDThh:mm:ss[.f…](Z|±hh:mm)`: upper-case T and Z, any offset, any number of
/// fraction digits of which six are kept. No leap second and no 24:00, for neither PostgreSQL nor
/// JavaScript would keep them.
pub(crate) fn parse(text: &str) -> Option<OffsetDateTime> {
    let (date, rest) = text.as_bytes().split_at_checked(10)?;
    let (time, mut rest) = rest.split_at_checked(9)?;
    let [b'T', hour @ .., b':', _, _, b':', _, _] = time else {
        return None;
    };
    let hour = two_digits(hour)?;
    let minute = two_digits(&time[4..6])?;
    let second = two_digits(&time[7..9])?;

    let mut microsecond = 0;
    if let [b'.', fraction @ ..] = rest {
        let digits = fraction
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        if digits == 0 {
            return None;
        }
        let padded = fraction[..digits]
            .iter()
            .chain(std::iter::repeat(&b'0'))
            .take(6);
        microsecond = padded.fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'));
        rest = &fraction[digits..];
    }

    let offset = match rest {
        [b'Z'] => UtcOffset::UTC,
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let hours = two_digits(&[*h1, *h2]).filter(|hours| *hours <= 23)? as i8;
            let minutes = two_digits(&[*m1, *m2]).filter(|minutes| *minutes <= 59)? as i8;
            let sign = if *sign == b'-' { -1 } else { 1 };
            UtcOffset::from_hms(sign * hours, sign * minutes, 0).ok()?
        }
        _ => return None,
    };
    // `Time` refuses hour 24 and second 60.
    let time = Time::from_hms_micro(hour, minute, second, microsecond).ok()?;
    normalise(parse_date(date)?.with_time(time).assume_offset(offset))
}

/// Reads `YYYY-MM-DD` of the years 1 to 9999.
pub(crate) fn parse_date(text: &[u8]) -> Option<Date> {
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2] = text else {
        return None;
    };
    let year = i32::from(two_digits(&[*y1, *y2])?) * 100 + i32::from(two_digits(&[*y3, *y4])?);
    let month = Month::try_from(two_digits(&[*m1, *m2])?).ok()?;
    if year == 0 {
        return None;
    }
    Date::from_calendar_date(year, month, two_digits(&[*d1, *d2])?).ok()
}

fn two_digits(text: &[u8]) -> Option<u8> {
    match text {
        [tens @ b'0'..=b'9', ones @ b'0'..=b'9'] => Some((tens - b'0') * 10 + (ones - b'0')),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> Option<String> {
        parse(text).and_then(format)
    }

    #[test]
    fn case_51_every_offset_becomes_one_canonical_form() {
        for (given, written) in [
            ("2026-06-01T12:00:00Z", "2026-06-01T12:00:00Z"),
            ("2026-06-01T12:00:00.000Z", "2026-06-01T12:00:00Z"),
            ("2026-06-01T12:00:00.120Z", "2026-06-01T12:00:00.120Z"),
            ("2026-06-01T12:00:00.1234Z", "2026-06-01T12:00:00.123400Z"),
            (
                "2026-06-01T12:00:00.123456789Z",
                "2026-06-01T12:00:00.123456Z",
            ),
            ("2026-06-01T12:00:00+00:00", "2026-06-01T12:00:00Z"),
            ("2026-06-01T12:00:00-00:00", "2026-06-01T12:00:00Z"),
            ("2026-06-01T12:00:00+03:00", "2026-06-01T09:00:00Z"),
            ("2026-06-01T00:15:00+05:45", "2026-05-31T18:30:00Z"),
            ("2026-06-01T12:00:00-23:59", "2026-06-02T11:59:00Z"),
            (
                "1969-12-31T23:59:59.9999999Z",
                "1969-12-31T23:59:59.999999Z",
            ),
            ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
            (
                "9999-12-31T23:59:59.999999999Z",
                "9999-12-31T23:59:59.999999Z",
            ),
            ("2024-02-29T00:00:00Z", "2024-02-29T00:00:00Z"),
        ] {
            assert_eq!(canonical(given).as_deref(), Some(written), "{given}");
        }
    }

    #[test]
    fn case_51_what_is_no_instant_is_refused() {
        for text in [
            "",
            "2026-06-01",
            "2026-06-01T12:00Z",
            "2026-06-01T12:00:00",
            "2026-06-01 12:00:00Z",
            "2026-06-01t12:00:00Z",
            "2026-06-01T12:00:00z",
            "2026-06-01T12:00:00.Z",
            "2026-06-01T12:00:00,5Z",
            "2026-06-01T24:00:00Z",
            "2026-06-01T12:60:00Z",
            "2016-12-31T23:59:60Z",
            "2026-02-30T12:00:00Z",
            "2025-02-29T12:00:00Z",
            "2026-00-01T12:00:00Z",
            "2026-13-01T12:00:00Z",
            "2026-06-00T12:00:00Z",
            "0000-01-01T00:00:00Z",
            "+010000-01-01T00:00:00Z",
            "-000001-01-01T00:00:00Z",
            "2026-06-01T12:00:00+24:00",
            "2026-06-01T12:00:00+03:60",
            "2026-06-01T12:00:00+0300",
            "2026-06-01T12:00:00+03",
            "2026-06-01T12:00:00ZZ",
            "2026-06-01T12:00:00Z ",
            " 2026-06-01T12:00:00Z",
            "2026-6-1T12:00:00Z",
            "2026-06-01T1２:00:00Z",
            // Within its own offset a good year, in UTC the year 0 and the year 10000.
            "0001-01-01T00:00:00+00:01",
            "9999-12-31T23:59:59-00:01",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
