mod values;
