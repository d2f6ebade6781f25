//! Parsing of SQL text: PostgreSQL's syntax, and `INTERLEAVE IN PARENT`, `STORING`, `AS OF` and the options of
//! `CREATE DATABASE`.
//!
//! The depth of all syntax trees is limited, so that no later work on them, not even dropping them, overflows the
//! stack: nesting by the parser, and chains of operators (`a + b + ...`, `a OR b OR ...`), which are nested trees
//! too, before it.

mod clauses;
mod convert;
mod cursors;
mod definitions;
mod dialect;
mod limits;
mod types;

use std::ops::Range;

use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer};

use dialect::OwnDialect;

pub use convert::{fold, simple_name};
pub use types::sql_type;

use crate::error::{SqlError, sqlstate};
use crate::statement::Statement;

pub(crate) use base::limits::sql::NESTING_MAX;

/// A statement of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    pub statement: Statement,
    /// Its place in the text, in bytes.
    pub place: Range<usize>,
}

const DIALECT: OwnDialect = OwnDialect;

/// Parses the statements of a text, which semicolons separate.
///
/// # Errors
/// 42601 with the position for invalid syntax; 0A000 for syntax of features that Loggos does not have; 54000 and 54001
/// if the text is too long or a statement too complex.
pub fn parse(text: &str) -> Result<Vec<Parsed>, SqlError> {
    limits::check_size(text)?;
    let lines = Lines::new(text);
    let tokens = Tokenizer::new(&DIALECT, text).tokenize_with_location().map_err(|error| {
        let message = match &error.message {
            message if message.starts_with("Unterminated") => message.to_ascii_lowercase(),
            message => format!("syntax error: {message}"),
        };
        SqlError::new(sqlstate::SYNTAX_ERROR, message).at(lines.position(error.location))
    })?;
    let mut statements = Vec::new();
    for tokens in tokens.split(|token| token.token == Token::SemiColon) {
        let is_code = |token: &&TokenWithSpan| !matches!(token.token, Token::Whitespace(_) | Token::EOF);
        let code: Vec<TokenWithSpan> = tokens.iter().filter(is_code).cloned().collect();
        let (Some(first), Some(last)) = (code.first(), code.last()) else { continue };
        limits::check_depth(&code, &lines)?;
        let place = lines.offset(first.span.start)..lines.offset(last.span.end);
        let statement = statement(code, &lines)?;
        statements.push(Parsed { statement, place });
    }
    Ok(statements)
}

/// Parses a text with exactly one statement.
///
/// # Errors
/// As [`parse`]; 42601 if there is not exactly one.
pub fn parse_one(text: &str) -> Result<Statement, SqlError> {
    let mut statements = parse(text)?;
    match (statements.pop(), statements.is_empty()) {
        (Some(parsed), true) => Ok(parsed.statement),
        (Some(_), false) => {
            let message = "cannot insert multiple commands into a prepared statement";
            Err(SqlError::new(sqlstate::SYNTAX_ERROR, message))
        }
        (None, _) => Err(SqlError::new(sqlstate::SYNTAX_ERROR, "syntax error at end of input")),
    }
}

/// Parses an expression, such as a default value.
///
/// # Errors
/// As [`parse`].
pub fn parse_expression(text: &str) -> Result<sqlparser::ast::Expr, SqlError> {
    limits::check_size(text)?;
    let lines = Lines::new(text);
    let tokens = Tokenizer::new(&DIALECT, text).tokenize_with_location();
    let tokens = tokens.map_err(|error| SqlError::new(sqlstate::SYNTAX_ERROR, error.message))?;
    limits::check_depth(&tokens, &lines)?;
    let mut parser = Parser::new(&DIALECT).with_recursion_limit(NESTING_MAX).with_tokens_with_locations(tokens);
    let expression = parser.parse_expr().map_err(|error| syntax_error(&error, &lines))?;
    match parser.peek_token().token {
        Token::EOF => Ok(expression),
        token => Err(SqlError::new(sqlstate::SYNTAX_ERROR, format!("syntax error at or near \"{token}\""))),
    }
}

