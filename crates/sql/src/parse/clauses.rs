//! Syntax that PostgreSQL or the parser does not have. It is removed from the tokens, or replaced, before the rest is
//! parsed.

use std::collections::BTreeSet;

use sqlparser::keywords::Keyword;
use sqlparser::tokenizer::{Token, TokenWithSpan, Word};

use crate::error::{SqlError, sqlstate};
use crate::statement::{AsOf, Definition, Statement};
use crate::types::SqlType;
use crate::value::Value;

/// The clauses of a statement.
#[derive(Default)]
pub(super) struct Clauses {
    interleave: Option<(String, bool)>,
    as_of: Option<AsOf>,
}

fn word(token: &TokenWithSpan) -> Option<&Word> {
    match &token.token {
        Token::Word(word) => Some(word),
        _ => None,
    }
}

pub(super) fn is_word(token: Option<&TokenWithSpan>, wanted: &str) -> bool {
    let is_wanted = |word: &Word| word.quote_style.is_none() && word.value.eq_ignore_ascii_case(wanted);
    token.and_then(word).is_some_and(is_wanted)
}

fn starts_with(tokens: &[TokenWithSpan], wanted: &[&str]) -> bool {
    wanted.iter().enumerate().all(|(at, wanted)| is_word(tokens.get(at), wanted))
}

/// A name as PostgreSQL folds it.
pub(super) fn name(token: Option<&TokenWithSpan>) -> Result<String, SqlError> {
    let word = token.and_then(word).ok_or_else(|| syntax(token))?;
    let folded = if word.quote_style.is_some() { word.value.clone() } else { word.value.to_lowercase() };
    Ok(super::convert::truncate(folded))
}

pub(super) fn syntax(token: Option<&TokenWithSpan>) -> SqlError {
    let message = token.map_or_else(
        || "syntax error at end of input".to_owned(),
        |token| format!("syntax error at or near \"{}\"", token.token),
    );
    SqlError::new(sqlstate::SYNTAX_ERROR, message)
}

fn string(token: Option<&TokenWithSpan>) -> Option<&str> {
    match &token?.token {
        Token::SingleQuotedString(text) | Token::EscapedStringLiteral(text) => Some(text),
        _ => None,
    }
}

pub(super) fn take(tokens: &mut Vec<TokenWithSpan>) -> Result<Clauses, SqlError> {
    let mut clauses = Clauses::default();
    replace_fetch(tokens);
    remove_locks(tokens);
    let first = tokens.first().and_then(word).map(|word| word.keyword);
    match first {
        Some(Keyword::CREATE) => {
            clauses.interleave = take_interleave(tokens)?;
            rename_storing(tokens);
            order_sequence_options(tokens);
        }
        Some(Keyword::ALTER) => order_sequence_options(tokens),
        Some(Keyword::COPY) => rename_switches(tokens),
        Some(Keyword::SELECT | Keyword::WITH | Keyword::BEGIN | Keyword::START | Keyword::SET | Keyword::EXPLAIN) => {
            clauses.as_of = take_as_of(tokens)?;
        }
        _ => {}
    }
    Ok(clauses)
}

/// `INTERLEAVE IN PARENT p [ON DELETE CASCADE | ON DELETE NO ACTION]` at the end, after a comma or not.
fn take_interleave(tokens: &mut Vec<TokenWithSpan>) -> Result<Option<(String, bool)>, SqlError> {
    let found = (0..tokens.len()).find(|at| starts_with(&tokens[*at..], &["interleave", "in", "parent"]));
    let Some(start) = found else { return Ok(None) };
    let mut at = start + 3;
    let mut parent = name(tokens.get(at))?;
    at += 1;
    if tokens.get(at).is_some_and(|token| token.token == Token::Period) {
        if parent != "public" {
            let message = format!("schema \"{parent}\" does not exist");
            return Err(SqlError::new(sqlstate::INVALID_SCHEMA_NAME, message));
        }
        parent = name(tokens.get(at + 1))?;
        at += 2;
    }
    let mut cascade = false;
    if starts_with(&tokens[at..], &["on", "delete"]) {
        at += 2;
        if is_word(tokens.get(at), "cascade") {
            cascade = true;
            at += 1;
        } else if starts_with(&tokens[at..], &["no", "action"]) {
            at += 2;
        } else {
            return Err(syntax(tokens.get(at)));
        }
    }
    if at < tokens.len() {
        return Err(syntax(tokens.get(at)));
    }
    let has_comma = start > 0 && tokens[start - 1].token == Token::Comma;
    tokens.truncate(start - usize::from(has_comma));
    Ok(Some((parent, cascade)))
}

