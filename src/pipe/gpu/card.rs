//! The card, asked through NVML from outside of any container: what it is, what is free, and who holds the rest.

use std::collections::BTreeSet;

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use pipe_spec::pipeline::Gpus;
use pipe_spec::text::human_bytes;
use serde::Serialize;

use super::Capability;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Card {
    /// Its number on this machine, as the driver counts.
    pub index: u32,
    /// The driver's own name for it, `GPU-...`, if it reports one.
    pub uuid: Option<String>,
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
    /// The cards of this host that the pipeline asks for, as far as the driver knows them: none without a driver. In the order in
    /// which the driver counts them, which is the order that a job sees them in.
    pub fn read(gpus: &Gpus) -> Vec<Self> {
        let known = |error: &NvmlError| tracing::debug!("NVML: {error}");
        let Ok(nvml) = Nvml::init().inspect_err(known) else { return Vec::new() };
        let count = nvml.device_count().inspect_err(known).unwrap_or(0);
        let indices: BTreeSet<u32> = match gpus {
            Gpus::Count(wanted) => (0..count.min(*wanted)).collect(),
            Gpus::Auto => (0..count.min(1)).collect(),
            Gpus::All => (0..count).collect(),
            Gpus::Ids(ids) => ids.iter().filter_map(|id| index_of(&nvml, count, id)).collect(),
        };
        indices.into_iter().filter_map(|index| Self::ask(&nvml, index).inspect_err(known).ok()).collect()
    }

    /// The first card of this host.
    pub fn of_host() -> Option<Self> {
        Self::read(&Gpus::Count(1)).into_iter().next()
    }

    /// Whether a pipeline may call it so: by its number, or by the beginning of the driver's name.
    pub fn is_called(&self, id: &str) -> bool {
        id.parse() == Ok(self.index) || self.uuid.as_deref().is_some_and(|uuid| is_uuid(id) && uuid.starts_with(id))
    }

    /// For tests.
    #[cfg(test)]
    pub fn example(index: u32) -> Self {
        Self {
            index,
            uuid: None,
            name: "Test Card".to_owned(),
            driver: "1.2.3".to_owned(),
            capability: None,
            total: 16 << 30,
            free: 16 << 30,
            holders: Vec::new(),
        }
    }

    fn ask(nvml: &Nvml, index: u32) -> Result<Self, NvmlError> {
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
            index,
            uuid: device.uuid().ok(),
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

/// Whether an id names a whole card, and not a part of one (MIG).
pub fn is_whole(id: &str) -> bool {
    id.parse::<u32>().is_ok() || is_uuid(id)
}

fn is_uuid(id: &str) -> bool {
    id.starts_with("GPU-")
}

/// The number of the card that a pipeline calls so; none of a part of a card, or of a card that is not there.
fn index_of(nvml: &Nvml, count: u32, id: &str) -> Option<u32> {
    match id.parse() {
        Ok(index) => Some(index).filter(|index| *index < count),
        Err(_) if is_uuid(id) => (0..count).find(|index| {
            let uuid = nvml.device_by_index(*index).and_then(|device| device.uuid());
            uuid.is_ok_and(|uuid| uuid.starts_with(id))
        }),
        Err(_) => None,
    }
}

fn program(pid: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}
