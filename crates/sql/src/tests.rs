mod ddl;
mod direct;
mod jobs;
mod keys;
mod parse;
mod system;
mod values;
