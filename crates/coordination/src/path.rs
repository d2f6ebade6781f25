//! Paths of nodes, as ZooKeeper checks them (`PathUtils`).

use crate::ErrorCode;

pub const ROOT: &str = "/";
/// Nodes that every tree has and that cannot be deleted.
pub const SPECIAL: [&str; 4] = [ROOT, "/zookeeper", "/zookeeper/quota", "/zookeeper/config"];

/// Checks a path.
///
/// # Errors
/// [`ErrorCode::BadArguments`] when it is not absolute, or has an empty or relative component or a forbidden character.
pub fn validate(path: &str) -> Result<(), ErrorCode> {
    let Some(components) = path.strip_prefix('/') else { return Err(ErrorCode::BadArguments) };
    let is_valid = |component: &str| {
        !matches!(component, "" | "." | "..") && component.chars().all(|character| !is_forbidden(character))
    };
    if components.is_empty() || components.split('/').all(is_valid) { Ok(()) } else { Err(ErrorCode::BadArguments) }
}

/// Java checks UTF-16 units, and therefore refuses every character outside the basic multilingual plane, because it is
/// encoded as two surrogates.
const fn is_forbidden(character: char) -> bool {
    matches!(character, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..)
}

/// The parent's path and the node's name. An empty path denotes the root, too. `None` if the path has no slash or
/// contains a null character.
#[must_use]
pub fn split(path: &str) -> Option<(&str, &str)> {
    if path.contains('\0') { None } else { path.rsplit_once('/') }
}

/// The parent's path in its usual form: `/` for the root.
#[must_use]
pub fn parent(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => ROOT,
        Some((parent, _)) => parent,
    }
}

/// The path and those of all its ancestors, from the node itself up to the root.
pub(crate) fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| (*path != ROOT).then(|| parent(path)))
}

/// The path of a node's child.
#[must_use]
pub fn join(parent: &str, name: &str) -> String {
    let parent = parent.trim_end_matches('/');
    format!("{parent}/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_and_invalid_paths() {
        for path in ["/", "/a", "/a/b", "/a./b", "/.a", "/a..", "/...", "/\u{e9}", "/a b", "/\u{ffef}"] {
            assert_eq!(validate(path), Ok(()), "{path}");
        }
        let beyond = "/\u{1f600}";
        for path in [
            "",
            "a",
            "a/b",
            "//",
            "/a/",
            "/a//b",
            "/.",
            "/..",
            "/a/./b",
            "/a/../b",
            "/a/..",
            "/\0",
            "/a\u{1}",
            "/\u{7f}",
            "/\u{9f}",
            "/\u{e000}",
            "/\u{fff0}",
            beyond,
        ] {
            assert_eq!(validate(path), Err(ErrorCode::BadArguments), "{path:?}");
        }
    }

    #[test]
    fn parents_and_ancestors() {
        assert_eq!([split("/a"), split("/a/b"), split("/")], [Some(("", "a")), Some(("/a", "b")), Some(("", ""))]);
        assert_eq!([split("a"), split("/a\0")], [None, None]);
        assert_eq!(ancestors("/a/b").collect::<Vec<_>>(), ["/a/b", "/a", "/"]);
        assert_eq!(ancestors("/").collect::<Vec<_>>(), ["/"]);
        assert_eq!([join("/", "a"), join("/a", "b"), join("", "a")], ["/a", "/a/b", "/a"]);
    }
}
