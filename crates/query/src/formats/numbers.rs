//! `to_char` of numbers. It follows the algorithm of PostgreSQL's `formatting.c`: the results depend on the order of signs,
//! padding and digits there.

use sql::cast::{Context, cast};
use sql::{Numeric, SqlError, SqlType, Value, sqlstate};

use super::{Grammar, Node, ordinal, parse};

const PATTERNS: Grammar = Grammar {
    patterns: &[
        ",", ".", "0", "9", "B", "C", "D", "EEEE", "FM", "G", "L", "MI", "PL", "PR", "RN", "SG", "SP", "S", "TH", "V",
        "b", "c", "d", "eeee", "fm", "g", "l", "mi", "pl", "pr", "rn", "sg", "sp", "s", "th", "v",
    ],
    has_modifiers: false,
};

/// Digits of a template.
const DIGITS_MAX: usize = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    No,
    Before,
    After,
}

/// What a template determines before the first digit is written.
#[derive(Debug)]
struct Shape {
    /// Digits before and after the point.
    pre: usize,
    post: usize,
    /// The number of digits before the first `0`, if there is one.
    zero_start: Option<usize>,
    /// The number of digits up to the last `0`.
    zero_end: usize,
    shift: Option<usize>,
    has_point: bool,
    is_bare: bool,
    has_brackets: bool,
    /// `S`, and the number of digits before it.
    sign: Sign,
    digits_before_sign: usize,
    has_minus: bool,
    has_plus: bool,
}

fn invalid(message: &str) -> SqlError {
    SqlError::new(sqlstate::SYNTAX_ERROR, message.to_owned())
}

impl Shape {
    fn of(nodes: &[Node]) -> Result<Self, SqlError> {
        let mut shape = Self {
            pre: 0,
            post: 0,
            zero_start: None,
            zero_end: 0,
            shift: None,
            has_point: false,
            is_bare: false,
            has_brackets: false,
            sign: Sign::No,
            digits_before_sign: 0,
            has_minus: false,
            has_plus: false,
        };
        for node in nodes {
            let Node::Pattern(pattern) = node else { continue };
            shape.add(&pattern.name.to_ascii_uppercase())?;
        }
        if shape.pre + shape.post + shape.shift.unwrap_or(0) > DIGITS_MAX {
            return Err(SqlError::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, "the format has too many digits"));
        }
        Ok(shape)
    }

    fn add(&mut self, name: &str) -> Result<(), SqlError> {
        match name {
            "9" | "0" if self.has_brackets => {
                return Err(invalid(&format!("\"{name}\" must be ahead of \"PR\"")));
            }
            "9" => match (&mut self.shift, self.has_point) {
                (Some(shift), _) => *shift += 1,
                (None, true) => self.post += 1,
                (None, false) => self.pre += 1,
            },
            "0" => {
                if !self.has_point {
                    self.zero_start.get_or_insert(self.pre);
                    self.pre += 1;
                } else {
                    self.post += 1;
                }
                self.zero_end = self.pre + self.post;
            }
            "." | "D" => {
                if self.has_point {
                    return Err(invalid("multiple decimal points"));
                }
                if self.shift.is_some() {
                    return Err(invalid("cannot use \"V\" and decimal point together"));
                }
                self.has_point = true;
            }
            "V" => {
                if self.has_point {
                    return Err(invalid("cannot use \"V\" and decimal point together"));
                }
                self.shift.get_or_insert(0);
            }
            "FM" => self.is_bare = true,
            "S" => {
                if self.sign != Sign::No {
                    return Err(invalid("cannot use \"S\" twice"));
                }
                if self.has_minus || self.has_plus || self.has_brackets {
                    return Err(invalid("cannot use \"S\" and \"PL\"/\"MI\"/\"SG\"/\"PR\" together"));
                }
                self.sign = if self.has_point { Sign::After } else { Sign::Before };
                self.digits_before_sign = self.pre;
            }
            "MI" | "PL" | "SG" => {
                if self.sign != Sign::No {
                    return Err(invalid(&format!("cannot use \"S\" and \"{name}\" together")));
                }
                self.has_minus |= name != "PL";
                self.has_plus |= name != "MI";
            }
            "PR" => {
                if self.sign != Sign::No || self.has_minus || self.has_plus {
                    return Err(invalid("cannot use \"PR\" and \"S\"/\"PL\"/\"MI\"/\"SG\" together"));
                }
                self.has_brackets = true;
            }
            "EEEE" | "RN" | "C" => return Err(SqlError::unsupported(format!("the pattern \"{name}\""))),
            _ => {}
        }
        Ok(())
    }
}

