//! The cards of this host, as the driver sees them. Knows nothing of engines.
//!
//! The card, asked through NVML from outside of any container: what it is, what is free, and who holds the rest.
//!
//! Compute capabilities of cards, and what code is compiled for.
//!
//! The cards that a process of this environment may use: `CUDA_VISIBLE_DEVICES` hides the others.

pub mod queue;

use std::collections::BTreeSet;

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use pipe_spec::pipeline::Gpus;
use pipe_spec::text::human_bytes;
use serde::{Serialize, Serializer};

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

/// A compute capability: 12.0 of an RTX 5090.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capability {
    pub major: u32,
    pub minor: u32,
}

impl Capability {
    /// From the number in `sm_120`.
    pub fn from_number(number: u32) -> Self {
        Self { major: number / 10, minor: number % 10 }
    }
}

impl std::fmt::Display for Capability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl Serialize for Capability {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A target that code was compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Architecture {
    /// Machine code, which later cards of the same generation run as well.
    Machine(Capability),
    /// PTX, which the driver translates for any card that is not older.
    Ptx(Capability),
}

impl Architecture {
    pub fn runs_on(self, card: Capability) -> bool {
        match self {
            Self::Machine(built) => built.major == card.major && built.minor <= card.minor,
            Self::Ptx(built) => built <= card,
        }
    }
}

impl std::fmt::Display for Architecture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (word, Capability { major, minor }) = match self {
            Self::Machine(built) => ("sm", built),
            Self::Ptx(built) => ("compute", built),
        };
        write!(f, "{word}_{major}{minor}")
    }
}

/// The variable from which CUDA reads the cards that a process may use.
pub const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// The ids that the environment lists; none where it lists none.
pub struct Visible(Option<Vec<String>>);

impl Visible {
    pub fn here() -> Self {
        Self::listed(std::env::var(VISIBLE_DEVICES).ok().as_deref())
    }

    fn listed(text: Option<&str>) -> Self {
        let ids = text.into_iter().flat_map(|text| text.split(',')).map(str::trim).filter(|id| !id.is_empty());
        let ids: Vec<String> = ids.map(str::to_owned).collect();
        Self((!ids.is_empty()).then_some(ids))
    }

    /// The same cards, by their ids where the environment chooses among them.
    pub fn choose(&self, gpus: &Gpus) -> Gpus {
        let Some(listed) = &self.0 else { return gpus.clone() };
        let first = |count: u32| Gpus::Ids(listed.iter().take(count as usize).cloned().collect());
        match gpus {
            Gpus::Count(0) | Gpus::Ids(_) => gpus.clone(),
            Gpus::Auto => first(1),
            Gpus::Count(count) => first(*count),
            Gpus::All => Gpus::Ids(listed.clone()),
        }
    }

    /// The cards that a job may see, as CUDA reads them; absent where it may see all.
    pub fn of_job(&self, gpus: &Gpus) -> Option<String> {
        match self.choose(gpus) {
            Gpus::All | Gpus::Count(0) => None,
            Gpus::Auto => Some("0".to_owned()),
            Gpus::Count(count) => Some((0..count).map(|id| id.to_string()).collect::<Vec<_>>().join(",")),
            Gpus::Ids(mut ids) => {
                // In the order of the driver, as in a container.
                if ids.iter().all(|id| id.parse::<u32>().is_ok()) {
                    ids.sort_by_key(|id| id.parse::<u32>().unwrap_or(u32::MAX));
                }
                Some(ids.join(","))
            }
        }
    }
}

#[cfg(test)]
mod capability_tests {
    use super::*;

    #[test]
    fn what_runs_where() {
        let machine = |number| Architecture::Machine(Capability::from_number(number));
        let ptx = |number| Architecture::Ptx(Capability::from_number(number));
        let cases = [
            (machine(75), 75, true),
            (machine(80), 86, true),
            (machine(86), 80, false),
            (machine(80), 90, false),
            (machine(90), 120, false),
            (machine(120), 120, true),
            (machine(120), 121, true),
            (machine(100), 120, false),
            (machine(120), 103, false),
            (ptx(90), 90, true),
            (ptx(90), 120, true),
            (ptx(86), 90, true),
            (ptx(120), 90, false),
            (ptx(121), 120, false),
        ];
        for (built, card, want) in cases {
            assert_eq!(built.runs_on(Capability::from_number(card)), want, "{built} on sm_{card}");
        }
    }

    #[test]
    fn words() {
        assert_eq!(Capability::from_number(120).to_string(), "12.0");
        assert_eq!(Architecture::Machine(Capability::from_number(75)).to_string(), "sm_75");
        assert_eq!(Architecture::Ptx(Capability::from_number(103)).to_string(), "compute_103");
    }
}

#[cfg(test)]
mod visible_tests {
    use super::*;

    #[test]
    fn what_a_job_sees() {
        let ids = |ids: &[&str]| Gpus::Ids(ids.iter().map(|id| (*id).to_owned()).collect());
        for (listed, gpus, want) in [
            (None, Gpus::Auto, Some("0")),
            (None, Gpus::Count(0), None),
            (None, Gpus::Count(1), Some("0")),
            (None, Gpus::Count(3), Some("0,1,2")),
            (None, Gpus::All, None),
            (None, ids(&["3", "1"]), Some("1,3")),
            (None, ids(&["GPU-b", "GPU-a"]), Some("GPU-b,GPU-a")),
            (Some("2,5, 7"), Gpus::Auto, Some("2")),
            (Some("2,5,7"), Gpus::Count(2), Some("2,5")),
            (Some("2,5"), Gpus::All, Some("2,5")),
            (Some("2,5"), ids(&["0"]), Some("0")),
            (Some("MIG-a"), Gpus::Count(1), Some("MIG-a")),
            (Some(" "), Gpus::Count(1), Some("0")),
        ] {
            assert_eq!(Visible::listed(listed).of_job(&gpus).as_deref(), want, "{listed:?} {gpus:?}");
        }
    }
}
