"""What SQLAlchemy's compliance suite may ask for. Closed are whole features that Loggos does not have."""

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements

# conftest.py omits foreign keys from the definitions.
OPEN = """
    foreign_key_ddl autocommit binary_literals boolean_col_expressions check_constraint_reflection ctes ctes_on_dml ctes_with_values
    date_historic datetime_historic datetime_literals datetime_timezone datetime_timezone_historic
    empty_inserts except_ expression_server_defaults fetch_first fetch_offset_with_options fetch_no_order_by
    identity_columns
    identity_columns_standard implicit_default_schema indexes_check_column_order infinity_floats
    inline_check_constraint_reflection insert_executemany_returning intersect isolation_level
    mod_operator_as_percent_sign multivalues_inserts nullsordering order_by_label_with_expression
    precision_numerics_enotation_small precision_numerics_many_significant_digits
    cast_precision_numerics_many_significant_digits precision_numerics_retains_significant_digits reflects_pk_names
    regexp_match regexp_replace savepoints sequences server_defaults supports_bitwise_and supports_bitwise_not
    supports_bitwise_or supports_bitwise_shift supports_bitwise_xor supports_distinct_on timestamp_microseconds
    tuple_in tuple_in_w_empty unicode_ddl update_from delete_from uuid_data_type view_column_reflection
    view_reflection views window_functions window_range window_range_numeric aggregate_order_by
    unique_constraints_reflect_as_index reflect_table_options index_reflects_included_columns
    unbounded_varchar table_value_constructor float_or_double_precision_behaves_generically
""".split()

CLOSED = {
    "there are no foreign keys": """
        foreign_keys self_referential_foreign_keys foreign_key_constraint_reflection on_update_cascade
        recursive_fk_cascade
    """,
    "there is one schema, `public`": "schemas",
    "there are no temporary tables": "temp_table_reflection temporary_tables",
    "there is no type `json`": "json_type json_array_indexes",
    "there are no columns of type `interval`": "datetime_interval",
    "there is no type `time`": "time time_microseconds time_implicit_bound time_timezone",
}


class Requirements(SuiteRequirements):
    def get_isolation_levels(self, config):
        supported = config.db.dialect.get_isolation_level_values(None)
        return {"default": "SERIALIZABLE", "supported": list(supported)}


def constant(rule):
    return property(lambda self: rule)


for name in OPEN:
    setattr(Requirements, name, constant(exclusions.open()))
for reason, names in CLOSED.items():
    for name in names.split():
        setattr(Requirements, name, constant(exclusions.closed(reason)))
