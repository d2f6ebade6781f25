//! `DECLARE`, `FETCH`, `MOVE` and `CLOSE` of cursors. The parser knows some of their forms only.

use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::clauses::{is_word, name, syntax};
use crate::error::{SqlError, sqlstate};
use crate::statement::Statement;

/// The statement, if it is one of these.
pub(super) fn statement(tokens: &[TokenWithSpan]) -> Result<Option<Statement>, SqlError> {
    let first = tokens.first();
    if is_word(first, "close") {
        let is_all = is_word(tokens.get(1), "all");
        let cursor = if is_all { None } else { Some(name(tokens.get(1))?) };
        return end(tokens, 2).map(|()| Some(Statement::Close(cursor)));
    }
    let is_move = is_word(first, "move");
    if !is_move && !is_word(first, "fetch") {
        return Ok(None);
    }
    let mut at = 1;
    let mut count = Some(1);
    if is_word(tokens.get(at), "next") {
        at += 1;
    } else {
        at += usize::from(is_word(tokens.get(at), "forward"));
        if is_word(tokens.get(at), "all") {
            count = None;
            at += 1;
        } else if let Some(Token::Number(digits, _)) = tokens.get(at).map(|token| &token.token) {
            count = Some(digits.parse().map_err(|_| syntax(tokens.get(at)))?);
            at += 1;
        }
    }
    let other = ["prior", "first", "last", "absolute", "relative", "backward"];
    let is_backward = matches!(tokens.get(at).map(|token| &token.token), Some(Token::Minus));
    if is_backward || at == 1 && tokens.len() > 2 && other.iter().any(|other| is_word(tokens.get(at), other)) {
        let error = SqlError::new(sqlstate::OBJECT_NOT_IN_PREREQUISITE_STATE, "cursor can only scan forward");
        return Err(error.with_hint("Cursors with SCROLL are not supported."));
    }
    if count == Some(0) {
        return Err(SqlError::unsupported("FETCH 0"));
    }
    at += usize::from(["from", "in"].iter().any(|word| is_word(tokens.get(at), word)));
    let cursor = name(tokens.get(at))?;
    end(tokens, at + 1)?;
    Ok(Some(Statement::Fetch { name: cursor, count, is_move }))
}

/// `DECLARE c [BINARY] [ASENSITIVE | INSENSITIVE] [NO SCROLL] CURSOR [WITHOUT HOLD] FOR query`: the name, whether the rows
/// are binary, and the place of the query.
pub(super) fn declared(tokens: &[TokenWithSpan]) -> Result<Option<(String, bool, usize)>, SqlError> {
    if !is_word(tokens.first(), "declare") {
        return Ok(None);
    }
    let cursor = name(tokens.get(1))?;
    let mut is_binary = false;
    let mut at = 2;
    loop {
        let next =
            |words: &[&str]| words.iter().enumerate().all(|(number, word)| is_word(tokens.get(at + number), word));
        if next(&["binary"]) {
            is_binary = true;
            at += 1;
        } else if next(&["insensitive"]) || next(&["asensitive"]) {
            at += 1;
        } else if next(&["no", "scroll"]) {
            at += 2;
        } else if next(&["scroll"]) {
            return Err(SqlError::unsupported("SCROLL"));
        } else if next(&["cursor", "with", "hold"]) {
            return Err(SqlError::unsupported("WITH HOLD"));
        } else if next(&["cursor", "without", "hold", "for"]) {
            return Ok(Some((cursor, is_binary, at + 4)));
        } else if next(&["cursor", "for"]) {
            return Ok(Some((cursor, is_binary, at + 2)));
        } else {
            return Err(syntax(tokens.get(at)));
        }
    }
}

fn end(tokens: &[TokenWithSpan], at: usize) -> Result<(), SqlError> {
    match tokens.get(at) {
        None => Ok(()),
        unexpected => Err(syntax(unexpected)),
    }
}
