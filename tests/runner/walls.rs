//! The walls of the code: no circle of imports between the top-level modules of a crate, and dependencies and engines named only
//! where they belong.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use pipe_spec::pipeline::Arch;

use crate::harness::folder::repository;
use crate::harness::{Needs, Suite};
use crate::source::{Source, has_word};

const CRATES: [&str; 6] = ["pipe-spec", "pipe-model", "pipe-data", "pipe-search", "pipe", "pipe-trainer"];

/// A dependency, and the only part of the sources that may name it.
const DEPENDENCIES: &[(&str, &[&str])] = &[
    ("bollard", &["pipe/engine/docker"]),
    ("clap", &["pipe/cli", "pipe-trainer/cli"]),
    ("clap_complete", &["pipe/cli"]),
    ("clap_mangen", &["pipe/cli"]),
    ("tch", &["pipe-trainer"]),
    ("torch_sys", &["pipe-trainer"]),
    ("tokio", &["pipe"]),
];

/// What reads a pipeline. It is called where the engines are known, so that their sections are known too.
const PIPELINE_READERS: &[&str] = &["Pipeline::parse", "Graph::parse", "Study::parse", "pipeline::schema"];

pub fn tests(suite: &mut Suite) {
    for name in CRATES {
        suite.test(&format!("walls::no_circles::{name}"), Needs::Nothing, move || no_circles(name));
    }
    suite.test("walls::decisions_are_pure", Needs::Nothing, decisions);
    suite.test("walls::dependencies_have_their_place", Needs::Nothing, dependencies);
    suite.test("walls::crates_meet_in_the_spec", Needs::Nothing, manifests);
    suite.test("walls::engines_are_named_in_engine_alone", Needs::Nothing, engines);
    suite.test("walls::engines_do_not_import_what_knows_them", Needs::Nothing, imports_of_engines);
    suite.test("walls::pipelines_are_read_where_engines_are_known", Needs::Nothing, pipeline_readers);
    suite.test("walls::models_are_named_in_their_folders_alone", Needs::Nothing, models);
    suite.test("walls::every_test_file_belongs_to_a_program", Needs::Nothing, test_files);
}

fn sources(name: &str) -> Vec<Source> {
    Source::below(&repository().join("src").join(name))
}

/// The top-level modules that each top-level module imports, with the files that do so.
type Imports = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

fn no_circles(name: &str) {
    let sources = sources(name);
    let modules: BTreeSet<String> = sources.iter().filter_map(|source| source.module().first().cloned()).collect();
    assert!(modules.len() > 3, "src/{name} has only {modules:?}");
    let mut imports = Imports::new();
    for source in &sources {
        let module = source.module();
        let Some(own) = module.first() else { continue };
        let named = top_level_names(&source.code, module.len());
        for other in named.into_iter().filter(|other| other != own && modules.contains(other)) {
            let files = imports.entry(own.clone()).or_default().entry(other).or_default();
            files.insert(source.path.display().to_string());
        }
    }
    let circles: Vec<String> = circles(&modules, &imports).iter().map(|circle| describe(circle, &imports)).collect();
    assert!(circles.is_empty(), "src/{name}: modules import each other:\n{}", circles.join("\n"));
}

/// The names behind `crate::`, and behind so many `super::` that they lead to the root from a module at this depth.
fn top_level_names(code: &str, depth: usize) -> BTreeSet<String> {
    let root = "super::".repeat(depth);
    ["crate::", &root].iter().flat_map(|path| names_behind(code, path)).collect()
}

fn names_behind(code: &str, path: &str) -> Vec<String> {
    let is_own_word = |at: usize| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
    let starts = code.match_indices(path).filter(|(at, _)| is_own_word(*at)).map(|(at, _)| at + path.len());
    starts.flat_map(|at| first_names(&code[at..])).collect()
}

/// The name that follows, or those of a group in braces, without what is nested in them.
fn first_names(rest: &str) -> Vec<String> {
    let name = |text: &str| text.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let Some(group) = rest.strip_prefix('{') else { return vec![name(rest)] };
    let (mut depth, mut names, mut start) = (0, Vec::new(), 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                names.push(name(&group[start..at]));
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    names
}

/// Groups of modules each of which imports all the others, over others or directly.
fn circles(modules: &BTreeSet<String>, imports: &Imports) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<&String, BTreeSet<String>> =
        modules.iter().map(|module| (module, reachable(module, imports))).collect();
    let circle = |module: &String| -> BTreeSet<String> {
        modules
            .iter()
            .filter(|other| reached[module].contains(*other) && reached[other].contains(module))
            .cloned()
            .collect()
    };
    let circles: BTreeSet<BTreeSet<String>> = modules.iter().map(circle).collect();
    circles.into_iter().filter(|circle| circle.len() > 1).collect()
}

fn reachable(module: &str, imports: &Imports) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut waiting = vec![module.to_owned()];
    while let Some(next) = waiting.pop() {
        let others = imports.get(&next).into_iter().flat_map(BTreeMap::keys);
        waiting.extend(others.filter(|other| reached.insert((*other).clone())).cloned());
    }
    reached
}

