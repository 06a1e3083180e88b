//! Texts that match a pattern.

use regex_syntax::hir::{Class, Hir, HirKind};

/// How often a repetition without an upper bound is repeated at most, beyond its least.
const MAX_REPEATS: u64 = 8;

/// A text that probably matches the pattern; what looks around (`\b`, `^`) is ignored, so the caller checks. A later
/// `attempt` repeats more.
pub(super) fn matching(
    pattern: &str,
    attempt: u32,
    choose: &mut dyn FnMut(u64) -> u64,
) -> Option<String> {
    let hir = regex_syntax::parse(pattern).ok()?;
    let mut text = String::new();
    write(&hir, attempt, choose, &mut text)?;
    Some(text)
}

fn write(
    hir: &Hir,
    attempt: u32,
    choose: &mut dyn FnMut(u64) -> u64,
    text: &mut String,
) -> Option<()> {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => {}
        HirKind::Literal(literal) => text.push_str(std::str::from_utf8(&literal.0).ok()?),
        HirKind::Class(Class::Unicode(class)) => {
            let ranges = class.ranges();
            let range = ranges.get(choose(ranges.len() as u64) as usize)?;
            let width = u64::from(range.end()) - u64::from(range.start());
            let code = u64::from(range.start()) + choose(width + 1);
            // Between two characters there may lie surrogates, which are none.
            text.push(char::from_u32(code as u32).unwrap_or(range.start()));
        }
        HirKind::Class(Class::Bytes(class)) => {
            text.push(char::from(class.ranges().first()?.start()));
        }
        HirKind::Repetition(repetition) => {
            let least = u64::from(repetition.min);
            let most = repetition.max.map_or(least + MAX_REPEATS, |max| {
                u64::from(max).min(least + MAX_REPEATS)
            });
            let wanted = least + choose(most - least + 1) + u64::from(attempt);
            for _ in 0..wanted.min(repetition.max.map_or(u64::MAX, u64::from)) {
                write(&repetition.sub, attempt, choose, text)?;
            }
        }
        HirKind::Capture(capture) => write(&capture.sub, attempt, choose, text)?,
        HirKind::Concat(parts) => {
            for part in parts {
                write(part, attempt, choose, text)?;
            }
        }
        HirKind::Alternation(parts) => {
            let at = (choose(parts.len() as u64) + u64::from(attempt)) % parts.len() as u64;
            write(&parts[at as usize], attempt, choose, text)?;
        }
    }
    Some(())
}
