//! The parser's dialect of PostgreSQL, with the right operand of `IS [NOT] DISTINCT FROM` as PostgreSQL parses it: the
//! parser's own extends it over a following `AND` or `OR`.

use std::any::TypeId;

use sqlparser::ast::Expr;
use sqlparser::dialect::{Dialect, PostgreSqlDialect, Precedence};
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser, ParserError};

#[derive(Debug)]
pub(super) struct OwnDialect;

const BASE: PostgreSqlDialect = PostgreSqlDialect {};

macro_rules! as_in_base {
    ($(fn $name:ident(&self $(, $argument:ident: $of:ty)*) -> $result:ty;)*) => {
        $(fn $name(&self $(, $argument: $of)*) -> $result {
            BASE.$name($($argument),*)
        })*
    };
}

impl Dialect for OwnDialect {
    fn dialect(&self) -> TypeId {
        BASE.dialect()
    }

    fn parse_infix(&self, parser: &mut Parser, expression: &Expr, precedence: u8) -> Option<Result<Expr, ParserError>> {
        let is = if parser.parse_keywords(&[Keyword::IS, Keyword::DISTINCT, Keyword::FROM]) {
            Expr::IsDistinctFrom
        } else if parser.parse_keywords(&[Keyword::IS, Keyword::NOT, Keyword::DISTINCT, Keyword::FROM]) {
            Expr::IsNotDistinctFrom
        } else {
            return BASE.parse_infix(parser, expression, precedence);
        };
        let left = Box::new(expression.clone());
        Some(parser.parse_subexpr(precedence).map(|right| is(left, Box::new(right))))
    }

    // All that the parser's dialect of PostgreSQL defines. A newer version of the parser may define more.
    as_in_base! {
        fn identifier_quote_style(&self, identifier: &str) -> Option<char>;
        fn is_delimited_identifier_start(&self, character: char) -> bool;
        fn is_identifier_start(&self, character: char) -> bool;
        fn is_identifier_part(&self, character: char) -> bool;
        fn supports_unicode_string_literal(&self) -> bool;
        fn is_reserved_for_identifier(&self, keyword: Keyword) -> bool;
        fn is_custom_operator_part(&self, character: char) -> bool;
        fn get_next_precedence(&self, parser: &Parser) -> Option<Result<u8, ParserError>>;
        fn supports_filter_during_aggregation(&self) -> bool;
        fn supports_group_by_expr(&self) -> bool;
        fn prec_value(&self, precedence: Precedence) -> u8;
        fn allow_extract_custom(&self) -> bool;
        fn allow_extract_single_quotes(&self) -> bool;
        fn supports_create_index_with_clause(&self) -> bool;
        fn supports_explain_with_utility_options(&self) -> bool;
        fn supports_listen_notify(&self) -> bool;
        fn supports_factorial_operator(&self) -> bool;
        fn supports_bitwise_shift_operators(&self) -> bool;
        fn supports_comment_on(&self) -> bool;
        fn supports_load_extension(&self) -> bool;
        fn supports_named_fn_args_with_colon_operator(&self) -> bool;
        fn supports_named_fn_args_with_expr_name(&self) -> bool;
        fn supports_empty_projections(&self) -> bool;
        fn supports_nested_comments(&self) -> bool;
        fn supports_string_escape_constant(&self) -> bool;
        fn supports_numeric_literal_underscores(&self) -> bool;
        fn supports_array_typedef_with_brackets(&self) -> bool;
        fn supports_geometric_types(&self) -> bool;
        fn supports_set_names(&self) -> bool;
        fn supports_alter_column_type_using(&self) -> bool;
        fn supports_notnull_operator(&self) -> bool;
        fn supports_interval_options(&self) -> bool;
        fn supports_insert_table_alias(&self) -> bool;
        fn supports_create_table_like_parenthesized(&self) -> bool;
        fn supports_select_wildcard_with_alias(&self) -> bool;
        fn supports_comma_separated_trim(&self) -> bool;
        fn supports_xml_expressions(&self) -> bool;
        fn supports_comment_optimizer_hint(&self) -> bool;
    }
}
