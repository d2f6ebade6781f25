mod keys;
mod parse;
mod values;
