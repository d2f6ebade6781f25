//! Limits on statements, checked before the parser works.

use base::limits::sql::{CODE_BYTES_MAX, DEPTH_MAX, STATEMENTS_MAX, TEXT_BYTES_MAX};
use sqlparser::keywords::Keyword;
use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::Lines;
use crate::error::{SqlError, sqlstate};

pub(super) fn check_size(text: &str) -> Result<(), SqlError> {
    let error = |what: &str, limit: usize| {
        let message = format!("{what} exceeds the maximum of {limit} bytes");
        Err(SqlError::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, message))
    };
    if text.len() > TEXT_BYTES_MAX {
        return error("statement text", TEXT_BYTES_MAX);
    }
    if text.len() > CODE_BYTES_MAX && code_bytes(text.as_bytes()) > CODE_BYTES_MAX {
        return error("statement text outside string literals", CODE_BYTES_MAX);
    }
    Ok(())
}

/// An upper bound of the bytes outside string literals.
fn code_bytes(text: &[u8]) -> usize {
    let mut count = 0;
    let mut is_literal = false;
    for (at, byte) in text.iter().enumerate() {
        match byte {
            // Whether this ends the literal depends on its kind, so all that follows counts.
            b'\'' if is_literal && at > 0 && text[at - 1] == b'\\' => return count + text.len() - at,
            b'\'' => {
                is_literal = !is_literal;
                count += 1;
            }
            _ => count += usize::from(!is_literal),
        }
    }
    count
}

/// The depth of the tree of the tokens on one level of parentheses.
#[derive(Clone, Copy, Default)]
struct Level {
    /// The depth of the operands that `AND` and `OR` have joined.
    joined: usize,
    /// The depth of the current operand.
    operand: usize,
    /// The maximum depth of earlier items of a list.
    deepest: usize,
}

impl Level {
    fn depth(self) -> usize {
        self.joined.max(self.operand).max(self.deepest)
    }

    fn join(&mut self) {
        self.joined = self.joined.max(self.operand) + 1;
        self.operand = 0;
    }

    fn next_item(&mut self) {
        *self = Self { deepest: self.depth(), ..Self::default() };
    }
}

/// Checks the depth of the syntax tree. The parser builds trees of left-associative operators in a loop, so that its
/// own limit of recursion does not apply to them.
pub(super) fn check_depth(tokens: &[TokenWithSpan], lines: &Lines) -> Result<(), SqlError> {
    let mut levels = vec![Level::default()];
    let mut statements = 0;
    for token in tokens {
        let last = levels.len() - 1;
        let level = &mut levels[last];
        match &token.token {
            Token::LParen | Token::LBracket | Token::LBrace => levels.push(Level::default()),
            Token::RParen | Token::RBracket | Token::RBrace if last > 0 => {
                let inner = levels.pop().map_or(0, Level::depth);
                let level = &mut levels[last - 1];
                level.operand = level.operand.max(inner) + 1;
            }
            Token::Comma => level.next_item(),
            Token::Word(word) => match word.keyword {
                // The parser does not limit the nesting of statements.
                Keyword::EXPLAIN
                | Keyword::PREPARE
                | Keyword::DESCRIBE
                | Keyword::DESC
                | Keyword::BEGIN
                | Keyword::IF
                | Keyword::WHILE
                | Keyword::CURSOR => {
                    statements += 1;
                    level.operand += 1;
                }
                Keyword::AND | Keyword::OR | Keyword::UNION | Keyword::EXCEPT | Keyword::INTERSECT => level.join(),
                Keyword::SELECT
                | Keyword::FROM
                | Keyword::WHERE
                | Keyword::WHEN
                | Keyword::THEN
                | Keyword::ELSE
                | Keyword::END => {
                    level.operand = level.operand.max(level.deepest);
                    level.deepest = 0;
                }
                Keyword::IS
                | Keyword::LIKE
                | Keyword::ILIKE
                | Keyword::IN
                | Keyword::NOT
                | Keyword::BETWEEN
                | Keyword::COLLATE
                | Keyword::SIMILAR
                | Keyword::AT
                | Keyword::CASE
                | Keyword::NOTNULL
                | Keyword::OPERATOR
                | Keyword::OVERLAPS
                | Keyword::JOIN
                | Keyword::XOR
                | Keyword::DIV => level.operand += 1,
                _ => {}
            },
            Token::Number(..)
            | Token::SingleQuotedString(_)
            | Token::Placeholder(_)
            | Token::Whitespace(_)
            | Token::EOF
            | Token::SemiColon => {}
            // All symbols are operators, or harmless to count.
            _ => level.operand += 1,
        }
        if levels[levels.len() - 1].depth() > DEPTH_MAX || levels.len() > DEPTH_MAX || statements > STATEMENTS_MAX {
            let error = SqlError::new(sqlstate::STATEMENT_TOO_COMPLEX, "statement is too complex");
            return Err(error
                .with_detail(format!("An expression is more than {DEPTH_MAX} operators deep."))
                .at(lines.position(token.span.start)));
        }
    }
    Ok(())
}
