//! The trace that a record belongs to: W3C `traceparent` (OBS-3).

use std::fmt;
use std::str::FromStr;

/// A position in a distributed trace, as the W3C header `traceparent` writes it (OBS-3).
///
/// Pure: the ids are arguments.
///
/// ```
/// # use factum_event::TraceContext;
/// let sent: TraceContext = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse()?;
/// let here = sent.child([0x11; 8]).unwrap();
/// assert_eq!(here.to_string(), "00-4bf92f3577b34da6a3ce929d0e0e4736-1111111111111111-01");
/// # Ok::<(), factum_event::TraceContextError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceContext {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    sampled: bool,
}

impl TraceContext {
    /// A position. `None` when one of the ids is all zeros, which the standard forbids.
    pub fn new(trace_id: [u8; 16], span_id: [u8; 8], sampled: bool) -> Option<TraceContext> {
        (trace_id != [0; 16] && span_id != [0; 8]).then_some(TraceContext {
            trace_id,
            span_id,
            sampled,
        })
    }

    /// Reads a `traceparent`.
    ///
    /// # Errors
    ///
    /// [`TraceContextError`]; the standard then starts a new trace.
    pub fn parse(text: &str) -> Result<TraceContext, TraceContextError> {
        text.parse()
    }

    /// A new span in the same trace. `None` when `span_id` is all zeros.
    pub fn child(&self, span_id: [u8; 8]) -> Option<TraceContext> {
        TraceContext::new(self.trace_id, span_id, self.sampled)
    }

    /// The id of the whole trace.
    pub fn trace_id(&self) -> [u8; 16] {
        self.trace_id
    }

    /// The id of this span: the parent of what follows.
    pub fn span_id(&self) -> [u8; 8] {
        self.span_id
    }

    /// Whether the caller records the trace.
    pub fn is_sampled(&self) -> bool {
        self.sampled
    }
}

/// A text is not a `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a traceparent: expected \"00-<32 hex digits>-<16 hex digits>-<2 hex digits>\"")]
pub struct TraceContextError;

impl FromStr for TraceContext {
    type Err = TraceContextError;

    fn from_str(text: &str) -> Result<Self, TraceContextError> {
        let mut parts = text.split('-');
        let mut part = || parts.next().ok_or(TraceContextError);
        let [version] = hex(part()?)?;
        let trace_id = hex(part()?)?;
        let span_id = hex(part()?)?;
        let [flags] = hex(part()?)?;
        // A later version may add parts, never change these four; version ff is forbidden.
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return Err(TraceContextError);
        }
        TraceContext::new(trace_id, span_id, flags & 1 == 1).ok_or(TraceContextError)
    }
}

/// Exactly N bytes in lower-case hexadecimal digits.
fn hex<const N: usize>(text: &str) -> Result<[u8; N], TraceContextError> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else {
        return Err(TraceContextError);
    };
    let pairs: &[[u8; 2]; N] = pairs.try_into().map_err(|_| TraceContextError)?;
    // Every record has one, so all digits are looked up before any is judged.
    let mut seen = 0;
    let bytes = pairs.map(|[high, low]| {
        let (high, low) = (DIGITS[usize::from(high)], DIGITS[usize::from(low)]);
        seen |= high | low;
        high << 4 | low & 0xf
    });
    if seen & NO_DIGIT == 0 {
        Ok(bytes)
    } else {
        Err(TraceContextError)
    }
}

/// Stands in [`DIGITS`] for what is no digit.
const NO_DIGIT: u8 = 0x80;

/// The values of the lower-case hexadecimal digits.
const DIGITS: [u8; 256] = {
    let mut digits = [NO_DIGIT; 256];
    let mut value = 0;
    while value < 16 {
        digits[b"0123456789abcdef"[value] as usize] = value as u8;
        value += 1;
    }
    digits
};

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("00-")?;
        self.trace_id
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("-")?;
        self.span_id
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "-{:02x}", u8::from(self.sampled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read_and_written_back() {
        for text in [
            GOOD,
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
        ] {
            assert_eq!(TraceContext::parse(text).unwrap().to_string(), text);
        }
        // A later version is written back as ours; unknown flags are not ours to pass on.
        let later = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03-more";
        assert_eq!(TraceContext::parse(later).unwrap().to_string(), GOOD);
    }

    #[test]
    fn what_is_no_traceparent_is_refused() {
        for text in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473é-0f067aa0ba902b7-01",
            " 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(
                TraceContext::parse(text),
                Err(TraceContextError),
                "{text:?}"
            );
        }
    }
}
