//! The schema as a file of this machine, for editors: installed beside `pipe`, or else written to the cache folder.

use std::path::{Path, PathBuf};

use crate::engine::registry;
use crate::system::digests::cache_folder;
use crate::system::files::write_json;

/// Below the folder that holds `bin`, where `make install` puts it.
const INSTALLED: &str = "share/pipe/pipelines/schema.json";

/// The line that tells editors with a YAML language server which schema a pipeline has; empty where no file can be had.
pub fn editor_line() -> String {
    let path = installed().or_else(cached);
    path.map_or(String::new(), |path| format!("# yaml-language-server: $schema={}\n", path.display()))
}

fn installed() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let path = program.parent().and_then(Path::parent)?.join(INSTALLED);
    path.is_file().then_some(path)
}

/// Written by each `pipe init`, so that it is that of this version.
fn cached() -> Option<PathBuf> {
    let folder = std::path::absolute(cache_folder()?).ok()?;
    std::fs::create_dir_all(&folder).ok()?;
    let path = folder.join("schema.json");
    write_json(&path, &registry::pipeline_schema()).ok()?;
    Some(path)
}