/// `CREATE INDEX ... STORING (...)` is Spanner's `INCLUDE`.
fn rename_storing(tokens: &mut [TokenWithSpan]) {
    let is_index = is_word(tokens.get(1), "index") || is_word(tokens.get(2), "index");
    for at in 1..tokens.len() {
        let is_after_list = tokens[at - 1].token == Token::RParen;
        if is_index && is_after_list && is_word(tokens.get(at), "storing") {
            tokens[at].token = Token::make_keyword("INCLUDE");
        }
    }
}

/// The parser knows `FETCH FIRST` with a constant only, so `FETCH FIRST (expression) ROWS ONLY` becomes `LIMIT`.
fn replace_fetch(tokens: &mut Vec<TokenWithSpan>) {
    let mut removed = BTreeSet::new();
    for at in 0..tokens.len().saturating_sub(2) {
        let is_fetch =
            starts_with(&tokens[at..], &["fetch", "first"]) || starts_with(&tokens[at..], &["fetch", "next"]);
        let end = if is_fetch { closing(tokens, at + 2) } else { None };
        if let Some(end) = end
            && ["row", "rows"].iter().any(|rows| starts_with(&tokens[end + 1..], &[rows, "only"]))
        {
            tokens[at].token = Token::make_keyword("LIMIT");
            removed.extend([at + 1, end + 1, end + 2]);
        }
    }
    if !removed.is_empty() {
        let mut places = 0..;
        tokens.retain(|_| places.next().is_none_or(|place| !removed.contains(&place)));
    }
}

/// Without `FROM` there are no rows to lock, and the parser takes `FOR` for an alias.
fn remove_locks(tokens: &mut Vec<TokenWithSpan>) {
    let start = tokens.len().saturating_sub(2);
    let has_lock = ["update", "share"].iter().any(|lock| starts_with(&tokens[start..], &["for", lock]));
    if has_lock && is_word(tokens.first(), "select") && !tokens.iter().any(|token| is_word(Some(token), "from")) {
        tokens.truncate(start);
    }
}

/// The place of the parenthesis that closes the one at this place.
fn closing(tokens: &[TokenWithSpan], start: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(start) {
        match token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return Some(at).filter(|end| *end > start);
        }
    }
    None
}

/// The parser knows `TRUE` and `FALSE` as values of the options of `COPY`, PostgreSQL also `ON` and `OFF`.
fn rename_switches(tokens: &mut [TokenWithSpan]) {
    for at in 1..tokens.len() {
        if !["freeze", "header"].iter().any(|option| is_word(tokens.get(at - 1), option)) {
            continue;
        }
        if is_word(tokens.get(at), "on") {
            tokens[at].token = Token::make_keyword("TRUE");
        } else if is_word(tokens.get(at), "off") {
            tokens[at].token = Token::make_keyword("FALSE");
        }
    }
}

/// The parser expects the options of a sequence in its order; PostgreSQL permits any, and its dumps use another.
fn order_sequence_options(tokens: &mut [TokenWithSpan]) {
    let is_sequence = is_word(tokens.get(1), "sequence");
    let starts = (0..tokens.len()).filter(|at| {
        let is_identity = *at > 0 && is_word(tokens.get(at - 1), "identity");
        (is_identity && tokens[*at].token == Token::LParen) || (is_sequence && *at == 2)
    });
    for start in starts.collect::<Vec<_>>() {
        let end = tokens[start..].iter().position(|token| token.token == Token::RParen);
        let end = end.map_or(tokens.len(), |end| start + end);
        sort_options(&mut tokens[start..end]);
    }
}

