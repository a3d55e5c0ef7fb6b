//! The card, asked through NVML from outside of any container: what it is, what is free, and who holds the rest.

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use pipe_spec::pipeline::Gpus;
use pipe_spec::text::human_bytes;
use serde::Serialize;

use super::Capability;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Card {
    pub name: String,
    pub driver: String,
    /// If the driver reports it.
    pub capability: Option<Capability>,
    /// Bytes.
    pub total: u64,
    pub free: u64,
    /// Processes that compute on it, those that hold most first.
    pub holders: Vec<Holder>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    pub pid: u32,
    /// The program, if the kernel reports it.
    pub name: Option<String>,
    /// Bytes, if the driver reports them.
    pub bytes: Option<u64>,
}

impl Card {
    /// The cards of this host that the pipeline asks for, as far as the driver knows them: none without a driver.
    pub fn read(gpus: &Gpus) -> Vec<Self> {
        let indices: Vec<u32> = match gpus {
            Gpus::Count(count) => (0..*count).collect(),
            Gpus::Auto => vec![0],
            Gpus::Ids(ids) => ids.iter().map(|id| id.parse().unwrap_or(0)).collect(),
            Gpus::All => (0..count()).collect(),
        };
        indices.into_iter().filter_map(Self::at).collect()
    }

    /// The first card of this host.
    pub fn of_host() -> Option<Self> {
        Self::at(0)
    }

    fn at(index: u32) -> Option<Self> {
        Self::ask(index).inspect_err(|error| tracing::debug!("NVML: {error}")).ok()
    }

    fn ask(index: u32) -> Result<Self, NvmlError> {
        let nvml = Nvml::init()?;
        let device = nvml.device_by_index(index)?;
        let memory = device.memory_info()?;
        let mut holders: Vec<Holder> = device
            .running_compute_processes()?
            .into_iter()
            .map(|process| Holder {
                pid: process.pid,
                name: program(process.pid),
                bytes: match process.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => Some(bytes),
                    UsedGpuMemory::Unavailable => None,
                },
            })
            .collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
        let capability = device.cuda_compute_capability().ok();
        let number = |part: i32| u32::try_from(part).ok();
        Ok(Self {
            name: device.name()?,
            driver: nvml.sys_driver_version()?,
            capability: capability
                .and_then(|found| Some(Capability { major: number(found.major)?, minor: number(found.minor)? })),
            total: memory.total,
            free: memory.free,
            holders,
        })
    }

    pub fn used(&self) -> u64 {
        self.total.saturating_sub(self.free)
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.name.as_deref().unwrap_or("a process");
        match self.bytes {
            Some(bytes) => write!(f, "{name} ({}, {})", self.pid, human_bytes(bytes)),
            None => write!(f, "{name} ({})", self.pid),
        }
    }
}

/// How many cards the driver knows.
fn count() -> u32 {
    Nvml::init().and_then(|nvml| nvml.device_count()).unwrap_or(0)
}

fn program(pid: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}
