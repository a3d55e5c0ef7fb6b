//! The origin of libtorch: the torch package of a Python, a source tree or an archive. Its version, and the command that brings
//! another one.

use std::path::Path;

use pipe_spec::LIBTORCH;

use super::elf::Libraries;
use crate::error::Error;
use crate::system::files;

/// The library without which there is no training.
pub const MAIN_LIBRARY: &str = "libtorch_cpu.so";

/// The command that installs packages where pipe is, which the programs of a wheel set: `PYTHON -m pip install`.
const INSTALLER_VARIABLE: &str = "PIPE_INSTALLER";

const MAX_VERSION_BYTES: u64 = 1 << 16;

/// Refuses a torch of another version than the trainer was made for, and a wheel's trainer without one. A trainer that cannot be
/// read is an error of its own.
pub fn check(trainer: &Path) -> Result<(), Error> {
    let Ok(libraries) = Libraries::find(trainer) else { return Ok(()) };
    let Some(folder) = libraries.found.get(MAIN_LIBRARY).and_then(|library| library.parent()) else {
        let lacks = libraries.missing.contains_key(MAIN_LIBRARY) && is_of_wheel(trainer);
        return if lacks { Err(Error::NoTorch { command: install_command("") }) } else { Ok(()) };
    };
    match python_version(folder) {
        Some(version) if version.split('+').next() != Some(LIBTORCH) => {
            let command = install_command("");
            Err(Error::OtherTorch { version, folder: folder.to_owned(), command })
        }
        _ => Ok(()),
    }
}

/// The version of the libtorch in `folder`.
pub fn version(folder: &Path) -> String {
    python_version(folder).unwrap_or_else(|| LIBTORCH.to_owned())
}

/// The version that the torch package of a Python has, with the devices that it was built for: 2.11.0+cu130.
fn python_version(folder: &Path) -> Option<String> {
    let bytes = files::read(&folder.parent()?.join("version.py"), MAX_VERSION_BYTES).ok()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let value = text.lines().find_map(|line| line.strip_prefix("__version__ ="))?;
    Some(value.trim().trim_matches(['\'', '"']).to_owned())
}

/// The way to get the CUDA libraries into `folder`, where libtorch is.
pub fn fetch_cuda(folder: &Path) -> String {
    let fetched = folder.parent().filter(|libtorch| libtorch.join("packages.json").is_file());
    match fetched.and_then(|libtorch| libtorch.parent()?.parent()) {
        // target/libtorch of a source tree.
        Some(tree) => format!("fetch them: `make -C {} libtorch CUDA=1`", tree.display()),
        None if folder.ends_with("lib/pipe") => {
            "install the archive of pipe whose name ends in -cuda (`make dist CUDA=1` makes it)".to_owned()
        }
        None if python_version(folder).is_some() => {
            format!("install torch with them: `{}`", install_command("--force-reinstall "))
        }
        None => format!("put them into {}", folder.display()),
    }
}

fn install_command(options: &str) -> String {
    let installer = std::env::var(INSTALLER_VARIABLE).unwrap_or_else(|_| "python3 -m pip install".to_owned());
    format!("{installer} {options}torch=={LIBTORCH}")
}

fn is_of_wheel(trainer: &Path) -> bool {
    trainer.parent().is_some_and(|folder| folder.ends_with("pipe_train/bin"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_torch_packages() {
        let site = tempfile::tempdir().unwrap();
        let folder = site.path().join("torch/lib");
        std::fs::create_dir_all(&folder).unwrap();
        assert_eq!(version(&folder), LIBTORCH);
        for (text, want) in [
            ("from typing import Optional\n\n__version__ = '2.11.0+cu130'\ndebug = False\n", "2.11.0+cu130"),
            ("__version__ = \"2.12.0\"\n", "2.12.0"),
            ("debug = False\n", LIBTORCH),
        ] {
            std::fs::write(site.path().join("torch/version.py"), text).unwrap();
            assert_eq!(version(&folder), want, "{text}");
        }
    }

    #[test]
    fn the_way_to_the_cuda_libraries() {
        let site = tempfile::tempdir().unwrap();
        let folder = site.path().join("torch/lib");
        std::fs::create_dir_all(&folder).unwrap();
        assert!(fetch_cuda(&folder).starts_with("put them into"));
        assert!(fetch_cuda(Path::new("/opt/pipe/lib/pipe")).contains("ends in -cuda"));
        std::fs::write(site.path().join("torch/version.py"), "__version__ = '2.11.0+cpu'\n").unwrap();
        assert!(fetch_cuda(&folder).contains("pip install --force-reinstall torch==2.11.0`"));
    }
}
