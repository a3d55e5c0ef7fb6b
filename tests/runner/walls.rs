//! The walls of the code: no circle of imports between the modules of a folder, and dependencies and engines named only
//! where they belong.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use pipe_spec::pipeline::Arch;

use crate::harness::folder::repository;
use crate::harness::{Needs, Suite};
use crate::source::{Source, has_word};

pub const CRATES: [&str; 7] =
    ["pipe-spec", "pipe-model", "pipe-data", "pipe-search", "pipe-job", "pipe", "pipe-trainer"];

/// A dependency, and the only part of the sources that may name it.
const DEPENDENCIES: &[(&str, &[&str])] = &[
    ("axum", &["pipe/ui"]),
    ("bollard", &["pipe/engine/docker"]),
    ("clap", &["pipe/cli", "pipe-trainer/cli"]),
    ("clap_complete", &["pipe/cli"]),
    ("clap_mangen", &["pipe/cli"]),
    ("k8s_openapi", &["pipe/engine/kubernetes"]),
    ("kube", &["pipe/engine/kubernetes"]),
    ("object_store", &["pipe/bucket"]),
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
    suite.test("walls::circles_are_found", Needs::Nothing, circles_are_found);
    suite.test("walls::decisions_are_pure", Needs::Nothing, decisions);
    suite.test("walls::dependencies_have_their_place", Needs::Nothing, dependencies);
    suite.test("walls::crates_meet_in_the_spec", Needs::Nothing, manifests);
    suite.test("walls::engines_are_named_in_engine_alone", Needs::Nothing, engines);
    suite.test("walls::engines_do_not_import_what_knows_them", Needs::Nothing, imports_of_engines);
    suite.test("walls::pipelines_are_read_where_engines_are_known", Needs::Nothing, pipeline_readers);
    suite.test("walls::models_are_named_in_their_folders_alone", Needs::Nothing, models);
    suite.test("walls::every_test_file_belongs_to_a_program", Needs::Nothing, test_files);
    suite.test("walls::the_security_page_names_tests_that_exist", Needs::Nothing, security_page);
}

fn sources(name: &str) -> Vec<Source> {
    Source::below(&repository().join("src").join(name))
}

/// The modules of a folder that each module of it imports, with the files that do so.
type Imports = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// A path from the root of a crate.
type ModulePath = Vec<String>;

fn no_circles(name: &str) {
    let sources = sources(name);
    assert!(sources.len() > 3 || name == "pipe-job", "src/{name} has only {} files", sources.len());
    let circles = circles_in(&sources);
    assert!(circles.is_empty(), "src/{name}: modules import each other:\n{}", circles.join("\n"));
}

/// The circles between the modules of a folder, for every folder of a crate. A parent that imports its children is no circle.
fn circles_in(sources: &[Source]) -> Vec<String> {
    let tree = ModuleTree::read(sources);
    let mut folders: BTreeMap<ModulePath, Imports> = BTreeMap::new();
    for source in sources {
        let own = source.module();
        for path in imported_paths(source) {
            let other = tree.resolve(&path, 0);
            let shared = own.iter().zip(&other).take_while(|(own, other)| own == other).count();
            if let (Some(from), Some(to)) = (own.get(shared), other.get(shared)) {
                let imports = folders.entry(own[..shared].to_vec()).or_default();
                let files = imports.entry(from.clone()).or_default().entry(to.clone()).or_default();
                files.insert(source.path.display().to_string());
            }
        }
    }
    folders.values().flat_map(|imports| circles(imports).into_iter().map(|circle| describe(&circle, imports))).collect()
}

/// The modules of a crate, and the names that `use` brings into them.
struct ModuleTree {
    modules: BTreeSet<ModulePath>,
    imported: BTreeMap<ModulePath, ModulePath>,
}

impl ModuleTree {
    fn read(sources: &[Source]) -> Self {
        let modules: BTreeSet<ModulePath> = sources.iter().map(Source::module).collect();
        let mut imported = BTreeMap::new();
        for source in sources {
            let own = source.module();
            for (mut path, name) in starts_of(&source.code, "use ").flat_map(|at| paths_at(&source.code[at..])) {
                let is_child = |first: &String| modules.contains(&[own.clone(), vec![first.clone()]].concat());
                if path.first().is_some_and(is_child) {
                    path.insert(0, "self".to_owned());
                }
                if let Some(path) = from_root(&own, path) {
                    imported.insert([own.clone(), vec![name]].concat(), path);
                }
            }
        }
        Self { modules, imported }
    }

    /// The module that holds what a path leads to, over at most eight re-exports.
    fn resolve(&self, path: &[String], re_exports: usize) -> ModulePath {
        let is_module = |length: &usize| self.modules.contains(&path[..*length]);
        let length = (1..=path.len()).take_while(is_module).count();
        let imported = path.get(..=length).and_then(|name| self.imported.get(name));
        match imported {
            Some(target) if re_exports < 8 => self.resolve(&[target, &path[length + 1..]].concat(), re_exports + 1),
            _ => path[..length].to_vec(),
        }
    }
}

/// The paths of a source that begin with `crate`, `super` or `self`.
fn imported_paths(source: &Source) -> Vec<ModulePath> {
    let starts = ["crate::", "super::", "self::"]
        .into_iter()
        .flat_map(|word| starts_of(&source.code, word).map(move |at| at - word.len()));
    let paths = starts.flat_map(|at| paths_at(&source.code[at..]));
    paths.filter_map(|(path, _)| from_root(&source.module(), path)).collect()
}

/// Where a word that stands at the beginning of a path ends.
fn starts_of<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_own_word = |at: usize| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
    code.match_indices(word).filter(move |(at, _)| is_own_word(*at)).map(|(at, _)| at + word.len())
}

