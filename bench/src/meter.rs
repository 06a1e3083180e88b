//! What a program and a database server have used, read from Linux's `/proc`.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// What the kernel counts the time of processes in: `USER_HZ`, 100 a second on every Linux that this runs on.
const TICK: Duration = Duration::from_millis(10);

/// Reads clocks and counters at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Meter {
    /// The server's first process, the parent of all others.
    postmaster: u32,
}

/// The clocks at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    at: Instant,
    own: Duration,
    database: Duration,
}

/// What happened between two readings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Events or rows between the two readings.
    pub(crate) events: u64,
    /// Time between the two readings.
    pub(crate) seconds: f64,
    /// CPU of the program itself, all threads.
    pub(crate) own_cpu_seconds: f64,
    /// CPU of all of the server's processes.
    pub(crate) database_cpu_seconds: f64,
    /// The most memory that the program ever had.
    pub(crate) peak_rss_mib: f64,
}

impl Meter {
    pub(crate) fn new(postmaster: u32) -> Meter {
        Meter { postmaster }
    }

    /// Reads the clocks now.
    pub(crate) fn read(self) -> Result<Reading> {
        Ok(Reading {
            at: Instant::now(),
            own: Times::of("self")?.own,
            database: database_cpu(self.postmaster)?,
        })
    }

    /// What `events` have cost since `start`.
    pub(crate) fn since(self, start: Reading, events: u64) -> Result<Measured> {
        let end = self.read()?;
        Ok(Measured {
            events,
            seconds: (end.at - start.at).as_secs_f64(),
            own_cpu_seconds: end.own.saturating_sub(start.own).as_secs_f64(),
            database_cpu_seconds: end.database.saturating_sub(start.database).as_secs_f64(),
            peak_rss_mib: peak_rss_mib()?,
        })
    }
}

impl Measured {
    pub(crate) fn events_per_second(&self) -> f64 {
        self.events as f64 / self.seconds
    }

    pub(crate) fn own_cpu_micros(&self) -> f64 {
        self.own_cpu_seconds * 1e6 / self.events as f64
    }

    pub(crate) fn database_cpu_micros(&self) -> f64 {
        self.database_cpu_seconds * 1e6 / self.events as f64
    }
}

/// The parent of a process: of a database session's own, the server's first process.
pub(crate) fn parent_of(pid: u32) -> Result<u32> {
    Ok(Times::of(&pid.to_string())?.parent)
}

/// The server's first process, all its children, and those that have ended: their time is added to their
/// parent's when it takes note of the end.
fn database_cpu(postmaster: u32) -> Result<Duration> {
    let first = Times::of(&postmaster.to_string())?;
    let mut sum = first.own + first.of_ended_children;
    for entry in fs::read_dir("/proc").context("reading /proc")? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if !name.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        // A process may end between the list and the look.
        if let Ok(times) = Times::of(&name)
            && times.parent == postmaster
        {
            sum += times.own;
        }
    }
    Ok(sum)
}

/// A line of `/proc/<pid>/stat`, as far as it is needed.
#[derive(Debug, PartialEq, Eq)]
struct Times {
    parent: u32,
    own: Duration,
    of_ended_children: Duration,
}

impl Times {
    fn of(pid: &str) -> Result<Times> {
        let path = format!("/proc/{pid}/stat");
        let line = fs::read_to_string(&path)
            .with_context(|| format!("reading {path}: the bench needs Linux's /proc"))?;
        Times::parse(&line).with_context(|| format!("{path} is not of the form that is known"))
    }

    /// The name of the program stands in brackets and may hold blanks and brackets itself.
    fn parse(line: &str) -> Option<Times> {
        let (_, rest) = line.rsplit_once(')')?;
        // The first of these is the third of the manual page's list.
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let ticks = |number: usize| -> Option<Duration> {
            let ticks: u32 = fields.get(number - 3)?.parse().ok()?;
            Some(TICK * ticks)
        };
        Some(Times {
            parent: fields.get(4 - 3)?.parse().ok()?,
            own: ticks(14)? + ticks(15)?,
            of_ended_children: ticks(16)? + ticks(17)?,
        })
    }
}

fn peak_rss_mib() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status").context("reading /proc/self/status")?;
    let kib: f64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok())
        .context("/proc/self/status has no VmHWM")?;
    Ok(kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_stat_is_read_whatever_the_program_is_called() {
        let line =
            "4711 (post) gres: x) S 99 4711 4711 0 -1 4194304 1 2 3 4 150 50 7 3 20 0 1 0 1 2 3";
        assert_eq!(
            Times::parse(line),
            Some(Times {
                parent: 99,
                own: TICK * 200,
                of_ended_children: TICK * 10,
            })
        );
        assert_eq!(Times::parse("nonsense"), None);
    }

    #[test]
    fn this_process_is_measured() {
        let meter = Meter::new(std::process::id());
        let start = meter.read().unwrap();
        let measured = meter.since(start, 10).unwrap();
        assert!(measured.seconds < 10.0 && measured.peak_rss_mib > 0.1);
        assert!(parent_of(std::process::id()).unwrap() > 0);
    }

    #[test]
    fn costs_are_per_event() {
        let measured = Measured {
            events: 1_000,
            seconds: 0.5,
            own_cpu_seconds: 0.25,
            database_cpu_seconds: 0.125,
            peak_rss_mib: 1.0,
        };
        assert_eq!(measured.events_per_second(), 2_000.0);
        assert_eq!(measured.own_cpu_micros(), 250.0);
        assert_eq!(measured.database_cpu_micros(), 125.0);
    }
}
