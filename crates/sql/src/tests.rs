mod ddl;
mod direct;
mod keys;
mod parse;
mod system;
mod values;
