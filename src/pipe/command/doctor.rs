//! `pipe doctor`: is everything there that a run needs, and what to do where it is not.

use std::path::Path;

use pipe_spec::pipeline::Gpus;
use pipe_spec::text::human_bytes;
use serde::Serialize;

use crate::capability;
use crate::card::Card;
use crate::engine::docker::gpu::Passthrough;
use crate::engine::docker::{DockerEngine, Info};
use crate::error::Error;
use crate::image;
use crate::report::{print, print_json};
use crate::run::{absolute, runs_folder};

#[derive(Serialize)]
struct Check {
    name: &'static str,
    /// `ok`, `missing` (something will not work) or `note`.
    status: &'static str,
    found: String,
    hint: Option<String>,
}

pub fn run(json: bool) -> Result<(), Error> {
    let docker = super::runtime()?.block_on(DockerEngine::connect());
    let info = docker.as_ref().map(|engine| engine.info().clone()).unwrap_or_default();
    let checks = [engine(docker.as_ref()), gpu(&info), card(), trainer(), libraries(), memory(), disk()];
    if json {
        print_json(&checks);
        return Ok(());
    }
    for check in checks {
        print(&format!("{:<8} {:<10} {}", check.status, check.name, check.found));
        if let Some(hint) = check.hint {
            print(&format!("{:<8} {:<10} hint: {hint}", "", ""));
        }
    }
    Ok(())
}

fn engine(docker: Result<&DockerEngine, &Error>) -> Check {
    match docker {
        Ok(engine) => {
            let Info { version, api_version, address, .. } = engine.info();
            ok("engine", format!("docker {version}, API {api_version}, at {address}"))
        }
        Err(error) => missing("engine", error),
    }
}

fn gpu(info: &Info) -> Check {
    match Passthrough::choose(&Gpus::Count(1), info) {
        Ok(Some(Passthrough::Cdi { devices })) => ok("gpu", format!("by CDI: {}", devices.join(", "))),
        Ok(Some(Passthrough::NvidiaRuntime { .. })) => ok("gpu", "by the NVIDIA runtime".to_owned()),
        Ok(Some(Passthrough::Devices { devices, .. })) => {
            ok("gpu", format!("as plain devices: {}", devices.join(", ")))
        }
        Ok(None) => note("gpu", "none".to_owned()),
        Err(error) => Check {
            name: "gpu",
            status: "note",
            found: "none, jobs run on the CPU".to_owned(),
            hint: Some(error.to_string()),
        },
    }
}

/// What is free on the card, and who holds the rest.
fn card() -> Check {
    let Some(card) = Card::read(&Gpus::Auto) else {
        return note("card", "NVML finds none".to_owned());
    };
    let Card { name, driver, capability, total, free, holders } = &card;
    let told = capability.map_or(String::new(), |capability| format!(", compute capability {capability}"));
    let memory = format!("{} free of {}", human_bytes(*free), human_bytes(*total));
    let found = format!("{name}, driver {driver}{told}, {memory}");
    let unfit = image::libtorch_cuda(None, false).and_then(|library| capability::check(&card, &library).err());
    if let Some(error) = unfit {
        return Check { name: "card", status: "missing", found, hint: Some(error.to_string()) };
    }
    let who: Vec<String> = holders.iter().map(ToString::to_string).collect();
    let hint = (!who.is_empty()).then(|| format!("held by {}; a run that needs it waits for them", who.join(", ")));
    Check { name: "card", status: "ok", found, hint }
}

fn trainer() -> Check {
    match image::find_trainer() {
        Ok(path) => ok("trainer", path.display().to_string()),
        Err(error) => missing("trainer", &error),
    }
}

fn libraries() -> Check {
    match image::recipe(None) {
        Ok(recipe) => ok("image", format!("{} ({})", recipe.name, human_bytes(recipe.context.size()))),
        Err(error) => missing("image", &error),
    }
}

fn memory() -> Check {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok()
    };
    match (kib("MemAvailable:"), kib("MemTotal:")) {
        (Some(free), Some(total)) => {
            ok("memory", format!("{} free of {}", human_bytes(free << 10), human_bytes(total << 10)))
        }
        _ => note("memory", "unknown".to_owned()),
    }
}

fn disk() -> Check {
    let runs = absolute(&runs_folder());
    let existing = runs.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    match free_space(existing) {
        Some(free) if free < 2 << 30 => Check {
            name: "disk",
            status: "missing",
            found: format!("{} free for {}", human_bytes(free), runs.display()),
            hint: Some("free some space, or choose another folder with PIPE_RUNS".to_owned()),
        },
        Some(free) => ok("disk", format!("{} free for {}", human_bytes(free), runs.display())),
        None => note("disk", format!("cannot tell for {}", runs.display())),
    }
}

fn free_space(path: &Path) -> Option<u64> {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).ok()?;
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends in a zero byte and `stat` is large enough; it is read only when the call succeeded.
    let stat = unsafe {
        if libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) != 0 {
            return None;
        }
        stat.assume_init()
    };
    Some(stat.f_bavail * stat.f_frsize)
}

fn ok(name: &'static str, found: String) -> Check {
    Check { name, status: "ok", found, hint: None }
}

fn note(name: &'static str, found: String) -> Check {
    Check { name, status: "note", found, hint: None }
}

fn missing(name: &'static str, error: &Error) -> Check {
    Check { name, status: "missing", found: error.to_string(), hint: error.hint() }
}