/// One statement from its tokens, without white space.
fn statement(mut tokens: Vec<TokenWithSpan>, lines: &Lines) -> Result<Statement, SqlError> {
    if let Some(statement) = clauses::own_statement(&tokens)? {
        return Ok(statement);
    }
    if let Some(statement) = cursors::statement(&tokens)? {
        return Ok(statement);
    }
    if let Some((name, is_binary, start)) = cursors::declared(&tokens)? {
        return match parsed_statement(tokens.split_off(start), lines)? {
            query @ Statement::Query(..) => Ok(Statement::Declare { name, is_binary, query: Box::new(query) }),
            _ => Err(SqlError::new(sqlstate::SYNTAX_ERROR, "a cursor needs a query")),
        };
    }
    parsed_statement(tokens, lines)
}

fn parsed_statement(mut tokens: Vec<TokenWithSpan>, lines: &Lines) -> Result<Statement, SqlError> {
    let clauses = clauses::take(&mut tokens)?;
    let mut parser = Parser::new(&DIALECT).with_recursion_limit(NESTING_MAX).with_tokens_with_locations(tokens);
    let parsed = parser.parse_statement().map_err(|error| syntax_error(&error, lines))?;
    let next = parser.peek_token();
    if next.token != Token::EOF {
        let message = format!("syntax error at or near \"{}\"", next.token);
        return Err(SqlError::new(sqlstate::SYNTAX_ERROR, message).at(lines.position(next.span.start)));
    }
    clauses.apply(convert::statement(parsed)?)
}

/// Translates an error of the parser: `Expected: x, found: y at Line: 1, Column: 2`.
fn syntax_error(error: &ParserError, lines: &Lines) -> SqlError {
    let text = match error {
        ParserError::RecursionLimitExceeded => {
            let message = format!("statement is nested more than {NESTING_MAX} levels deep");
            return SqlError::new(sqlstate::STATEMENT_TOO_COMPLEX, message);
        }
        ParserError::TokenizerError(text) | ParserError::ParserError(text) => text,
    };
    let (text, location) = match text.rsplit_once(" at Line: ") {
        Some((text, place)) => (text, place.split_once(", Column: ")),
        None => (text.as_str(), None),
    };
    let (message, detail) = match text.rsplit_once("found: ") {
        Some((expected, "EOF")) => ("syntax error at end of input".to_owned(), Some(expected)),
        Some((expected, found)) => (format!("syntax error at or near \"{found}\""), Some(expected)),
        None => (format!("syntax error: {text}"), None),
    };
    let mut translated = SqlError::new(sqlstate::SYNTAX_ERROR, message);
    translated.detail = detail.map(|expected| format!("{}.", expected.trim_end_matches([',', ' '])));
    let parsed = location.and_then(|(line, column)| Some((line.parse().ok()?, column.trim().parse().ok()?)));
    match parsed {
        Some((line, column)) => translated.at(lines.position(Location { line, column })),
        None => translated,
    }
}

/// The position of a location in a text: characters from 1.
pub fn position(text: &str, location: Location) -> u32 {
    Lines::new(text).position(location)
}

/// The starts of the lines of a text.
pub(crate) struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self { text, starts: std::iter::once(0).chain(ends).collect() }
    }

    /// The byte offset of a location. Its line and column count from 1, columns in characters.
    fn offset(&self, location: Location) -> usize {
        let line = usize::try_from(location.line.saturating_sub(1)).unwrap_or(usize::MAX);
        let Some(start) = self.starts.get(line) else { return self.text.len() };
        let column = usize::try_from(location.column.saturating_sub(1)).unwrap_or(usize::MAX);
        let rest = &self.text[*start..];
        start + rest.char_indices().nth(column).map_or(rest.len(), |(at, _)| at)
    }

    /// The position that PostgreSQL reports: characters from 1.
    fn position(&self, location: Location) -> u32 {
        let characters = self.text[..self.offset(location)].chars().count();
        u32::try_from(characters).map_or(u32::MAX, |characters| characters.saturating_add(1))
    }
}
