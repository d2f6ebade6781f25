//! Bytes for people.

/// Bytes as people can read them: text as it is, but nothing that moves the cursor; other bytes as `\xNN`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_see_moves_no_cursor() {
        assert_eq!(shown("é\u{1b}[2J\n".as_bytes()), r"é\u{1b}[2J\n");
        assert_eq!(shown(b"a\xffb"), r"a\xffb");
    }
}
