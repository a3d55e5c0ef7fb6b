//! The card, asked through NVML from outside of any container: what it is, what is free, and who holds the rest.

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use pipe_spec::pipeline::Gpus;
use pipe_spec::text::human_bytes;
use serde::Serialize;

use crate::capability::Capability;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Card {
    pub name: String,
    pub driver: String,
    /// Where the driver tells.
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
    /// The program, where the kernel tells.
    pub name: Option<String>,
    /// Bytes, where the driver tells.
    pub bytes: Option<u64>,
}

impl Card {
    /// The first card that the pipeline asks for; nothing without a driver.
    pub fn read(gpus: &Gpus) -> Option<Self> {
        let index = match gpus {
            Gpus::Count(0) => return None,
            Gpus::Ids(ids) => ids.first().and_then(|id| id.parse().ok()).unwrap_or(0),
            Gpus::Count(_) | Gpus::All | Gpus::Auto => 0,
        };
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
        let name = self.name.as_deref().unwrap_or("process");
        match self.bytes {
            Some(bytes) => write!(f, "{name} ({}, {})", self.pid, human_bytes(bytes)),
            None => write!(f, "{name} ({})", self.pid),
        }
    }
}

fn program(pid: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}
