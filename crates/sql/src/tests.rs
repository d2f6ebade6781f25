mod ddl;
mod direct;
mod keys;
mod parse;
mod values;
