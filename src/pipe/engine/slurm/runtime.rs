//! What runs containers on the nodes, and how the script calls it.

use std::path::{Path, PathBuf};

use pipe_spec::pipeline::{ContainerRuntime, Image};

use super::programs;
use super::script::Program;
use super::trainer_folder::{self, TRAINER};
use crate::engine::{JobProgram, Launch};
use crate::error::Error;

/// The first that is here, unless the pipeline names one.
pub fn choose(wanted: Option<ContainerRuntime>) -> ContainerRuntime {
    if let Some(wanted) = wanted {
        return wanted;
    }
    match () {
        () if has_pyxis() => ContainerRuntime::Pyxis,
        () if here("apptainer") || here("singularity") => ContainerRuntime::Apptainer,
        () if here("ch-run") => ContainerRuntime::Charliecloud,
        () => ContainerRuntime::None,
    }
}

fn here(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

/// The plugin adds options to srun.
fn has_pyxis() -> bool {
    programs::call("srun", &["--help".to_owned()]).is_ok_and(|help| help.contains("--container-image"))
}

/// What a job runs in.
pub struct Root {
    pub runtime: ContainerRuntime,
    /// The folder of the trainer, absent for a command without a container.
    pub folder: Option<PathBuf>,
    /// An image that the pipeline names.
    pub image: Option<String>,
}

/// Refuses an image that the runtime cannot use.
pub fn check_image(runtime: ContainerRuntime, image: Option<&Image>) -> Result<(), Error> {
    let hint = |text: &str| {
        Err(Error::JobRefused {
            engine: super::NAME,
            said: format!("container.image cannot be used with slurm.containers: {}", runtime.name()),
            hint: text.to_owned(),
        })
    };
    match (runtime, image) {
        (_, None) | (ContainerRuntime::Pyxis | ContainerRuntime::Apptainer, Some(Image::Existing(_))) => Ok(()),
        (ContainerRuntime::None, Some(_)) => hint("leave it out: the trainer runs as it is, and so does a command"),
        (ContainerRuntime::Charliecloud, Some(_)) => {
            hint("leave it out: the trainer has an image of its own; a command runs with `containers: none`")
        }
        (_, Some(Image::Dockerfile(_))) => {
            hint("build it where there is a container engine, and give its name with a tag that the nodes can pull")
        }
    }
}

/// The program of a job as the script starts it.
pub fn program(root: &Root, launch: &Launch) -> Result<Program, Error> {
    let own = match (&launch.program, root.runtime) {
        (JobProgram::Command(program), _) => program.clone(),
        (JobProgram::Trainer, ContainerRuntime::None) => in_folder(root, TRAINER),
        (JobProgram::Trainer, _) => format!("/{TRAINER}"),
    };
    let own = std::iter::once(own).chain(launch.args.iter().cloned());
    let pairs = || launch.mounts.iter().chain(&launch.writable);
    let folder = root.folder.clone().unwrap_or_default();
    let image = |prefix: &str| match &root.image {
        Some(name) => format!("{prefix}{name}"),
        None => folder.display().to_string(),
    };
    // What is only read cannot be written.
    let binds = |flag: &str| {
        let bind = |(host, mounted): &(PathBuf, PathBuf)| format!("{flag}{}:{}", host.display(), mounted.display());
        let read = launch.mounts.iter().map(|pair| format!("{}:ro", bind(pair)));
        read.chain(launch.writable.iter().map(bind)).collect::<Vec<_>>()
    };
    if let Some((host, _)) = pairs().find(|(host, _)| has_separator(host) && root.runtime != ContainerRuntime::None) {
        return Err(Error::JobRefused {
            engine: super::NAME,
            said: format!("{} has a colon or a comma in its name, which cannot be mounted", host.display()),
            hint: "rename it, or run without a container: --set slurm.containers=none".to_owned(),
        });
    }
    let (mut words, mut srun) = (Vec::new(), Vec::new());
    match root.runtime {
        ContainerRuntime::None => {}
        ContainerRuntime::Charliecloud => {
            pairs().try_for_each(|(host, mounted)| trainer_folder::make_mount_point(&folder, host, mounted))?;
            words.extend(["ch-run", "--unset-env=LD_LIBRARY_PATH", "--private-tmp"].map(str::to_owned));
            words.extend(pairs().map(|(host, mounted)| format!("--bind={}:{}", host.display(), mounted.display())));
            words.extend(launch.work_folder.iter().map(|folder| format!("--cd={}", folder.display())));
            words.extend([image(""), "--".to_owned()]);
        }
        ContainerRuntime::Apptainer => {
            let program = if here("apptainer") || !here("singularity") { "apptainer" } else { "singularity" };
            words.extend([program, "exec", "--contain", "--no-home", "--nv"].map(str::to_owned));
            words.extend(binds("--bind="));
            words.extend(launch.work_folder.iter().map(|folder| format!("--pwd={}", folder.display())));
            words.push(image("docker://"));
        }
        ContainerRuntime::Pyxis => {
            srun.push(format!("--container-image={}", archive_or_image(root)?));
            srun.push(format!("--container-mounts={}", binds("").join(",")));
            srun.extend(launch.work_folder.iter().map(|folder| format!("--container-workdir={}", folder.display())));
        }
    }
    words.extend(own);
    Ok(Program { words, srun })
}

fn has_separator(path: &Path) -> bool {
    path.to_string_lossy().contains([':', ','])
}

/// Pyxis takes an image by name, or an archive.
fn archive_or_image(root: &Root) -> Result<String, Error> {
    match (&root.image, &root.folder) {
        (Some(name), _) => Ok(name.clone()),
        (None, Some(folder)) => Ok(trainer_folder::archive(folder)?.display().to_string()),
        (None, None) => Ok(String::new()),
    }
}

fn in_folder(root: &Root, path: &str) -> String {
    root.folder.as_deref().unwrap_or(Path::new("/")).join(path).display().to_string()
}