fn describe(circle: &BTreeSet<String>, imports: &Imports) -> String {
    let mut text = format!("circle of {}\n", circle.iter().cloned().collect::<Vec<_>>().join(", "));
    for module in circle {
        for (other, files) in imports.get(module).into_iter().flatten().filter(|(other, _)| circle.contains(*other)) {
            let files: Vec<&str> = files.iter().map(String::as_str).collect();
            text.push_str(&format!("  {module} -> {other}: {}\n", files.join(", ")));
        }
    }
    text
}

/// Whether the path of a file, with the name of its crate, lies in one of the places; `pipe/cli` is `cli.rs` and `cli/` too.
fn lies_in(path: &Path, places: &[&str]) -> bool {
    let stem = path.with_extension("");
    places.iter().any(|place| stem.starts_with(place))
}

fn dependencies() {
    let mut found = Vec::new();
    for name in CRATES {
        for source in sources(name) {
            let path = Path::new(name).join(&source.path);
            for (word, places) in DEPENDENCIES {
                if lies_in(&path, places) {
                    continue;
                }
                found.extend(
                    source.lines_with(word).iter().map(|(at, line)| format!("src/{}:{at}: {line}", path.display())),
                );
            }
        }
    }
    assert!(found.is_empty(), "named outside of its place ({DEPENDENCIES:?}):\n{}", found.join("\n"));
}

/// The crates depend on each other as the design says, and on nothing that it forbids them.
fn manifests() {
    let own: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("pipe-spec", &[][..]),
        ("pipe-model", &["pipe-spec"][..]),
        ("pipe-data", &["pipe-spec"][..]),
        ("pipe-search", &[][..]),
        ("pipe", &["pipe-data", "pipe-model", "pipe-search", "pipe-spec"][..]),
        ("pipe-trainer", &["pipe-data", "pipe-model", "pipe-spec"][..]),
    ]);
    for name in CRATES {
        let text = std::fs::read_to_string(repository().join("src").join(name).join("Cargo.toml")).unwrap();
        let section = text.split("\n[dependencies]\n").nth(1).unwrap_or_default().split("\n[").next().unwrap();
        let all: BTreeSet<&str> = section.lines().filter_map(|line| line.split(['=', '.', ' ']).next()).collect();
        let crates: Vec<&str> = all.iter().copied().filter(|dependency| CRATES.contains(dependency)).collect();
        assert_eq!(crates, own[name], "the crates that src/{name} depends on");
        for (word, places) in DEPENDENCIES {
            let is_allowed = places.iter().any(|place| place.split('/').next() == Some(name));
            let is_there = all.contains(word.replace('_', "-").as_str());
            assert!(is_allowed || !is_there, "src/{name}/Cargo.toml has {word}");
        }
    }
}

/// An engine as the code names it.
struct EngineWords {
    name: String,
    words: Vec<String>,
    /// How keys of its section begin, where it has one.
    key: Option<String>,
}

/// The engines: the folders and files of `engine/` that hold a registration.
fn engine_words() -> Vec<EngineWords> {
    let sources = sources("pipe").into_iter().filter(|source| source.code.contains("const REGISTRATION: Registration"));
    let words = |source: Source| {
        let name = source.module().get(1).cloned()?;
        let camel: String = name.split('_').map(|word| format!("{}{}", word[..1].to_uppercase(), &word[1..])).collect();
        let words = vec![format!("{camel}Engine"), format!("EngineKind::{camel}"), format!("engine::{name}")];
        let key = source.code.contains("section: Some(").then(|| format!("{name}."));
        Some(EngineWords { name, words, key })
    };
    sources.filter_map(words).collect()
}

