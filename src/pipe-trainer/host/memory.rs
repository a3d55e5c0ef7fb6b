//! What the kernel says about this process' memory and the machine's.

use std::fs;

/// Bytes, as `/proc/self/status` counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostMemory {
    /// VmRSS: pages in memory now.
    pub resident: u64,
    /// VmData: private writable memory, what the limit counts.
    pub data: u64,
    /// VmHWM: the most pages that were in memory at once.
    pub peak: u64,
}

impl HostMemory {
    pub fn now() -> Self {
        Self::parse(&fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    fn parse(status: &str) -> Self {
        let bytes = |name| kilobytes(status, name).unwrap_or(0);
        Self { resident: bytes("VmRSS:"), data: bytes("VmData:"), peak: bytes("VmHWM:") }
    }
}

/// The memory that this process can have: the machine's, or less where its control group says so.
pub fn total() -> Option<u64> {
    let machine = kilobytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")?;
    Some(group_limit().map_or(machine, |limit| limit.min(machine)))
}

fn group_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let files = [
        format!("/sys/fs/cgroup{own}/memory.max"),
        "/sys/fs/cgroup/memory.max".to_owned(),
        "/sys/fs/cgroup/memory/memory.limit_in_bytes".to_owned(),
    ];
    files.iter().find_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
}

fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(number * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_table() {
        let status = "Name:\tx\nVmHWM:\t  30 kB\nVmRSS:\t  20 kB\nVmData:\t  10 kB\n";
        assert_eq!(HostMemory::parse(status), HostMemory { resident: 20 << 10, data: 10 << 10, peak: 30 << 10 });
        assert!(HostMemory::now().resident > 0);
    }
}
