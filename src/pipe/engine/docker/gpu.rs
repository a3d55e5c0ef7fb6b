//! How a GPU gets into a container: CDI, the NVIDIA runtime, or plain devices with the driver's libraries.

use std::path::{Path, PathBuf};

use pipe_spec::pipeline::Gpus;

use super::Info;
use crate::error::Error;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passthrough {
    Cdi {
        devices: Vec<String>,
    },
    NvidiaRuntime {
        visible: String,
    },
    /// All cards are mapped; `visible` chooses among them, absent means all.
    Devices {
        devices: Vec<String>,
        libraries: Vec<PathBuf>,
        visible: Option<String>,
    },
}

/// Why each of the three is not available.
struct Missing {
    cdi: String,
    runtime: String,
    devices: String,
}

impl Passthrough {
    /// Where the driver's libraries are mounted; the image has it on its library path.
    pub const DRIVER_FOLDER: &str = "/opt/pipe/driver";

    /// The way to pass through what was asked; `None` when no GPU is wanted, or none is there and `auto` allows that.
    pub fn choose(gpus: &Gpus, info: &Info) -> Result<Option<Self>, Error> {
        if *gpus == Gpus::Count(0) {
            return Ok(None);
        }
        match Self::find(gpus, info) {
            Ok(way) => Ok(Some(way)),
            Err(_) if *gpus == Gpus::Auto => Ok(None),
            Err(missing) => Err(Error::NoGpu { reasons: missing.lines() }),
        }
    }

    fn find(gpus: &Gpus, info: &Info) -> Result<Self, Missing> {
        let ids = ids(gpus);
        let cdi = match cdi_devices(info, &ids) {
            Ok(devices) => return Ok(Self::Cdi { devices }),
            Err(reason) => reason,
        };
        let runtime = match nvidia_runtime(info) {
            Ok(()) => return Ok(Self::NvidiaRuntime { visible: ids.join(",") }),
            Err(reason) => reason,
        };
        let devices = match plain_devices(&ids) {
            Ok((devices, libraries)) => return Ok(Self::Devices { devices, libraries, visible: chosen(&ids) }),
            Err(reason) => reason,
        };
        Err(Missing { cdi, runtime, devices })
    }