/// The digits of a number with `post` after the point, without its sign; whether it is negative.
fn digits(value: &Value, shape: &mut Shape) -> Result<(String, bool), SqlError> {
    let shift = shape.shift.unwrap_or(0);
    if let Value::Float4(_) | Value::Float8(_) = value {
        let (number, digits) = match value {
            Value::Float4(number) => (f64::from(*number), 6),
            Value::Float8(number) => (*number, 15),
            _ => return Ok((String::new(), false)),
        };
        if !number.is_finite() {
            return Err(SqlError::unsupported("to_char of NaN and infinity"));
        }
        let number = number * 10_f64.powi(i32::try_from(shift).unwrap_or(i32::MAX));
        if !number.is_finite() {
            return Err(SqlError::new(sqlstate::NUMERIC_VALUE_OUT_OF_RANGE, "value out of range: overflow"));
        }
        // Digits beyond the precision of the type are not shown.
        let before = format!("{:.0}", number.abs()).len();
        shape.post = shape.post.min(usize::saturating_sub(digits, before));
        return Ok((format!("{:.*}", shape.post, number.abs()), number.is_sign_negative()));
    }
    let Value::Numeric(mut number) = cast(value.clone(), &SqlType::Numeric(None), Context::Explicit)? else {
        return Ok((String::new(), false));
    };
    for _ in 0..shift {
        number = number.multiply(&Numeric::from(10))?;
    }
    let post = u16::try_from(shape.post).unwrap_or(u16::MAX);
    let rounded = number.rounded(post);
    let mut text = rounded.to_string();
    let is_negative = text.starts_with('-');
    text.retain(|c| c != '-');
    // `rounded` keeps a smaller scale.
    let missing = shape.post.saturating_sub(text.split_once('.').map_or(0, |(_, fraction)| fraction.len()));
    if missing > 0 && !text.contains('.') {
        text.push('.');
    }
    text.extend(std::iter::repeat_n('0', missing));
    Ok((text, is_negative))
}

pub(super) fn to_char(value: &Value, template: &str) -> Result<String, SqlError> {
    let nodes = parse(template, &PATTERNS);
    let mut shape = Shape::of(&nodes)?;
    let (mut number, is_negative) = digits(value, &mut shape)?;
    shape.pre += shape.shift.unwrap_or(0);
    let before = number.find('.').unwrap_or(number.len());
    if before > shape.pre {
        number = format!("{}.{}", "#".repeat(shape.pre), "#".repeat(shape.post));
    }
    let spaces = shape.pre.saturating_sub(before);
    let mut writer = Writer::new(shape, number.into_bytes(), is_negative, spaces);
    for node in &nodes {
        match node {
            Node::Pattern(pattern) => writer.pattern(pattern.name),
            Node::Char(c) | Node::Separator(c) => writer.out.push(*c),
        }
    }
    // The text ends after the last digit that the number has.
    writer.out.truncate(writer.out.find('\0').unwrap_or(writer.out.len()));
    Ok(writer.out)
}

struct Writer {
    shape: Shape,
    number: Vec<u8>,
    at: usize,
    is_negative: bool,
    /// Positions before the first digit.
    spaces: usize,
    /// The last digit that is shown with `FM`.
    last: Option<usize>,
    has_sign: bool,
    /// Positions written, and the number of all.
    current: usize,
    count: usize,
    has_digit: bool,
    out: String,
}

impl Writer {
    fn new(mut shape: Shape, number: Vec<u8>, is_negative: bool, spaces: usize) -> Self {
        let has_sign = if shape.has_plus || shape.has_minus {
            shape.has_minus
        } else {
            if !is_negative && shape.is_bare {
                shape.has_brackets = false;
            }
            if shape.sign == Sign::Before && shape.pre == shape.digits_before_sign {
                shape.sign = Sign::After;
            }
            !is_negative && shape.is_bare && shape.sign == Sign::No
        };
        let mut last = None;
        if shape.is_bare && shape.has_point {
            let point = number.iter().position(|digit| *digit == b'.');
            last = point.map(|point| {
                let relevant = number.iter().rposition(|digit| *digit != b'0').map_or(point, |last| last.max(point));
                let zero = shape.zero_end.saturating_sub(spaces).min(number.len().saturating_sub(1));
                if shape.zero_end > spaces { relevant.max(zero) } else { relevant }
            });
        }
        let mut count = (shape.post + shape.pre).saturating_sub(1);
        if !has_sign && spaces == 0 {
            count += 1;
        }
        Self {
            shape,
            number,
            at: 0,
            is_negative,
            spaces,
            last,
            has_sign,
            current: 0,
            count,
            has_digit: false,
            out: String::new(),
        }
    }