impl EngineWords {
    /// Whether a line names the engine or a key of its section; `code` is `text` with blank string literals.
    fn are_in(&self, code: &str, text: &str) -> bool {
        let in_literals = |(c, t): (char, char)| if c == t && c != ' ' { '\n' } else { t };
        let literals: String = code.chars().zip(text.chars()).map(in_literals).collect();
        let is_key = |(at, key): (usize, &str)| {
            !literals[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_')
                && literals[at + key.len()..].starts_with(|c: char| c.is_ascii_lowercase())
        };
        self.words.iter().any(|word| has_word(code, word))
            || literals.split('\n').any(|literal| literal == self.name)
            || self.key.as_ref().is_some_and(|key| literals.match_indices(key.as_str()).any(is_key))
    }
}

fn engines() {
    let engines = engine_words();
    let names: Vec<&str> = engines.iter().map(|engine| engine.name.as_str()).collect();
    let registry = std::fs::read_to_string(repository().join("src/pipe/engine/registry.rs")).unwrap();
    assert_eq!(registry.matches("::REGISTRATION").count(), names.len(), "only {names:?} are searched for");
    let mut found = Vec::new();
    for part in ["pipe", "pipe-spec"] {
        let outside = |source: &Source| part != "pipe" || !source.path.starts_with("engine");
        for source in sources(part).into_iter().filter(outside) {
            for (at, (code, text)) in (1..).zip(source.code.lines().zip(source.text.lines())) {
                if engines.iter().any(|engine| engine.are_in(code, text)) {
                    found.push(format!("src/{part}/{}:{at}: {}", source.path.display(), text.trim()));
                }
            }
        }
    }
    assert!(found.is_empty(), "{} places outside of engine/ name an engine:\n{}", found.len(), found.join("\n"));
}

fn pipeline_readers() {
    let mut found = Vec::new();
    for source in sources("pipe").iter().filter(|source| source.path != Path::new("engine/registry.rs")) {
        for word in PIPELINE_READERS {
            let lines = source.lines_with(word);
            found.extend(lines.iter().map(|(at, line)| format!("src/pipe/{}:{at}: {line}", source.path.display())));
        }
    }
    assert!(
        found.is_empty(),
        "pipelines are read by engine/registry.rs, which knows the engines:\n{}",
        found.join("\n")
    );
}

/// The folder of an engine imports neither the registry nor `report`: it is known to them, not they to it.
fn imports_of_engines() {
    let mut found = Vec::new();
    for source in sources("pipe").iter().filter(|source| source.path.starts_with("engine")) {
        let is_registry = source.path == Path::new("engine/registry.rs");
        for (at, line) in (1..).zip(source.code.lines()) {
            let to_registry = !is_registry && (line.contains("registry::") || line.contains("registry}"));
            if to_registry || line.contains("crate::report") {
                found.push(format!("src/pipe/{}:{at}: {}", source.path.display(), line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "engines import what knows them:\n{}", found.join("\n"));
}

/// A new model is a folder in each crate and a line in each registry: no other file names an architecture.
fn models() {
    let mut places: Vec<String> =
        ["pipe-spec/pipeline/model", "pipe-model/registry", "pipe-trainer/model/registry"].map(str::to_owned).into();
    for entry in std::fs::read_dir(repository().join("src/pipe-trainer/model")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            let name = path.file_name().unwrap().to_str().unwrap();
            places.extend([format!("pipe-model/{name}"), format!("pipe-trainer/model/{name}")]);
        }
    }
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    let variants: Vec<String> = Arch::ALL.iter().map(|arch| format!("Arch::{arch:?}")).collect();
    let (mut found, mut named) = (Vec::new(), BTreeSet::new());
    for name in CRATES {
        for source in sources(name) {
            let path = Path::new(name).join(&source.path);
            for variant in &variants {
                for (at, line) in source.lines_with(variant) {
                    named.insert(variant);
                    if !lies_in(&path, &places) {
                        found.push(format!("src/{}:{at}: {line}", path.display()));
                    }
                }
            }
        }
    }
    assert_eq!(named.len(), variants.len(), "the registries name every architecture");
    assert!(found.is_empty(), "an architecture is named outside of its folder:\n{}", found.join("\n"));
}

/// What reads a file, asks the machine, looks at the clock or waits has no place in a decision.
const IMPURE: &[&str] =
    &["fs", "env", "Instant", "SystemTime", "available_parallelism", "tokio", "rustix", "libc", "async", "Reporter"];

fn decisions() {
    let (mut files, mut found) = (0, Vec::new());
    for source in sources("pipe").iter().filter(|source| source.path.starts_with("execute/decide")) {
        files += 1;
        for (at, line) in IMPURE.iter().flat_map(|word| source.lines_with(word)) {
            found.push(format!("src/pipe/{}:{at}: {line}", source.path.display()));
        }
    }
    assert!(files > 3, "only {files} files in execute/decide");
    assert!(found.is_empty(), "execute/decide is not pure:\n{}", found.join("\n"));
}

/// A test file that no program has as a module would never run, nor would a program that tests/run-suites does not name.
fn test_files() {
    let suites = std::fs::read_to_string(repository().join("tests/run-suites")).unwrap();
    for name in CRATES.into_iter().filter(|name| *name != "pipe-trainer") {
        let folder = repository().join("src").join(name).join("tests");
        let files = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
        for program in files.filter(|file| file.extension().is_some_and(|ending| ending == "rs")) {
            let option = format!("--test {}", program.file_stem().unwrap().to_str().unwrap());
            assert!(suites.contains(&option), "tests/run-suites lacks {option}");
        }
    }
    for (program, folder) in [
        ("tests/runner.rs", "tests/runner"),
        ("tests/training.rs", "tests/training"),
        ("src/pipe-trainer/tests/main.rs", "src/pipe-trainer/tests"),
    ] {
        let text = std::fs::read_to_string(repository().join(program)).unwrap();
        let files = std::fs::read_dir(repository().join(folder)).unwrap().map(|entry| entry.unwrap().path());
        for file in files.filter(|file| file.extension().is_some_and(|ending| ending == "rs")) {
            let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
            assert!(name == "main" || text.contains(&format!("mod {name};\n")), "{program} lacks `mod {name};`");
        }
    }
}
