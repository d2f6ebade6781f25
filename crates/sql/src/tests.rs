mod keys;
mod values;
