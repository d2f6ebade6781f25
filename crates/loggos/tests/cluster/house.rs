//! The rules of the workspace: permitted dependencies between crates, and APIs that pure crates must not use. The rules
//! are read from ARCHITECTURE.md, so that document and code cannot diverge.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use base::canary::Bug;
use serde_json::Value;
use sim::campaign::FOUND_BY_TESTS;

const LINES_MAX: usize = 800;

pub(crate) fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the workspace is there")
}

fn architecture() -> String {
    fs::read_to_string(root().join("ARCHITECTURE.md")).expect("there is an ARCHITECTURE.md")
}

/// The words in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The cells of the table with this header prefix.
fn table<'a>(text: &'a str, header: &str) -> Vec<Vec<&'a str>> {
    let rows = text.lines().skip_while(|line| !line.starts_with(header)).skip(2);
    let rows: Vec<_> =
        rows.take_while(|line| line.starts_with('|')).map(|line| line.split('|').map(str::trim).collect()).collect();
    assert!(!rows.is_empty(), "ARCHITECTURE.md has no table {header}");
    rows
}

/// The crates in the order of the map, each with its permitted dependencies.
fn map(text: &str) -> Vec<(&str, BTreeSet<&str>)> {
    table(text, "| crate | what lives there |")
        .into_iter()
        .map(|row| (quoted(row[1]).next().expect("a crate's name"), quoted(row[3]).collect()))
        .collect()
}

/// The crates without clock, IO, threads or randomness.
fn pure(text: &str) -> Vec<&str> {
    let line = text.lines().find(|line| line.starts_with("*The pure crates* are"));
    quoted(line.expect("ARCHITECTURE.md names the pure crates")).collect()
}

/// The workspace according to cargo.
fn packages() -> Vec<Value> {
    let mut cargo = Command::new(option_env!("CARGO").unwrap_or("cargo"));
    cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(root());
    let output = cargo.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    metadata["packages"].as_array().expect("an array").clone()
}

/// The names of a package's dependencies, for its tests only or otherwise.
fn dependencies(package: &Value, for_tests: bool) -> BTreeSet<&str> {
    let all = package["dependencies"].as_array().expect("an array").iter();
    let some = all.filter(|dependency| (dependency["kind"] == "dev") == for_tests);
    some.map(|dependency| dependency["name"].as_str().expect("a name")).collect()
}

#[test]
fn crate_dependencies_match_architecture() {
    let text = architecture();
    let map = map(&text);
    let packages = packages();
    let name_of = |package: &Value| package["name"].as_str().expect("a name").to_owned();
    let names: BTreeSet<String> = packages.iter().map(name_of).collect();
    let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(map.iter().map(|(name, _)| *name).collect::<BTreeSet<_>>(), names, "the map has other crates");
    assert_eq!(map.len(), names.len(), "the map names a crate twice");
    for package in &packages {
        let name = name_of(package);
        let place = map.iter().position(|(other, _)| *other == name).expect("it is in the map");
        let known: BTreeSet<_> = dependencies(package, false).intersection(&names).copied().collect();
        assert_eq!(known, map[place].1, "what {name} depends on, and what the map says");
        let in_tests: BTreeSet<_> = dependencies(package, true).intersection(&names).copied().collect();
        let is_above = |other: &&str| map[..place].iter().any(|(above, _)| above == other);
        let below: Vec<_> = known.union(&in_tests).filter(|other| !is_above(other)).collect();
        assert!(below.is_empty(), "{name} depends on {below:?}, which are not above it");
    }
}

#[test]
fn external_dependencies_are_documented() {
    let text = architecture();
    let named: BTreeSet<&str> = table(&text, "| crate | why |").into_iter().flat_map(|row| quoted(row[1])).collect();
    let packages = packages();
    let used =
        packages.iter().flat_map(|package| dependencies(package, false).into_iter().chain(dependencies(package, true)));
    let ours: BTreeSet<&str> = map(&text).into_iter().map(|(name, _)| name).collect();
    let used: BTreeSet<&str> = used.filter(|name| !ours.contains(name)).collect();
    assert_eq!(used, named);
}

