//! Formatting of bytes and numbers for users.

/// Escapes bytes for display: printable text unchanged, control characters and other bytes as `\xNN`.
#[must_use]
pub fn shown(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() {
                text.extend(character.escape_default());
            } else {
                text.push(character);
            }
        }
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

/// A count with its noun: "1 row", "2 rows", "0 copies".
#[must_use]
pub fn counted(count: u64, what: &str) -> String {
    match what.strip_suffix('y') {
        _ if count == 1 => format!("1 {what}"),
        Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{count} {stem}ies"),
        _ => format!("{count} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_text_escapes_control_bytes() {
        assert_eq!(shown("é\u{1b}[2J\n".as_bytes()), r"é\u{1b}[2J\n");
        assert_eq!(shown(b"a\xffb"), r"a\xffb");
    }

    #[test]
    fn count_pluralization() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "row")), ["0 rows", "1 row", "2 rows"]);
        assert_eq!([1, 2].map(|count| counted(count, "copy")), ["1 copy", "2 copies"]);
        assert_eq!(counted(2, "key"), "2 keys");
    }
}