fn sort_options(tokens: &mut [TokenWithSpan]) {
    let option = |at: usize| {
        let names = ["increment", "minvalue", "maxvalue", "start", "cache", "cycle", "owned"];
        names.iter().position(|name| is_word(tokens.get(at), name))
    };
    // Tokens before the first option have rank 0. `NO` belongs to the option after it.
    let mut ranks = vec![0; tokens.len()];
    let mut rank = 0;
    for (at, place) in ranks.iter_mut().enumerate().skip(1) {
        let is_no = is_word(tokens.get(at), "no");
        if let Some(found) = option(if is_no { at + 1 } else { at }) {
            rank = found + 1;
        }
        *place = rank;
    }
    let mut ranked: Vec<(usize, TokenWithSpan)> = ranks.into_iter().zip(tokens.iter().cloned()).collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    for (place, (_, token)) in tokens.iter_mut().zip(ranked) {
        *place = token;
    }
}

/// `AS OF [SYSTEM TIME | TIMESTAMP | STALENESS] '...'` at the end. A time that starts with `-` is an interval.
fn take_as_of(tokens: &mut Vec<TokenWithSpan>) -> Result<Option<AsOf>, SqlError> {
    // `OF` can be an alias, so a literal must follow.
    let Some(text) = string(tokens.last()) else { return Ok(None) };
    let length = tokens.len();
    let at_end =
        |words: &[&str]| length.checked_sub(words.len() + 1).filter(|start| starts_with(&tokens[*start..], words));
    let (start, is_staleness) = match [
        at_end(&["as", "of", "system", "time"]),
        at_end(&["as", "of", "timestamp"]),
        at_end(&["as", "of"]),
        at_end(&["as", "of", "staleness"]),
    ] {
        [Some(start), ..] | [_, Some(start), ..] | [_, _, Some(start), _] => (start, text.trim().starts_with('-')),
        [_, _, _, Some(start)] => (start, true),
        _ => return Ok(None),
    };
    let as_of = if is_staleness {
        let text = text.trim();
        let Value::Interval(interval) = SqlType::Interval.parse(text.strip_prefix('-').unwrap_or(text))? else {
            return Err(syntax(tokens.last()));
        };
        let days = i64::from(interval.days).checked_mul(crate::calendar::MICROS_PER_DAY);
        let micros = days.and_then(|micros| micros.checked_add(interval.micros));
        let micros = micros.filter(|micros| *micros >= 0 && interval.months == 0).ok_or_else(|| {
            SqlError::new(sqlstate::INVALID_PARAMETER_VALUE, format!("invalid staleness: \"{text}\""))
        })?;
        AsOf::Staleness(micros)
    } else {
        let Value::Timestamptz(micros) = SqlType::Timestamptz.parse(text)? else {
            return Err(syntax(tokens.last()));
        };
        if matches!(micros, i64::MIN | i64::MAX) {
            return Err(SqlError::new(sqlstate::INVALID_PARAMETER_VALUE, "AS OF needs a finite timestamp"));
        }
        AsOf::Timestamp(micros)
    };
    tokens.truncate(start);
    Ok(Some(as_of))
}

impl Clauses {
    /// Adds the clauses to the statement.
    pub(super) fn apply(self, mut statement: Statement) -> Result<Statement, SqlError> {
        if let Some(interleave) = self.interleave {
            let Statement::Definition(Definition::CreateTable(create)) = &mut statement else {
                return Err(SqlError::new(sqlstate::SYNTAX_ERROR, "only a table can be interleaved"));
            };
            create.interleave = Some(interleave);
        }
        if let Some(as_of) = self.as_of {
            place_as_of(&mut statement, as_of)?;
        }
        Ok(statement)
    }
}

fn place_as_of(statement: &mut Statement, as_of: AsOf) -> Result<(), SqlError> {
    let message = "AS OF is valid only for queries and read-only transactions";
    match statement {
        Statement::Query(_, place) => *place = Some(as_of),
        Statement::Explain { statement, .. } => place_as_of(statement, as_of)?,
        Statement::Begin(modes) | Statement::SetTransaction { modes, session: false }
            if modes.read_only != Some(false) =>
        {
            modes.read_only = Some(true);
            modes.as_of = Some(as_of);
        }
        _ => return Err(SqlError::new(sqlstate::SYNTAX_ERROR, message)),
    }
    Ok(())
}

