//! Sets the commit that `loggos --version` prints: `LOGGOS_COMMIT` if it is set, as for packages; else git's; else
//! "unknown". In a debug build it is not git's, so that a commit does not rebuild the binary and its tests.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=LOGGOS_COMMIT");
    let commit = std::env::var("LOGGOS_COMMIT").ok().filter(|commit| !commit.is_empty());
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
        let commit = commit.as_deref().unwrap_or("debug build");
        println!("cargo::rustc-env=LOGGOS_COMMIT={commit}");
        return;
    }
    let commit = commit.or_else(|| {
        watch("HEAD");
        // HEAD names a branch, whose file or entry changes with each commit.
        if let Some(branch) = git(&["symbolic-ref", "--quiet", "HEAD"]) {
            watch(&branch);
            watch("packed-refs");
        }
        git(&["rev-parse", "--short=12", "HEAD"])
    });
    println!("cargo::rustc-env=LOGGOS_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
}

/// Repeats this build script when a file of the repository changes. A file that does not exist would repeat it always.
fn watch(name: &str) {
    if let Some(path) = git(&["rev-parse", "--git-path", name]).filter(|path| Path::new(path).exists()) {
        println!("cargo::rerun-if-changed={path}");
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
}