/// A path of the module `own` from the root of the crate; nothing for a path into another crate.
fn from_root(own: &[String], path: ModulePath) -> Option<ModulePath> {
    let up = path.iter().take_while(|name| *name == "super").count();
    let (base, skipped) = match path.first()?.as_str() {
        "crate" => (0, 1),
        "self" => (own.len(), 1),
        "super" => (own.len().checked_sub(up)?, up),
        _ => return None,
    };
    Some([&own[..base], &path[skipped..]].concat())
}

/// The path that stands here, or those of its group in braces, each with the name that `use` gives it.
fn paths_at(text: &str) -> Vec<(ModulePath, String)> {
    let text = text.trim_start();
    if let Some(group) = text.strip_prefix('{') {
        return group_items(group).into_iter().flat_map(paths_at).collect();
    }
    let length = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, rest) = (text[..length].to_owned(), &text[length..]);
    let below = rest.strip_prefix("::").map(paths_at).unwrap_or_default();
    if name.is_empty() {
        Vec::new()
    } else if below.is_empty() {
        let other_name = rest.strip_prefix(" as ").and_then(|rest| paths_at(rest).pop());
        vec![(vec![name.clone()], other_name.map_or(name, |(_, other)| other))]
    } else {
        let whole = |(path, known): (ModulePath, String)| match path[0].as_str() {
            // `use a::{self}` brings in `a`.
            "self" => (vec![name.clone()], if known == "self" { name.clone() } else { known }),
            _ => ([vec![name.clone()], path].concat(), known),
        };
        below.into_iter().map(whole).collect()
    }
}

/// What stands between the commas of a group, up to the brace that ends it.
fn group_items(group: &str) -> Vec<&str> {
    let (mut depth, mut items, mut start) = (0, Vec::new(), 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                items.push(&group[start..at]);
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    items
}

/// Groups of modules each of which imports all the others, over others or directly.
fn circles(imports: &Imports) -> BTreeSet<BTreeSet<String>> {
    let reached: BTreeMap<&String, BTreeSet<String>> =
        imports.keys().map(|module| (module, reachable(module, imports))).collect();
    let circle = |module: &String| -> BTreeSet<String> {
        let is_in_it = |other: &&String| reached[module].contains(*other) && reached[other].contains(module);
        imports.keys().filter(is_in_it).cloned().collect()
    };
    imports.keys().map(circle).filter(|circle| circle.len() > 1).collect()
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

/// Made-up trees of files: those with a circle, and how it is described.
fn circles_are_found() {
    let tree = |files: &[(&str, &str)]| {
        let source = |(path, code): &(&str, &str)| Source {
            path: path.into(),
            text: (*code).to_owned(),
            code: (*code).to_owned(),
        };
        circles_in(&files.iter().map(source).collect::<Vec<_>>())
    };
    let parent = ("a/mod.rs", "mod b;\nmod c;\npub use b::{B, Other as Another};\nuse c::C;\nuse crate::far::Far;");
    for (what, b, c) in [
        ("modules", "use super::c;", "use super::b::B;"),
        ("names that the parent re-exports", "use super::C;", "use super::{B, far};"),
        ("a name that is given another", "use super::C;", "use super::Another;"),
        ("groups, and paths in code", "use crate::{a::{c::{self, C}}, far};", "fn f() { super::b::f() }"),
        ("a folder and a path from the root", "use crate::a::c::d::D;", "fn f(x: &crate::a::B) {}"),
    ] {
        let found = tree(&[
            ("lib.rs", "mod a;\nmod far;"),
            parent,
            ("a/b.rs", b),
            ("a/c/mod.rs", c),
            ("a/c/d.rs", ""),
            ("far.rs", ""),
        ]);
        assert_eq!(found, ["circle of b, c\n  b -> c: a/b.rs\n  c -> b: a/c/mod.rs\n"], "{what}");
    }
    for (what, b, c) in [
        ("one imports the other", "use super::c::C;", "use super::{Far, f};"),
        ("children and what the parent has", "use self::d::D;\nuse super::f;", "use super::B;"),
        ("words that only look so", "use other::c::C;", "fn f() { my_super::b::f() }"),
    ] {
        let found = tree(&[("lib.rs", "mod a;\nmod far;"), parent, ("a/b.rs", b), ("a/c.rs", c), ("far.rs", "")]);
        assert!(found.is_empty(), "{what}: {found:?}");
    }
    let found = tree(&[
        ("a.rs", "use crate::b;"),
        ("b.rs", "use super::c::C;"),
        ("c/mod.rs", ""),
        ("c/d.rs", "use super::super::a;"),
    ]);
    assert_eq!(found.len(), 1, "over three modules at the root: {found:?}");
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
        ("pipe-job", &[][..]),
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

/// The tests in the last column of the table: registered by that name, a function, or a case of the storm.
fn security_page() {
    let page = std::fs::read_to_string(repository().join("docs/security.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| ")).skip(1);
    let last = rows.filter_map(|row| row.rsplit('|').nth(1));
    let names: Vec<&str> = last.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert!(names.len() > 20, "{names:?}");
    let mut texts = String::new();
    let mut folders = vec![repository().join("tests"), repository().join("src")];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs" || ending == "py") {
                texts.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }
    let is_there = |name: &str| {
        let in_module = name.split_once("::").map_or(name, |(_, function)| function);
        let ways = [format!("\"{name}"), format!("\"{in_module}\""), format!("fn {in_module}()")];
        ways.iter().any(|way| texts.contains(way))
    };
    let missing: Vec<&str> =
        names.iter().map(|name| name.trim_end_matches('*')).filter(|name| !is_there(name)).collect();
    assert!(missing.is_empty(), "docs/security.md names tests that are not there: {missing:?}");
}