/// `COMMENT ON CONSTRAINT c ON [DOMAIN] t IS '...'`
fn comment_on_constraint(tokens: &[TokenWithSpan]) -> Result<Statement, SqlError> {
    name(tokens.get(3))?;
    if !is_word(tokens.get(4), "on") {
        return Err(syntax(tokens.get(4)));
    }
    let mut at = 5 + usize::from(is_word(tokens.get(5), "domain"));
    name(tokens.get(at))?;
    at += 1;
    if tokens.get(at).is_some_and(|token| token.token == Token::Period) {
        name(tokens.get(at + 1))?;
        at += 2;
    }
    if !is_word(tokens.get(at), "is") {
        return Err(syntax(tokens.get(at)));
    }
    if string(tokens.get(at + 1)).is_none() && !is_word(tokens.get(at + 1), "null") {
        return Err(syntax(tokens.get(at + 1)));
    }
    match tokens.get(at + 2) {
        None => Ok(Statement::NoEffect("COMMENT")),
        unexpected => Err(syntax(unexpected)),
    }
}

/// Statements that are parsed here as a whole: `VACUUM`, `ANALYZE`, `COMMENT ON CONSTRAINT`, and
/// `CREATE DATABASE [IF NOT EXISTS] d [[WITH] (option = value, ...)]`, `DROP DATABASE [IF EXISTS] d`.
pub(super) fn own_statement(tokens: &[TokenWithSpan]) -> Result<Option<Statement>, SqlError> {
    if starts_with(tokens, &["vacuum"]) {
        return Ok(Some(Statement::NoEffect("VACUUM")));
    }
    if starts_with(tokens, &["analyze"]) {
        return Ok(Some(Statement::NoEffect("ANALYZE")));
    }
    if starts_with(tokens, &["comment", "on", "constraint"]) {
        return comment_on_constraint(tokens).map(Some);
    }
    if starts_with(tokens, &["drop", "database"]) {
        let if_exists = starts_with(&tokens[2..], &["if", "exists"]);
        let at = if if_exists { 4 } else { 2 };
        let name = name(tokens.get(at))?;
        return match tokens.get(at + 1) {
            None => Ok(Some(Statement::DropDatabase { name, if_exists })),
            unexpected => Err(syntax(unexpected)),
        };
    }
    if !starts_with(tokens, &["create", "database"]) {
        return Ok(None);
    }
    let if_not_exists = starts_with(&tokens[2..], &["if", "not", "exists"]);
    let mut at = if if_not_exists { 5 } else { 2 };
    let database = name(tokens.get(at))?;
    at += 1;
    at += usize::from(is_word(tokens.get(at), "with"));
    let mut options = Vec::new();
    let has_list = tokens.get(at).is_some_and(|token| token.token == Token::LParen);
    at += usize::from(has_list);
    while at < tokens.len() && tokens[at].token != Token::RParen {
        let option = name(tokens.get(at))?;
        at += 1;
        at += usize::from(tokens.get(at).is_some_and(|token| token.token == Token::Eq));
        let value = match tokens.get(at).map(|token| &token.token) {
            Some(Token::Number(number, _)) => number.clone(),
            Some(Token::Word(word)) => word.value.clone(),
            _ => string(tokens.get(at)).ok_or_else(|| syntax(tokens.get(at)))?.to_owned(),
        };
        options.push((option, value));
        at += 1;
        at += usize::from(tokens.get(at).is_some_and(|token| token.token == Token::Comma));
    }
    at += usize::from(has_list && tokens.get(at).is_some_and(|token| token.token == Token::RParen));
    if at < tokens.len() || (has_list && tokens.last().is_none_or(|token| token.token != Token::RParen)) {
        return Err(syntax(tokens.get(at)));
    }
    Ok(Some(Statement::CreateDatabase { name: database, if_not_exists, options }))
}
