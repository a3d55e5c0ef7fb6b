//! The cards that a process of this environment may use: `CUDA_VISIBLE_DEVICES` hides the others.

use pipe_spec::pipeline::Gpus;

/// What CUDA reads.
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

    /// What a job is to see, as CUDA reads it; nothing where it may see all.
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
mod tests {
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
