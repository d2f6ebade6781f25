//! `docs/configuration.md` is generated from the doc comments of the configuration's types, so that it is complete.

use std::fmt::Write as _;
use std::{env, fs};

use crate::house::root;

const SOURCE: &str = "crates/runtime/src/config.rs";
const REFERENCE: &str = "docs/configuration.md";
const UPDATE: &str = "UPDATE_DOCS";

const HEADING: &str = "\
# Configuration reference

The keys of the file that `loggos start --config FILE` reads, in TOML. [`deploy/hosts`](../deploy/hosts) has samples. Unknown keys are
refused, and so are values out of range. A node reads the file when it starts.

<!-- Generated from the doc comments of crates/runtime/src/config.rs:
     UPDATE_DOCS=1 cargo test -p loggos --test cluster configuration_reference -->
";

/// A struct of the source, with its fields.
struct Section {
    name: String,
    fields: Vec<Field>,
}

struct Field {
    key: String,
    kind: String,
    doc: String,
    has_default: bool,
}

/// The structs that are read from a file.
fn sections(source: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    let (mut doc, mut attributes, mut is_read) = (String::new(), String::new(), false);
    for line in source.lines().map(str::trim).take_while(|line| *line != "#[cfg(test)]") {
        if let Some(text) = line.strip_prefix("///") {
            doc.push_str(text);
        } else if line.starts_with("#[") {
            attributes.push_str(line);
        } else {
            let declared = line.strip_prefix("pub(crate) ").or_else(|| line.strip_prefix("pub ")).unwrap_or_default();
            let name = declared.strip_prefix("struct ").and_then(|rest| rest.strip_suffix(" {"));
            if let Some(name) = name.filter(|_| attributes.contains("Deserialize")) {
                is_read = true;
                sections.push(Section { name: name.to_owned(), fields: Vec::new() });
            } else if line == "}" {
                is_read = false;
            } else if let (true, Some((key, kind)), Some(section)) =
                (is_read, declared.split_once(": "), sections.last_mut())
            {
                let field = Field {
                    key: key.to_owned(),
                    kind: kind.trim_end_matches(',').to_owned(),
                    doc: doc.trim().to_owned(),
                    has_default: attributes.contains("serde(default") || kind.starts_with("Option<"),
                };
                section.fields.push(field);
            }
            doc.clear();
            attributes.clear();
        }
    }
    sections
}

/// The name of a type in TOML.
fn toml_type(kind: &str) -> &str {
    match kind {
        "bool" => "boolean",
        "u16" | "u32" | "u64" | "usize" => "integer",
        "Vec<String>" => "list of strings",
        _ => "string",
    }
}

fn reference(source: &str) -> String {
    let sections = sections(source);
    let section = |kind: &str| sections.iter().find(|section| section.name == kind);
    let mut text = HEADING.to_owned();
    let mut tables = vec![(String::new(), section("Config").expect("the root"))];
    while let Some((name, known)) = (!tables.is_empty()).then(|| tables.remove(0)) {
        if !name.is_empty() {
            let _ = write!(text, "\n## `{name}`\n");
        }
        text.push_str("\n| key | type | required | meaning |\n|---|---|---|---|\n");
        for Field { key, kind, doc, has_default } in &known.fields {
            let kind = kind.strip_prefix("Option<").and_then(|kind| kind.strip_suffix('>')).unwrap_or(kind);
            let listed = kind.strip_prefix("Vec<").and_then(|kind| kind.strip_suffix('>')).and_then(&section);
            let required = if *has_default { "no" } else { "yes" };
            let kind = match (listed, section(kind)) {
                (Some(of), _) => {
                    tables.push((format!("[[{key}]]"), of));
                    "tables, below"
                }
                (None, Some(of)) => {
                    tables.push((format!("[{key}]"), of));
                    "table, below"
                }
                (None, None) => toml_type(kind),
            };
            assert!(!doc.is_empty(), "{key} has no doc comment");
            let _ = writeln!(text, "| `{key}` | {kind} | {required} | {doc} |");
        }
    }
    text
}

#[test]
fn configuration_reference_is_current() {
    let read = |path| fs::read_to_string(root().join(path)).unwrap_or_default();
    let wanted = reference(&read(SOURCE));
    if env::var_os(UPDATE).is_some() {
        fs::write(root().join(REFERENCE), &wanted).expect("the reference is written");
    }
    assert!(read(REFERENCE) == wanted, "{REFERENCE} is out of date: run this test with {UPDATE}=1");
}

#[test]
fn alert_rules_match_metrics_and_runbook() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("a text file");
    let rules = read("deploy/prometheus/alerts.yml");
    let sources = ["server/src/metrics.rs", "server/src/calls.rs", "server/src/nbd.rs", "postgres/src/activity.rs"];
    let of_runtime = ["runtime/src/disk_metrics.rs", "endpoints/src/zookeeper/report.rs"];
    let code: String = sources.iter().chain(&of_runtime).map(|path| read(&format!("crates/{path}"))).collect();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names = rules.split(|c| !is_part(c)).filter(|word| word.starts_with("loggos_") || word.starts_with("grpc_"));
    let metrics: Vec<_> = names.filter(|name| *name != "grpc_code").collect();
    assert!(metrics.len() > 10, "{metrics:?}");
    for metric in metrics {
        let name = metric.strip_suffix("_bucket").unwrap_or(metric);
        assert!(code.contains(&format!("\"{name}\"")), "no metric is named {name}");
    }
    let operations = read("docs/operations.md");
    let anchors: Vec<String> = operations
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .map(|heading| heading.to_lowercase().replace(' ', "-").replace('/', ""))
        .collect();
    for line in rules.lines().filter_map(|line| line.trim().strip_prefix("runbook: ")) {
        assert!(anchors.contains(&line.trim_matches('"').to_owned()), "the runbook has no section {line}");
    }
}
