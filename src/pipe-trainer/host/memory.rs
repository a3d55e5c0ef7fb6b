//! What the kernel says about this process' memory and the machine's.

use std::fs;
use std::path::{Path, PathBuf};

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

/// The least that the control group of this process, or one above it, may have.
fn group_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limit_files(&groups).iter().filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok()).min()
}

/// Where the limits of these groups are, in both versions of control groups. In a container the group of this process is the root.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let of = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?);
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|one| one == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let all = Path::new(group.trim_start_matches('/')).ancestors();
        Some(all.map(move |group| Path::new(root).join(group).join(file)).collect::<Vec<_>>())
    };
    groups.lines().filter_map(of).flatten().collect()
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
    fn limits_of_all_groups_above() {
        let files = limit_files("5:cpu,cpuacct:/a\n4:memory:/slurm/job_7/step_0\n0::/user\n");
        let files: Vec<&str> = files.iter().filter_map(|file| file.to_str()).collect();
        let want = [
            "/sys/fs/cgroup/memory/slurm/job_7/step_0/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/slurm/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/user/memory.max",
            "/sys/fs/cgroup/memory.max",
        ];
        assert_eq!(files, want);
    }

    #[test]
    fn reads_the_kernels_table() {
        let status = "Name:\tx\nVmHWM:\t  30 kB\nVmRSS:\t  20 kB\nVmData:\t  10 kB\n";
        assert_eq!(HostMemory::parse(status), HostMemory { resident: 20 << 10, data: 10 << 10, peak: 30 << 10 });
        assert!(HostMemory::now().resident > 0);
    }
}