    fn pattern(&mut self, name: &str) {
        match name.to_ascii_uppercase().as_str() {
            "9" | "." | "D" => self.digit(false),
            "0" => self.digit(true),
            "," | "G" => {
                if self.has_digit {
                    self.out.push(',');
                } else if !self.shape.is_bare {
                    self.out.push(' ');
                }
            }
            "L" => self.out.push(' '),
            "MI" if self.is_negative => self.out.push('-'),
            "PL" if !self.is_negative => self.out.push('+'),
            "MI" | "PL" if !self.shape.is_bare => self.out.push(' '),
            "SG" => self.out.push(if self.is_negative { '-' } else { '+' }),
            "TH" => {
                let is_number = self.number.first() != Some(&b'#') && !self.is_negative && !self.shape.has_point;
                if is_number {
                    let digits = String::from_utf8_lossy(&self.number).into_owned();
                    self.out.push_str(ordinal(&digits, name == "TH"));
                }
            }
            _ => {}
        }
    }

    /// A zero before the point that is not shown: `9.9` shows 0.1 as ` .1`.
    fn is_space_before_point(&self) -> bool {
        self.shape.zero_start.is_none() && self.at == 0 && self.number.first() == Some(&b'0') && self.shape.post != 0
    }

    fn ends_at_point(&self) -> bool {
        self.last.is_some_and(|last| self.number.get(last) == Some(&b'.'))
    }

    fn digit(&mut self, is_zero: bool) {
        self.has_digit = false;
        let zero_start = self.shape.zero_start;
        if !self.has_sign
            && (self.current >= self.spaces || zero_start == Some(self.current))
            && (!self.is_space_before_point() || self.ends_at_point())
        {
            if self.shape.sign != Sign::No {
                if self.shape.sign == Sign::Before {
                    self.out.push(if self.is_negative { '-' } else { '+' });
                    self.has_sign = true;
                }
            } else {
                match (self.shape.has_brackets, self.is_negative) {
                    (true, true) => self.out.push('<'),
                    (false, true) => self.out.push('-'),
                    (true, false) => self.out.push(' '),
                    (false, false) if !self.shape.is_bare => self.out.push(' '),
                    _ => {}
                }
                self.has_sign = true;
            }
        }
        if self.current < self.spaces && zero_start.is_none_or(|start| start > self.current) {
            if !self.shape.is_bare {
                self.out.push(' ');
            }
        } else if self.current < self.spaces {
            self.out.push('0');
            self.has_digit = true;
        } else {
            match self.number.get(self.at) {
                Some(b'.') => {
                    if !self.ends_at_point() || self.shape.is_bare {
                        self.out.push('.');
                    }
                }
                digit => {
                    if self.last.is_some_and(|last| self.at > last) && !is_zero {
                        // FM drops it.
                    } else if self.is_space_before_point() {
                        if !self.shape.is_bare {
                            self.out.push(' ');
                        } else if self.ends_at_point() {
                            self.out.push('0');
                        }
                    } else {
                        self.out.push(digit.map_or('\0', |digit| char::from(*digit)));
                        self.has_digit = true;
                    }
                }
            }
            if self.at < self.number.len() {
                self.at += 1;
            }
        }
        let mut end = self.count + usize::from(self.spaces > 0) + usize::from(self.shape.has_point);
        if self.last == Some(self.at) {
            end = self.current;
        }
        if self.current + 1 == end {
            if self.has_sign && self.shape.has_brackets {
                self.out.push(if self.is_negative { '>' } else { ' ' });
            } else if self.shape.sign == Sign::After {
                self.out.push(if self.is_negative { '-' } else { '+' });
            }
        }
        self.current += 1;
    }
}
