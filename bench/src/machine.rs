//! Where it is measured: read, never typed.

use std::fs;

use crate::report::Machine;
use crate::stage::Stage;

/// What the machine and the running servers say about themselves.
pub(crate) fn read(stage: &Stage) -> Machine {
    let line_of = |path: &str, key: &str| -> Option<String> {
        let text = fs::read_to_string(path).ok()?;
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let memory_kib = line_of("/proc/meminfo", "MemTotal")
        .and_then(|text| text.trim_end_matches(" kB").parse::<u64>().ok())
        .unwrap_or_default();
    let unknown = || "unknown".to_owned();
    Machine {
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        processor: line_of("/proc/cpuinfo", "model name").unwrap_or_else(unknown),
        memory_gib: memory_kib.div_ceil(1024 * 1024),
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
            .map_or_else(|_| unknown(), |text| text.trim().to_owned()),
        postgresql: stage.postgres_version().to_owned(),
        kafka: factum_testing::kafka::VERSION.to_owned(),
        librdkafka: rdkafka::util::get_rdkafka_version().1,
    }
}