    /// The name of each way, with the devices of the first card or the reason why it is not available.
    pub fn ways(info: &Info) -> [(&'static str, Result<String, String>); 3] {
        let ids = ["0".to_owned()];
        [
            ("CDI", cdi_devices(info, &ids).map(|devices| devices.join(", "))),
            ("the NVIDIA runtime", nvidia_runtime(info).map(|()| "registered with the daemon".to_owned())),
            ("plain devices", plain_devices(&ids).map(|(devices, _)| devices.join(", "))),
        ]
    }
}

impl Missing {
    fn lines(&self) -> Vec<String> {
        vec![
            format!("  CDI: {}", self.cdi),
            format!("  NVIDIA runtime: {}", self.runtime),
            format!("  plain devices: {}", self.devices),
        ]
    }
}

/// The requested ids, as CDI and the NVIDIA runtime name them.
fn ids(gpus: &Gpus) -> Vec<String> {
    match gpus {
        Gpus::Ids(ids) => ids.clone(),
        Gpus::All => vec!["all".to_owned()],
        Gpus::Auto => vec!["0".to_owned()],
        Gpus::Count(count) => (0..*count).map(|id| id.to_string()).collect(),
    }
}

fn chosen(ids: &[String]) -> Option<String> {
    (!ids.iter().any(|id| id == "all")).then(|| ids.join(","))
}

fn nvidia_runtime(info: &Info) -> Result<(), String> {
    match (info.runtimes.iter().any(|name| name == "nvidia"), Path::new("/dev/nvidiactl").exists()) {
        (true, true) => Ok(()),
        (true, false) => Err("registered, but the host has no /dev/nvidiactl".to_owned()),
        (false, _) => Err("not registered with the daemon (nvidia-ctk runtime configure)".to_owned()),
    }
}

fn cdi_devices(info: &Info, ids: &[String]) -> Result<Vec<String>, String> {
    if info.cdi_spec_dirs.is_empty() {
        return Err("not enabled in the daemon (Docker 25 or newer with the feature `cdi`)".to_owned());
    }
    let described = info.cdi_spec_dirs.iter().any(|dir| {
        let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
        files.filter_map(|file| std::fs::read_to_string(file.path()).ok()).any(|text| text.contains("nvidia.com/gpu"))
    });
    if !described {
        return Err(format!(
            "no nvidia.com/gpu described in {} (nvidia-ctk cdi generate)",
            info.cdi_spec_dirs.join(" or ")
        ));
    }
    Ok(ids.iter().map(|id| format!("nvidia.com/gpu={id}")).collect())
}

/// The device files and the driver's libraries of the host.
fn plain_devices(ids: &[String]) -> Result<(Vec<String>, Vec<PathBuf>), String> {
    let control = ["/dev/nvidiactl", "/dev/nvidia-uvm"];
    if let Some(gone) = control.iter().find(|path| !Path::new(path).exists()) {
        return Err(format!("the host has no {gone}; is the NVIDIA driver loaded?"));
    }
    let mut devices: Vec<String> = control.iter().map(ToString::to_string).collect();
    devices.extend(Some("/dev/nvidia-uvm-tools".to_owned()).filter(|path| Path::new(path).exists()));
    let cards: Vec<String> =
        (0..64).map(|id| format!("/dev/nvidia{id}")).filter(|path| Path::new(path).exists()).collect();
    for id in ids.iter().filter(|id| *id != "all") {
        if !cards.contains(&format!("/dev/nvidia{id}")) && id.parse::<u32>().is_ok() {
            return Err(format!("the host has no /dev/nvidia{id}"));
        }
    }
    if cards.is_empty() {
        return Err("the host has no /dev/nvidia0".to_owned());
    }
    devices.extend(cards);
    let mut libraries = Vec::new();
    for (name, needed) in
        [("libcuda.so.1", true), ("libnvidia-ml.so.1", false), ("libnvidia-ptxjitcompiler.so.1", false)]
    {
        match crate::image::find_library(name) {
            // The name is what is looked for inside, whatever it links to out here.
            Some(path) => libraries.push(path),
            None if needed => return Err(format!("the driver's {name} was not found")),
            None => {}
        }
    }
    Ok((devices, libraries))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_is_wanted() {
        assert_eq!(Passthrough::choose(&Gpus::Count(0), &Info::default()).unwrap(), None);
    }

    /// The ids of cards, which every way has to pass on.
    #[test]
    fn several_cards() {
        let named = |names: &[&str]| Gpus::Ids(names.iter().map(|name| (*name).to_owned()).collect());
        for (gpus, want, visible) in [
            (Gpus::Count(3), "0,1,2", Some("0,1,2")),
            (Gpus::All, "all", None),
            (named(&["1", "GPU-a"]), "1,GPU-a", Some("1,GPU-a")),
            (Gpus::Auto, "0", Some("0")),
        ] {
            let ids = ids(&gpus);
            assert_eq!(ids.join(","), want, "{gpus:?}");
            assert_eq!(chosen(&ids).as_deref(), visible, "{gpus:?}");
        }
    }

    #[test]
    fn a_card_that_is_not_there_is_named_for_each_way() {
        let info = Info::default();
        let wanted = Gpus::Ids(vec!["63".into()]);
        let error = Passthrough::choose(&wanted, &info).unwrap_err().to_string();
        for way in ["CDI: ", "NVIDIA runtime: not registered", "plain devices: the host has no /dev/nvidia"] {
            assert!(error.contains(way), "{error}");
        }
    }

    #[test]
    fn cdi_comes_first_where_it_is_described() {
        let dir = std::env::temp_dir().join(format!("pipe-cdi-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let info =
            Info { cdi_spec_dirs: vec![dir.display().to_string()], runtimes: vec!["nvidia".into()], ..Info::default() };
        assert!(cdi_devices(&info, &["0".into()]).unwrap_err().contains("nvidia-ctk cdi generate"));
        std::fs::write(dir.join("nvidia.yaml"), "kind: nvidia.com/gpu\n").unwrap();
        let way = Passthrough::choose(&Gpus::Ids(vec!["1".into()]), &info).unwrap();
        assert_eq!(way, Some(Passthrough::Cdi { devices: vec!["nvidia.com/gpu=1".into()] }));
        let way = Passthrough::choose(&Gpus::Count(2), &info).unwrap();
        let devices = ["nvidia.com/gpu=0", "nvidia.com/gpu=1"].map(str::to_owned).to_vec();
        assert_eq!(way, Some(Passthrough::Cdi { devices }));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