#[test]
fn workspace_lints_forbid_unsafe() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("there is a manifest");
    let manifest: toml::Table = manifest.parse().expect("it is TOML");
    let lints = &manifest["workspace"]["lints"]["rust"];
    assert_eq!(lints["unsafe_code"].as_str(), Some("forbid"));
    for package in packages() {
        let (name, path) = (&package["name"], package["manifest_path"].as_str().expect("a path"));
        let manifest = fs::read_to_string(path).expect("a manifest");
        let manifest: toml::Table = manifest.parse().expect("it is TOML");
        assert_eq!(manifest["lints"]["workspace"].as_bool(), Some(true), "{name}");
    }
}

/// All Rust sources, relative to the workspace: from git, or from the file system without git.
fn sources() -> Vec<PathBuf> {
    let mut git = Command::new("git");
    git.args(["ls-files", "--cached", "--others", "--exclude-standard", "crates"]).current_dir(root());
    let listed = git.output().ok().filter(|output| output.status.success()).map(|output| output.stdout);
    let mut all: Vec<PathBuf> = match listed {
        Some(listed) if !listed.is_empty() => String::from_utf8_lossy(&listed).lines().map(PathBuf::from).collect(),
        _ => walk(&root().join("crates"))
            .iter()
            .filter_map(|path| Some(path.strip_prefix(root()).ok()?.into()))
            .collect(),
    };
    all.retain(|path| path.extension().is_some_and(|extension| extension == "rs") && root().join(path).exists());
    assert!(all.len() > 50, "only {} sources were found", all.len());
    all
}

fn walk(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

fn is_test(path: &Path) -> bool {
    path.components().any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "tests.rs" | "testing.rs")))
}

/// The lines of code with their numbers, without comments and without a test module at the end of the file.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    (1..).zip(text[..end].lines()).filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// Occurrences of the words in the code of the selected sources.
fn found(words: &[&str], is_chosen: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for path in sources().into_iter().filter(|path| is_chosen(path)) {
        let text = fs::read_to_string(root().join(&path)).expect("a source is text");
        for (number, line) in code(&text) {
            let of_line = words.iter().filter(|word| line.contains(**word));
            found.extend(of_line.map(|word| format!("{}:{number}: {word}", path.display())));
        }
    }
    found
}

#[test]
fn planted_bugs_are_documented_and_tested() {
    let guarantees = fs::read_to_string(root().join("docs/guarantees.md")).expect("there is a list of guarantees");
    let named: BTreeSet<&str> = quoted(&guarantees).collect();
    let unnamed: Vec<&str> = Bug::ALL.iter().map(|bug| bug.name()).filter(|name| !named.contains(name)).collect();
    assert_eq!(unnamed, [""; 0], "docs/guarantees.md doesn't name them");
    let tests: Vec<String> = sources()
        .iter()
        .filter(|path| is_test(path))
        .map(|path| fs::read_to_string(root().join(path)).expect("a source is text"))
        .collect();
    for (bug, test) in FOUND_BY_TESTS {
        assert!(named.contains(test), "docs/guarantees.md doesn't name {test}");
        let exists = tests.iter().any(|text| text.contains(&format!("#[test]\nfn {test}()")));
        assert!(exists, "the test of {} is gone: {test}", bug.name());
    }
}

#[test]
fn file_size_limit_and_no_todo() {
    let sources = sources();
    let lines = |path: &PathBuf| fs::read_to_string(root().join(path)).expect("a source is text").lines().count();
    let large: Vec<_> = sources.iter().filter(|path| !is_test(path) && lines(path) > LINES_MAX).collect();
    assert!(large.is_empty(), "more than {LINES_MAX} lines: {large:?}");
    let undone = [concat!("to", "do!("), concat!("db", "g!("), concat!("unimple", "mented!(")];
    assert_eq!(found(&undone, |_| true), [""; 0]);
}

#[test]
fn pure_crates_avoid_io_and_nondeterminism() {
    let forbidden = [
        "std::time",
        "Instant::",
        "SystemTime",
        "std::fs",
        "std::net",
        "std::thread",
        "std::process",
        "std::env",
        "std::os",
        "std::io::std",
        "tokio",
        "mio::",
        "rustix",
        "async ",
        "rand::",
        "thread_rng",
        "getrandom",
        "RandomState",
        "HashMap",
        "HashSet",
        "println!",
        "unsafe ",
    ];
    let text = architecture();
    let pure = pure(&text);
    let is_pure = |path: &Path| {
        pure.iter().any(|name| path.starts_with(Path::new("crates").join(name).join("src"))) && !is_test(path)
    };
    assert_eq!(found(&forbidden, is_pure), [""; 0]);
}
