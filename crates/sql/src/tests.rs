mod ddl;
mod keys;
mod parse;
mod values;
